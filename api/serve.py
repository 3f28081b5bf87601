"""Composition root of a service process: settings, ledger, application, server, signals.

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
from api.errors import error_answer
from api.health import Live, Ready
from api.logs import configure, log_loop_failure
from api.metrics import Metrics
from api.service import answer
from ledger.adapters.kafka_security import KafkaSecurity
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.alias import AliasKey
from ledger.bodies import ErrorBody
from ledger.composition import open_embedded, open_kafka
from ledger.errors import InvalidInput
from ledger.ledger import Ledger
from ledger.settings import LedgerSettings, default_directory

KEEP_ALIVE_S = 75
"""Above the idle time after which clients and load balancers drop a connection (httpx 5 s, nginx 60 s): the one who
closes an idle connection must not be the one that a request is on its way to."""
GRACE_S = 20
"""For requests under way after SIGTERM: above the deadline of a commit, below the 30 s after which Kubernetes kills."""
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
    auth_file: Path | None = None
    """None: loopback only, one principal, all roles."""
    max_staleness_s: float = _defaults.max_staleness_s
    commit_timeout_s: float = _defaults.commit_timeout_s
    read_timeout_s: float = _defaults.read_timeout_s
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

    def ledger_settings(self) -> LedgerSettings:
        """Return deadlines and freshness of the ledger. Raises ``InvalidInput``."""
        return LedgerSettings(
            max_staleness_s=self.max_staleness_s,
            commit_timeout_s=self.commit_timeout_s,
            read_timeout_s=self.read_timeout_s,
        )

    def kafka_settings(self) -> KafkaSettings | None:
        """Return where the log is, None for the embedded ledger. Raises ``InvalidInput``."""
        if self.kafka_bootstrap is None:
            return None
        return KafkaSettings(bootstrap=self.kafka_bootstrap, prefix=self.topic_prefix, security=self.kafka_options())

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


def run(settings: ServiceSettings) -> None:
    """Serve until SIGTERM or SIGINT; prints one line once ready.

    Raises the ledger's errors when it cannot be opened, ``InvalidInput`` for wrong settings and an address that cannot
    be had.
    """
    access = settings.access()
    listener = _listen(settings.host, settings.port)
    configure(settings.log_level)
    with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, access, listener))


async def _serve(settings: ServiceSettings, access: Access, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_loop_failure)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    metrics = Metrics()
    front = _Front()
    server = _Server(
        uvicorn.Config(
            TrustedHostMiddleware(front, LOCAL_HOSTS, www_redirect=False) if access.is_local else front,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
        )
    )
    serving = asyncio.create_task(server.serve([listener]))
    stopped = asyncio.create_task(stopping.wait())
    opening = asyncio.create_task(_open(settings, metrics))
    try:
        await asyncio.wait([opening, stopped, serving], return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            front.app = create_app(opening.result(), access, metrics=metrics)
            sys.stdout.write(f"turnledger serving on {_url(listener)}\n")
            sys.stdout.flush()
            await asyncio.wait([stopped, serving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        stopped.cancel()
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await opening).close()
        structlog.get_logger("api").info("stopped")


async def _open(settings: ServiceSettings, metrics: Metrics) -> Ledger:
    kafka = settings.kafka_settings()
    if kafka is None:
        return await open_embedded(settings.directory, settings=settings.ledger_settings(), on_outcome=metrics.folded)
    return await open_kafka(
        kafka,
        settings.directory,
        settings.kafka_alias_key(),
        settings=settings.ledger_settings(),
        on_outcome=metrics.folded,
    )


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
            response = answer(Ready(ready=False, reason=reason), 503)
        case _:
            response = error_answer(503, ErrorBody(code="unavailable", message=reason, reason="lagging"))
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
