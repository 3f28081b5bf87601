"""Two replicas of the gateway, R1 and R2, on one ledger, in front of three loopback upstreams: P1, P2 and C.

P1 and P2 have native state, C has none. R1 prefers P1 and R2 prefers P2, so a follow-up on the other replica is a
follow-up that the policy would send elsewhere. On Kafka the replicas are two processes; on the embedded log, which one
process has alone, they are two gateways over one ledger.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from api.forwarding import Forwarding
from api.gateway.app import WithGateway, create_gateway_app
from api.gateway.config import GatewayConfig
from api.gateway.metrics import GatewayMetrics
from api.gateway.routing import Routing
from api.gateway.service import Gateway
from api.gateway.upstream import Upstream
from api.health import health_app
from api.metrics import Metrics
from cli.loopback.server import Loopback
from ledger.composition import open_embedded, open_kafka
from ledger.ledger import Ledger, wall_clock_ms
from ledger.policy import Policy
from ledger.settings import LedgerSettings
from tests.e2e.replicas import READY_PREFIX, START_TIMEOUT_S, Deployment, free_port
from tests.forked import Forked, unconfigured
from tests.gateway.serving import listening

PRINCIPALS = [f"tenant-{number}" for number in range(1000)]
"""Each test on the shared ledger takes two of its own: IDs of the loopbacks begin anew in each."""
_principals = itertools.count()
_directories = itertools.count()
LEASE_S = 3
native_or_portable = pytest.mark.parametrize(
    ("model", "target"), [("auto", "p1"), ("chat", "c")], ids=["native", "portable"]
)
"""State at the target that R1 prefers, or in the ledger."""
embedded_only = pytest.mark.parametrize("pair", [None], ids=["embedded"])
"""For what a case demands of this log alone, or of none."""
Config = dict[str, Any]
Change = Callable[[Config], None]
_read_configs: dict[str, GatewayConfig] = {}


def key_of(principal: str) -> str:
    """Return the API key of a principal."""
    return f"sk-{principal}"


def base_config(ports: Mapping[str, int], *, prefers: str, principals: Sequence[str]) -> Config:
    """Return the configuration of a replica that prefers ``prefers`` of the two native targets."""
    others = [name for name in ("p1", "p2") if name != prefers]
    native = [{"target": name, "model": "loopback"} for name in (prefers, *others)]
    chat = {"target": "c", "model": "loopback"}
    formats = {"p1": "responses", "p2": "responses", "c": "chat_completions"}
    return {
        "namespace": "tests",
        "targets": [
            {"name": name, "base_url": f"http://127.0.0.1:{ports[name]}/v1", "format": formats[name]}
            for name in formats
        ],
        "models": [
            {"name": "auto", "policy": "first_healthy", "targets": native},
            {"name": "chat", "policy": "first_healthy", "targets": [chat]},
            {"name": "any", "policy": "first_healthy", "targets": [chat, *native]},
            {"name": "only-p1", "targets": [{"target": "p1", "model": "loopback"}]},
            {"name": "only-p2", "targets": [{"target": "p2", "model": "loopback"}]},
        ],
        "keys": [
            {"sha256": hashlib.sha256(key_of(principal).encode()).hexdigest(), "principal": principal}
            for principal in principals
        ],
        "limits": {"lease_s": LEASE_S, "idempotency_wait_s": 20},
    }


@dataclass(slots=True, kw_only=True)
class Replica:
    """One gateway that listens."""

    url: str
    gateway: Gateway | None = None
    """Only where it runs in this process."""

    clients: dict[str, AsyncOpenAI] = field(default_factory=dict)

    def client(self, principal: str) -> AsyncOpenAI:
        """Return the official client of a principal; it never retries by itself."""
        if principal not in self.clients:
            # Without the machine's certificates: reading them takes longer than a case.
            http_client = DefaultAsyncHttpxClient(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
            self.clients[principal] = AsyncOpenAI(
                base_url=f"{self.url}/v1",
                api_key=key_of(principal),
                max_retries=0,
                timeout=30,
                http_client=http_client,
            )
        return self.clients[principal]

    async def close(self) -> None:
        """Close the clients."""
        for client in self.clients.values():
            await client.close()

    async def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples with these labels."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as answer:
            text = await answer.text()
        total = 0.0
        for line in text.splitlines():
            if line.startswith((f"{name}{{", f"{name} ")) and all(
                f'{key}="{text}"' in line for key, text in labels.items()
            ):
                total += float(line.rsplit(" ", 1)[1])
        return total


@asynccontextmanager
async def gateway_over(
    ledger: Ledger | None,
    config: GatewayConfig,
    *,
    now_ms: Callable[[], int] = wall_clock_ms,
    forwarding: Forwarding | None = None,
) -> AsyncIterator[Replica]:
    """Run a gateway in this process, over a ledger, and with forwarding, that somebody else closes."""
    metrics = Metrics()
    if ledger is not None:
        metrics.watch(ledger)
    gateway = Gateway(
        config=config,
        ledger=ledger,
        routing=Routing(config, now_s=asyncio.get_running_loop().time),
        upstream=Upstream(config.targets),
        metrics=GatewayMetrics(metrics),
        now_ms=now_ms,
        forwarding=forwarding,
    )
    await gateway.start()
    beside = health_app(ledger, metrics)
    try:
        async with listening(WithGateway(create_gateway_app(gateway), beside)) as url:
            replica = Replica(url=url, gateway=gateway)
            try:
                yield replica
            finally:
                await replica.close()
    finally:
        await gateway.close()


def config_from(config: Config, directory: Path, name: str) -> Path:
    """Write a configuration as an operator would."""
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@dataclass(slots=True, kw_only=True)
class World:
    """What a case is played in."""

    p1: Loopback
    p2: Loopback
    c: Loopback
    ports: Mapping[str, int]
    directory: Path
    replicas: list[Replica] = field(default_factory=list)
    alice: str = "alice"
    bob: str = "bob"

    def client(self, replica: int = 1, principal: str | None = None) -> AsyncOpenAI:
        """Return a client of R1 or R2, by default alice's."""
        return self.replicas[replica - 1].client(principal or self.alice)

    def both(self) -> Iterator[AsyncOpenAI]:
        """Give the clients of R1 and R2 in turn, for ever."""
        return itertools.cycle([self.client(1), self.client(2)])

    def config(self, *changes: Change, prefers: str = "p1", name: str = "other") -> GatewayConfig:
        """Return the configuration of another replica."""
        config = self._changed(changes, prefers)
        # Reading one takes as long as a request, and most tests have the same two.
        key = repr(config)
        if key not in _read_configs:
            _read_configs[key] = GatewayConfig.from_file(config_from(config, self.directory, name), {})
        return _read_configs[key]

    def config_file(self, *changes: Change, prefers: str = "p1", name: str = "other") -> Path:
        """Write the configuration of another replica."""
        return config_from(self._changed(changes, prefers), self.directory, name)

    def _changed(self, changes: Sequence[Change], prefers: str) -> Config:
        config = base_config(self.ports, prefers=prefers, principals=[self.alice, self.bob])
        for change in changes:
            change(config)
        return config

    def called(self, method: str = "POST") -> dict[str, int]:
        """Return how many requests each upstream got."""
        loopbacks = {"p1": self.p1, "p2": self.p2, "c": self.c}
        return {
            name: sum(request.method == method for request in loopback.recorded())
            for name, loopback in loopbacks.items()
        }

    async def some_call(self) -> int:
        """Return how many requests the upstreams got, to be waited for."""
        return sum(self.called().values())

    def forget(self) -> None:
        """Forget what the upstreams have recorded."""
        for loopback in (self.p1, self.p2, self.c):
            loopback.forget()

    async def restart(self) -> None:
        """Stop both replicas and start them anew."""
        raise NotImplementedError

    async def kill(self, replica: int) -> None:
        """End a replica without warning."""
        raise NotImplementedError

    def another(
        self, *changes: Change, prefers: str = "p1", now_ms: Callable[[], int] = wall_clock_ms
    ) -> AbstractAsyncContextManager[Replica]:
        """Run one more replica of the same ledger, with a changed configuration or a clock of its own."""
        raise NotImplementedError

    def log_options(self) -> Sequence[str]:
        """Return what tells a process where this world's log is; nothing: it has an embedded one of its own."""
        return ()

    @property
    def has_shared_log(self) -> bool:
        """Whether another process can have the same ledger."""
        return bool(self.log_options())

    @asynccontextmanager
    async def process(self, *changes: Change) -> AsyncIterator[GatewayProcess]:
        """Run one more replica as a process that a test may kill and start again."""
        config = self.config_file(*changes, name="process")
        process = GatewayProcess(config, self.directory / "process", *self.log_options())
        try:
            await asyncio.to_thread(process.start)
            yield process
        finally:
            await asyncio.to_thread(process.stop)


@dataclass(slots=True, kw_only=True)
class EmbeddedWorld(World):
    """Both replicas over one embedded ledger of this process."""

    ledger: Ledger | None = None
    policy: Policy | None = None
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        """Open the ledger and start both replicas."""
        self.ledger = await open_embedded(self.directory / "state", policy=self.policy)
        self.replicas = [
            await self.stack.enter_async_context(gateway_over(self.ledger, self.config(prefers=prefers, name=prefers)))
            for prefers in ("p1", "p2")
        ]

    async def stop(self) -> None:
        await self.stack.aclose()
        if self.ledger is not None:
            await self.ledger.close()

    async def restart(self) -> None:
        await self.stop()
        self.stack = AsyncExitStack()
        await self.start()

    async def kill(self, replica: int) -> None:
        gateway = self.replicas[replica - 1].gateway
        assert gateway is not None, "in this process"
        for task in (*gateway.turns, *gateway.tasks):
            task.cancel()

    @asynccontextmanager
    async def another(
        self, *changes: Change, prefers: str = "p1", now_ms: Callable[[], int] = wall_clock_ms
    ) -> AsyncIterator[Replica]:
        async with gateway_over(self.ledger, self.config(*changes, prefers=prefers), now_ms=now_ms) as replica:
            yield replica


class GatewayProcess:
    """One ``turnledger gateway`` process with a state directory of its own; the port stays the same."""

    def __init__(
        self, config: Path, directory: Path, *log_options: str, environ: Mapping[str, str] | None = None
    ) -> None:
        self._config = config
        self._environ = environ or {}
        self._directory = directory
        self._log_options = log_options
        self._process: Forked | None = None
        self.port = free_port()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.code is None

    def replica(self) -> Replica:
        """Return it as a replica; whoever asks closes that."""
        return Replica(url=f"http://127.0.0.1:{self.port}")

    def start(self) -> None:
        """Start it and return when it serves."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Start it; ``await_ready`` waits until it serves."""
        words = [
            "gateway", "--config", str(self._config), "--port", str(self.port),
            "--directory", str(self._directory), "--log-level", "error", *self._log_options,
        ]  # fmt: skip
        self._process = Forked(*words, environ={**unconfigured(), **self._environ})

    def await_ready(self) -> None:
        """Return when it serves."""
        assert self._process is not None
        line = self._process.output.readline()
        assert line.startswith(READY_PREFIX), f"the gateway ended with {self._process.wait(START_TIMEOUT_S)}"

    def stop(self, *, kill: bool = False) -> None:
        """End it and wait for its end."""
        process, self._process = self._process, None
        if process is not None:
            process.end(signal.SIGKILL if kill else signal.SIGTERM)


@dataclass(slots=True, kw_only=True)
class GatewayPair:
    """The two processes of a test run on Kafka, started once and again whenever a test has ended one."""

    deployment: Deployment
    processes: list[GatewayProcess]
    spare: list[Path] = field(default_factory=list)
    """State directories of replicas that a test has closed: the next one need not fold the whole log again."""

    def up(self) -> None:
        """Start what does not run."""
        started = [process for process in self.processes if not process.is_running]
        for process in started:
            process.launch()
        for process in started:
            process.await_ready()

    def down(self) -> None:
        """Stop both."""
        for process in self.processes:
            process.stop()


@dataclass(slots=True, kw_only=True)
class KafkaWorld(World):
    """Two processes on a real broker."""

    pair: GatewayPair
    alice: str = field(default_factory=lambda: PRINCIPALS[next(_principals)])
    bob: str = field(default_factory=lambda: PRINCIPALS[next(_principals)])

    async def start(self) -> None:
        """See that both processes run."""
        await asyncio.to_thread(self.pair.up)
        self.replicas = [process.replica() for process in self.pair.processes]

    async def restart(self) -> None:
        for replica in self.replicas:
            await replica.close()
        await asyncio.to_thread(self.pair.down)
        await self.start()

    async def kill(self, replica: int) -> None:
        await asyncio.to_thread(lambda: self.pair.processes[replica - 1].stop(kill=True))

    def log_options(self) -> Sequence[str]:
        return kafka_options(self.pair.deployment)

    @asynccontextmanager
    async def another(
        self, *changes: Change, prefers: str = "p1", now_ms: Callable[[], int] = wall_clock_ms
    ) -> AsyncIterator[Replica]:
        deployment = self.pair.deployment
        spare = self.pair.spare
        directory = spare.pop() if spare else deployment.directory / f"another-{next(_directories)}"
        ledger = await open_kafka(deployment.kafka, directory, deployment.alias_key, settings=LedgerSettings())
        try:
            async with gateway_over(ledger, self.config(*changes, prefers=prefers), now_ms=now_ms) as replica:
                yield replica
        finally:
            await ledger.close()
            spare.append(directory)


def kafka_options(deployment: Deployment) -> tuple[str, ...]:
    """Return what tells a process where a ledger on Kafka is."""
    kafka = deployment.kafka
    where = ("--bootstrap", kafka.bootstrap, "--prefix", kafka.prefix)
    return (*where, "--alias-key-file", str(deployment.key_file))
