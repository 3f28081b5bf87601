"""What tests of the processors do: run workers in this process, publish turns, read tables as a new replica does."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_settings import CHECKPOINTS, LIFECYCLE, REPORTS, TABLES, KafkaSettings
from ledger.adapters.memory import MemoryViewStore
from ledger.alias import AliasKey
from ledger.bootstrap import Bootstrapped, bootstrap
from ledger.checkpoint import Signer
from ledger.composition import open_kafka
from ledger.errors import Unavailable
from ledger.ledger import Ledger, wall_clock_ms
from ledger.log import Record
from ledger.policy import Policy
from ledger.settings import LedgerSettings
from ledger.table import folded_rows
from ledger.turn import Content, Owner, Partition, Position, Scope, Turn
from processors.composition import Join, Worker, materializer, opened
from processors.materialize import Materializer
from processors.reporters import PartitionReporters, partition_reporters
from processors.settings import ProcessSettings
from tests.adapters.kafka_world import PARTITION_COUNT

ALIAS_KEY = AliasKey(b"k" * 32)
SIGNER = Signer(b"s" * 32)
PARTITIONS = [Partition(number) for number in range(PARTITION_COUNT)]
TIMEOUT_S = 40.0
RETRY_PAUSE_S = 0.2


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
    settings: KafkaSettings,
    directory: Path,
    *,
    policy: Policy | None = None,
    alias_key: AliasKey = ALIAS_KEY,
    limits: LedgerSettings | None = None,
) -> AsyncIterator[Ledger]:
    """Open a replica; the first one formats the ledger."""
    ledger = await open_kafka(settings, directory, alias_key, format_policy=policy or Policy(), settings=limits)
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


def process_settings(settings: KafkaSettings, directory: Path, **given: Any) -> ProcessSettings:
    """Return the settings of a worker whose checkpoints ``SIGNER`` signs."""
    directory.mkdir(parents=True, exist_ok=True)
    key_file = directory / "checkpoint.key"
    key_file.write_text((b"s" * 32).hex())
    return ProcessSettings(
        kafka_bootstrap=settings.bootstrap,
        topic_prefix=settings.prefix,
        process_directory=directory,
        checkpoint_key_file=key_file,
        **given,
    )


@asynccontextmanager
async def whole_worker(settings: KafkaSettings, directory: Path, **given: Any) -> AsyncIterator[Worker]:
    """Run all parts of a worker, with a loop in the place of Faust's agents: it reads everything from the beginning."""
    async with opened(process_settings(settings, directory, **given)) as parts:

        async def erase(record: Record) -> None:
            await parts.eraser.take([(record.partition, record.value)])

        async def compare(record: Record) -> None:
            parts.watcher.take(record.partition, record.value)

        async def compare_report(record: Record) -> None:
            await parts.watcher.take_report(
                record.partition, record.offset, record.key, record.value, record.appended_at_ms
            )

        takers = {LIFECYCLE: erase, CHECKPOINTS: compare, REPORTS: compare_report}
        running = [asyncio.create_task(_feed(settings, name, take)) for name, take in takers.items()]
        running += [asyncio.create_task(parts.materializer.run()), asyncio.create_task(parts.upkeep.run())]
        try:
            yield parts
        finally:
            for task in running:
                task.cancel()
            ended = await asyncio.gather(*running, return_exceptions=True)
        for error in ended:
            if error is not None and not isinstance(error, asyncio.CancelledError):
                raise error


async def _feed(settings: KafkaSettings, name: str, take: Callable[[Record], Awaitable[None]]) -> None:
    """Give a topic's records to an agent, at least once each, as Faust does."""
    topic = KafkaLog(settings, name)
    positions = dict.fromkeys(PARTITIONS, Position(0))
    try:
        while True:
            try:
                tail = await topic.tail(positions)
                while True:
                    for batch in await tail.next(1.0):
                        for record in batch.records:
                            await take(record)
                        positions[batch.partition] = batch.next_position
            except Unavailable:
                await asyncio.sleep(RETRY_PAUSE_S)
    finally:
        await topic.close()


async def reported(settings: KafkaSettings) -> list[PartitionReporters]:
    """Return what the topics say of every partition's reporters."""
    topics = [KafkaLog(settings), KafkaLog(settings, REPORTS), KafkaLog(settings, CHECKPOINTS)]
    try:
        log, reports, checkpoints = topics
        return await partition_reporters(log, reports, checkpoints, PARTITIONS)
    finally:
        for topic in topics:
            await topic.close()


class Assigned:
    """A membership whose partitions the test decides; nobody else takes part."""

    def __init__(self, *first: Partition) -> None:
        """``first`` are those that it begins with."""
        self.assign: Callable[[frozenset[Partition]], None] = lambda _: None
        self._first = frozenset(first)

    def join(self, on_assigned: Callable[[frozenset[Partition]], None]) -> Assigned:
        self.assign = on_assigned
        return self

    async def start(self) -> None:
        self.assign(self._first)

    async def confirm(self, partition: Partition, position: Position) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        pass


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
