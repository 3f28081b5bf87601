"""Two service processes on one Kafka ledger, as an operator would run them."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ledger.adapters.http import LedgerClient
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.adapters.kafka_topics import create_topics
from ledger.alias import AliasKey
from ledger.composition import open_kafka
from ledger.policy import Policy
from ledger.turn import Content, Owner, Scope, Selector, SelectorKind, Turn
from tests.forked import Forked, unconfigured

READY_PREFIX = "turnledger serving on "
START_TIMEOUT_S = 60.0
NATIVE = Owner(native=True, target="provider-a", digest=b"\x01" * 16)
PORTABLE = Owner(native=False, target="provider-c")


@dataclass(slots=True, kw_only=True)
class Deployment:
    """A formatted ledger on Kafka, and where its processes keep their state."""

    kafka: KafkaSettings
    alias_key: AliasKey
    directory: Path

    @property
    def key_file(self) -> Path:
        return self.directory / "alias.key"


async def deploy(
    bootstrap: str, directory: Path, *, partition_count: int = 4, policy: Policy | None = None
) -> Deployment:
    """Create topics under a prefix of their own and format them."""
    kafka = KafkaSettings(bootstrap=bootstrap, prefix=f"e2e-{secrets.token_hex(6)}")
    await create_topics(kafka, partition_count=partition_count, replication_factor=1)
    secret = secrets.token_bytes(32)
    deployment = Deployment(kafka=kafka, alias_key=AliasKey(secret), directory=directory)
    deployment.key_file.write_text(secret.hex())
    ledger = await open_kafka(kafka, directory / "formatting", deployment.alias_key, format_policy=policy or Policy())
    await ledger.close()
    return deployment


class Service:
    """One ``turnledger serve`` process with a state directory of its own."""

    def __init__(self, deployment: Deployment, name: str, *options: str, port: int = 0) -> None:
        """``port`` 0: any free one. ``options`` are of the command."""
        self._deployment = deployment
        self._options = ("--port", str(port), *options)
        self.directory = deployment.directory / name
        self._process: Forked | None = None
        self.url = ""

    async def start(self) -> None:
        """Start and return when it serves."""
        words = [
            "serve", "--directory", str(self.directory), *self._options,
            "--bootstrap", self._deployment.kafka.bootstrap, "--prefix", self._deployment.kafka.prefix,
            "--alias-key-file", str(self._deployment.key_file), "--log-level", "error",
        ]  # fmt: skip
        self._process = await asyncio.to_thread(Forked, *words, environ=unconfigured())
        line = await asyncio.wait_for(asyncio.to_thread(self._process.output.readline), START_TIMEOUT_S)
        assert line.startswith(READY_PREFIX), f"the service ended with {await self.kill()}"
        self.url = line.removeprefix(READY_PREFIX).strip()

    def client(self, *, token: str | None = None) -> LedgerClient:
        """Return a client of this process."""
        return LedgerClient(self.url, token=token)

    async def kill(self) -> int:
        """End it with SIGKILL; return its exit code."""
        return await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """End it with SIGTERM; return its exit code."""
        return await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        return 0 if process is None else await asyncio.to_thread(process.end, number)


@asynccontextmanager
async def running(deployment: Deployment, *names: str) -> AsyncIterator[list[Service]]:
    """Run one service per name; whatever still runs at the end is killed."""
    services = [Service(deployment, name) for name in names]
    try:
        await asyncio.gather(*(service.start() for service in services))
        yield services
    finally:
        await asyncio.gather(*(service.kill() for service in services))


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
        return number


def scope(principal: str = "local") -> Scope:
    """Return the scope that a service without an auth file gives its callers."""
    return Scope(namespace="default", route="default", principal=principal)


def turn(number: int, *, portable: bool = False, previous: int | None = None, begun_at_ms: int) -> Turn:
    """Return turn ``number``; its IDs follow from the number."""
    return Turn(
        scope=scope(),
        event_id=f"event-{number}",
        response_id=f"resp_{number}",
        previous_response_id=None if previous is None else f"resp_{previous}",
        owner=PORTABLE if portable else NATIVE,
        begun_at_ms=begun_at_ms,
        content=Content(input=[{"n": number}], output=[{"n": -number}]) if portable else None,
    )


def response(number: int) -> Selector:
    """Return the selector of turn ``number``'s response."""
    return Selector(scope=scope(), kind=SelectorKind.RESPONSE, id=f"resp_{number}")
