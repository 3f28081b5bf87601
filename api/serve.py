"""Composition root of a service process: settings, ledger, gateway, application, server, signals.

The process listens before its ledger is open, so that probes see "live, not ready, and why" while a view catches up.
SIGTERM and SIGINT let the requests under way end, then close the ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import structlog
import uvicorn
import uvloop
from pydantic import Field, SecretStr
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from api.app import create_app
from api.auth import Access
from api.errors import NOT_SERVED, STARTING, error_answer
from api.forwarding import Forwarding
from api.gateway.app import WithGateway, create_gateway_app
from api.gateway.config import GatewayConfig, StateBackend
from api.gateway.metrics import GatewayMetrics
from api.gateway.routing import Routing
from api.gateway.service import Gateway
from api.gateway.upstream import Upstream
from api.health import Live, Ready, answer_ready, health_app
from api.holders import Holders
from api.logs import configure, log_loop_failure
from api.metrics import Metrics
from api.service import answer
from ledger.adapters.kafka_security import KafkaSecurity
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.alias import AliasKey
from ledger.bodies import ErrorBody
from ledger.composition import kafka_partition_count, open_embedded, open_kafka, open_memory
from ledger.errors import InvalidInput
from ledger.holding import held_of, parse_partitions
from ledger.ledger import Ledger
from ledger.settings import LedgerSettings, default_directory
from ledger.turn import Partition

KEEP_ALIVE_S = 75
"""Above the idle time after which clients and load balancers drop a connection (httpx 5 s, nginx 60 s): the one who
closes an idle connection must not be the one that a request is on its way to."""
STOP_TIMEOUT_DEFAULT_S = 20
"""Above the deadline of a commit, below the 30 s after which Kubernetes kills."""
STOP_TIMEOUT_MAX_S = 7_200
"""As long as the longest silence of a target that a gateway may be told to bear."""
BACKLOG = 2048
"""Connections that wait to be accepted."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1", "[::1]")
"""Names that a request to a service without an auth file may be for: a web page whose name was rebound to loopback
asks for its own name."""

_defaults = LedgerSettings()


class ServiceSettings(KafkaSecurity):
    """Settings of one service process; each may come from the environment as ``TURNLEDGER_<NAME>``."""

    host: str = "127.0.0.1"
    port: int = Field(default=8420, ge=0, le=65535)
    """0: any free port; the line on stdout says which."""
    directory: Path = Field(default_factory=default_directory)
    """State of this process; no other may have it open."""
    kafka_bootstrap: str | None = None
    """host:port, separated by commas; None: the embedded ledger, in ``directory``."""
    topic_prefix: str = "turnledger"
    alias_key: SecretStr | None = None
    """Hexadecimal; for Kafka, where all processes must have the same. The embedded ledger makes its own."""
    alias_key_file: Path | None = None
    """A file that holds it instead."""
    partitions: str | None = None
    """Those that this process holds, such as ``0-7,12``; None: all. With Kafka."""
    holders: str | None = None
    """Who holds the others, see ``api.holders``; required with ``partitions``, unless these are all."""
    auth_file: Path | None = None
    """None: loopback only, one principal, all roles."""
    max_staleness_s: float = _defaults.max_staleness_s
    commit_timeout_s: float = _defaults.commit_timeout_s
    read_timeout_s: float = _defaults.read_timeout_s
    reporter_name: str | None = None
    """What people call this replica on Kafka; None: the host's name."""
    report_interval_s: float = _defaults.report_interval_s
    digest_interval_s: float = _defaults.digest_interval_s
    stop_timeout_s: int = Field(default=STOP_TIMEOUT_DEFAULT_S, ge=1, le=STOP_TIMEOUT_MAX_S)
    """For requests under way after SIGTERM; then they are cut."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def access(self) -> Access:
        """Return who may use the service. Raises ``InvalidInput`` when everybody could."""
        if self.auth_file is not None:
            return Access.from_file(self.auth_file)
        if not _is_loopback(self.host):
            raise InvalidInput(
                "auth_file", f"is required to listen on {self.host}: without it everybody who can reach it may do all"
            )
        return Access.local()

    def check_reach(self, gateway: GatewayConfig) -> None:
        """Raise ``InvalidInput`` when everybody who can reach the gateway could use it."""
        if not gateway.keys and not _is_loopback(self.host):
            raise InvalidInput(
                "config", f"needs keys to listen on {self.host}: without them everybody who can reach it may do all"
            )

    def ledger_settings(self) -> LedgerSettings:
        """Return deadlines and freshness of the ledger. Raises ``InvalidInput``."""
        return LedgerSettings(
            max_staleness_s=self.max_staleness_s,
            commit_timeout_s=self.commit_timeout_s,
            read_timeout_s=self.read_timeout_s,
            reporter_name=self.reporter_name,
            report_interval_s=self.report_interval_s,
            digest_interval_s=self.digest_interval_s,
        )

    def kafka_settings(self) -> KafkaSettings | None:
        """Return where the log is, None for the embedded ledger. Raises ``InvalidInput``."""
        if self.kafka_bootstrap is None:
            return None
        return KafkaSettings(bootstrap=self.kafka_bootstrap, prefix=self.topic_prefix, security=self.kafka_options())

    def required_kafka(self) -> KafkaSettings:
        """Return where the log is. Raises ``InvalidInput`` when no broker is named."""
        kafka = self.kafka_settings()
        if kafka is None:
            raise InvalidInput("kafka_bootstrap", "is required: the state is configured to be on Kafka")
        return kafka

    def held(self) -> frozenset[Partition] | None:
        """Return the partitions to hold, None: all. Raises ``InvalidInput``."""
        return None if self.partitions is None else parse_partitions(self.partitions, "partitions")

    def holder_map(self) -> Holders | None:
        """Return who holds the others. Raises ``InvalidInput``."""
        return None if self.holders is None else Holders.parse(self.holders)

    def refuse_partitions(self, backend: StateBackend) -> None:
        """Raise ``InvalidInput`` for partitions of a state that has none to choose from."""
        for name in ("partitions", "holders"):
            if getattr(self, name) is not None:
                raise InvalidInput(name, f"is for state on Kafka, and this process has it {backend}; leave it out")

    def kafka_alias_key(self) -> AliasKey:
        """Return the alias key from file or environment. Raises ``InvalidInput``."""
        if self.alias_key_file is not None:
            try:
                digits = self.alias_key_file.read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidInput("alias_key_file", f"cannot be read: {error}") from None
        elif self.alias_key is not None:
            digits = self.alias_key.get_secret_value()
        else:
            raise InvalidInput("alias_key_file", "is required with Kafka: all processes must have the ledger's key")
        try:
            return AliasKey(bytes.fromhex(digits.strip()))
        except ValueError:
            raise InvalidInput("alias_key", "must be hexadecimal digits") from None


def run(settings: ServiceSettings, *, gateway: GatewayConfig | None = None, serves_ledger: bool = True) -> None:
    """Serve until SIGTERM or SIGINT; prints one line once ready.

    ``gateway``: also its paths, or with ``serves_ledger`` false only these. Raises the ledger's errors when it cannot
    be opened, ``InvalidInput`` for wrong settings and an address that cannot be had.
    """
    access = settings.access() if serves_ledger else Access({})
    # Before anything is opened.
    settings.held()
    settings.holder_map()
    if gateway is not None:
        settings.check_reach(gateway)
    listener = _listen(settings.host, settings.port)
    configure(settings.log_level)
    with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(_Process(settings, gateway, access, serves_ledger=serves_ledger), listener))


async def _serve(process: _Process, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_loop_failure)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    front = _Front()
    server = _Server(
        uvicorn.Config(
            TrustedHostMiddleware(front, LOCAL_HOSTS, www_redirect=False) if process.is_local else front,
            lifespan="off",
            # Nothing here depends on a client's address or scheme.
            proxy_headers=False,
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=process.stop_timeout_s,
        )
    )
    serving = asyncio.create_task(server.serve([listener]))
    stopped = asyncio.create_task(stopping.wait())
    opening = asyncio.create_task(process.open())
    try:
        await asyncio.wait([opening, stopped, serving], return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            front.app = opening.result()
            sys.stdout.write(f"turnledger serving on {_url(listener)}\n")
            sys.stdout.flush()
            await asyncio.wait([stopped, serving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        stopped.cancel()
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await opening
        await process.close()
        structlog.get_logger("api").info("stopped")


class _Process:
    """What one process serves: the ledger, the gateway, or both."""

    def __init__(
        self, settings: ServiceSettings, gateway: GatewayConfig | None, access: Access, *, serves_ledger: bool
    ) -> None:
        self._access = access
        self._settings = settings
        self._config = gateway
        self._serves_ledger = serves_ledger
        self._metrics = Metrics()
        self._ledger: Ledger | None = None
        self._gateway: Gateway | None = None
        self._holders: Holders | None = None
        """Set when partitions are held by others."""
        self._forwardings: list[Forwarding] = []

    @property
    def stop_timeout_s(self) -> int:
        """Return for how long requests under way may go on after SIGTERM."""
        return self._settings.stop_timeout_s

    @property
    def is_local(self) -> bool:
        """Whether somebody without a key may use it."""
        return self._access.is_local or (self._config is not None and not self._config.keys)

    async def open(self) -> ASGIApp:
        """Open all that is served and return the application."""
        backend = _backend(self._settings) if self._config is None else self._config.state.backend
        if backend is StateBackend.KAFKA:
            await self._find_holders()
        self._ledger = await self._open_ledger(backend)
        beside = await self._ledger_app()
        if self._config is None:
            return beside
        self._gateway = Gateway(
            config=self._config,
            ledger=self._ledger,
            routing=Routing(self._config, now_s=asyncio.get_running_loop().time),
            upstream=Upstream(self._config.targets),
            metrics=GatewayMetrics(self._metrics),
            forwarding=await self._new_forwarding(),
        )
        await self._gateway.start()
        return WithGateway(create_gateway_app(self._gateway), beside)

    async def close(self) -> None:
        """Close what was opened: first the gateway, whose turns need the ledger to end."""
        for forwarding in self._forwardings:
            await forwarding.close()
        if self._gateway is not None:
            await self._gateway.close()
        if self._ledger is not None:
            await self._ledger.close()

    async def _ledger_app(self) -> ASGIApp:
        ledger = self._ledger
        if self._serves_ledger and ledger is not None:
            forwarding = await self._new_forwarding()
            return create_app(ledger, self._access, metrics=self._metrics, forwarding=forwarding)
        if ledger is None:
            return health_app(None, self._metrics)
        self._metrics.watch(ledger)
        return health_app(ledger, self._metrics)

    async def _find_holders(self) -> None:
        """Compare the map of holders with the log, before anything is opened."""
        settings, held = self._settings, self._settings.held()
        if held is None:
            return
        partition_count = await kafka_partition_count(settings.required_kafka())
        holders = settings.holder_map() or Holders(())
        holders.check(held_of(held, partition_count), partition_count)
        if len(held) < partition_count:
            self._holders = holders

    async def _new_forwarding(self) -> Forwarding | None:
        """Return what asks the holders of other partitions; None: all are held here."""
        if self._holders is None:
            return None
        assert self._ledger is not None, "a map of holders is only taken where there is a ledger"
        self._forwardings.append(Forwarding(self._holders, self._ledger.ledger_id, self._metrics))
        await self._forwardings[-1].start()
        return self._forwardings[-1]

    async def _open_ledger(self, backend: StateBackend) -> Ledger | None:
        """Open what the gateway's configuration names, or without one what the settings do."""
        settings, config = self._settings, self._config
        limits, on_outcome = settings.ledger_settings(), self._metrics.folded
        if backend is not StateBackend.KAFKA:
            settings.refuse_partitions(backend)
        match backend:
            case StateBackend.OFF:
                return None
            case StateBackend.MEMORY:
                assert config is not None, "only a gateway's configuration names it"
                return await open_memory(policy=config.policy(), settings=limits, on_outcome=on_outcome)
            case StateBackend.EMBEDDED:
                policy = None if config is None else config.policy()
                ledger = await open_embedded(settings.directory, policy=policy, settings=limits, on_outcome=on_outcome)
                if config is not None:
                    await _keep_to(ledger, config)
                return ledger
            case StateBackend.KAFKA:
                return await open_kafka(
                    settings.required_kafka(),
                    settings.directory,
                    settings.kafka_alias_key(),
                    partitions=settings.held(),
                    settings=limits,
                    on_outcome=on_outcome,
                )


async def _keep_to(ledger: Ledger, config: GatewayConfig) -> None:
    """Give an existing embedded ledger the policy that is configured now."""
    wanted = config.policy(ledger.policy())
    if wanted is not None and wanted != ledger.policy():
        try:
            await ledger.set_policy(wanted)
        except BaseException:
            await ledger.close()
            raise


def _backend(settings: ServiceSettings) -> StateBackend:
    return StateBackend.EMBEDDED if settings.kafka_bootstrap is None else StateBackend.KAFKA


class _Front:
    """Answers probes until there is an application, and is it from then on."""

    def __init__(self) -> None:
        self.app: ASGIApp = _starting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


async def _starting(scope: Scope, receive: Receive, send: Send) -> None:
    reason = "starting: the view has not caught up yet"
    match scope["path"]:
        case "/health/live":
            response = answer(Live())
        case "/health/ready":
            response = answer_ready(Ready(ready=False, reason=reason))
        case _:
            response = error_answer(503, ErrorBody(code="unavailable", message=reason, reason="lagging"))
            response.headers[NOT_SERVED] = STARTING
    await response(scope, receive, send)


class _Server(uvicorn.Server):
    """uvicorn, without its signal handlers: they would end the process by the signal, before the ledger is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _is_loopback(host: str) -> bool:
    """Return whether every address of ``host`` is this machine's own."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise InvalidInput("port", f"{port} on {host} cannot be had: {error.strerror or error}") from None


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
