"""What tests of the processors do: run workers in this process, publish turns, read tables as a new replica does."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_settings import TABLES, KafkaSettings
from ledger.adapters.memory import MemoryViewStore
from ledger.alias import AliasKey
from ledger.bootstrap import Bootstrapped, bootstrap
from ledger.checkpoint import Signer
from ledger.composition import open_kafka
from ledger.ledger import Ledger, wall_clock_ms
from ledger.policy import Policy
from ledger.table import folded_rows
from ledger.turn import Content, Owner, Partition, Scope, Turn
from processors.composition import Join, materializer
from processors.materialize import Materializer
from tests.adapters.kafka_world import PARTITION_COUNT

ALIAS_KEY = AliasKey(b"k" * 32)
SIGNER = Signer(b"s" * 32)
PARTITIONS = [Partition(number) for number in range(PARTITION_COUNT)]
TIMEOUT_S = 40.0


def scope(principal: str = "alice") -> Scope:
    return Scope(namespace="tests", route="default", principal=principal)


def turn(
    name: str, *, principal: str = "alice", text: str | None = None, previous: str | None = None, conversation: str = ""
) -> Turn:
    """Return a native turn, or with ``text`` a portable one."""
    return Turn(
        scope=scope(principal),
        event_id=name,
        response_id=f"resp_{name}",
        previous_response_id=previous,
        conversation_id=conversation or None,
        owner=Owner(native=text is None, target="provider-a"),
        content=None if text is None else Content(input=[{"role": "user", "content": text}]),
        begun_at_ms=wall_clock_ms(),
    )


@asynccontextmanager
async def replica(
    settings: KafkaSettings, directory: Path, *, policy: Policy | None = None, alias_key: AliasKey = ALIAS_KEY
) -> AsyncIterator[Ledger]:
    """Open a replica; the first one formats the ledger."""
    ledger = await open_kafka(settings, directory, alias_key, format_policy=policy or Policy())
    async with ledger:
        yield ledger


@asynccontextmanager
async def worker(settings: KafkaSettings, directory: Path, *, join: Join | None = None) -> AsyncIterator[Materializer]:
    """Run a worker."""
    async with materializer(settings, directory, SIGNER, join=join) as service:
        running = asyncio.create_task(service.run())
        try:
            yield service
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def until(condition: Callable[[], bool | Awaitable[bool]], *, timeout_s: float = TIMEOUT_S) -> None:
    """Return when a condition holds."""
    async with asyncio.timeout(timeout_s):
        while True:
            held = condition()
            if held if isinstance(held, bool) else await held:
                return
            await asyncio.sleep(0.05)


def caught_up(service: Materializer, ledger: Ledger) -> bool:
    """Return whether a worker has written what a replica has folded."""
    return caught_up_together([service], ledger)


def caught_up_together(services: list[Materializer], ledger: Ledger) -> bool:
    """The same of several workers."""
    positions = {status.partition: status.position for service in services for status in service.statuses()}
    states = ledger.replica.states()
    return all(positions.get(number) == state.rows.position for number, state in states.items())


async def publish(ledger: Ledger, count: int, *, principals: int = 8) -> None:
    """Publish native turns of several principals."""
    run = secrets.token_hex(4)
    await asyncio.gather(
        *(
            ledger.committer.commit(turn(f"{run}-{number}", principal=f"p{number % principals}"), timeout_s=TIMEOUT_S)
            for number in range(count)
        )
    )


async def bootstrapped(settings: KafkaSettings) -> tuple[MemoryViewStore, list[Bootstrapped]]:
    """Read the tables as a new replica does."""
    store = MemoryViewStore()
    log, tables = KafkaLog(settings), KafkaLog(settings, TABLES)
    try:
        return store, await bootstrap(store, log, tables, PARTITIONS)
    finally:
        await log.close()
        await tables.close()


def rows_of(store: object) -> dict[bytes, bytes]:
    """Return the folded rows of all partitions."""
    return {key: row for number in PARTITIONS for key, row in folded_rows(store, number)}  # type: ignore[arg-type]
