"""Figures of the processors: how fast a worker makes tables, and a replica's start from them beside folding the log."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks import baseline, in_process
from benchmarks.measure import Figure, timed
from ledger import codec
from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_producer import KafkaAppender
from ledger.adapters.kafka_settings import CONTENT, LIFECYCLE, TABLES, KafkaSettings
from ledger.adapters.kafka_topics import create_topics
from ledger.adapters.kafka_transactions import KafkaTransactions
from ledger.adapters.rocks import RocksViewStore
from ledger.alias import CONTROL_KEY, record_key
from ledger.bootstrap import bootstrap
from ledger.composition import open_kafka
from ledger.content import ContentRef
from ledger.event import ClockTicked, ConversationCreated, ConversationUpdated, Event, OwnerRef
from ledger.facts import encode_fact
from ledger.ledger import Ledger
from ledger.lifecycle import QUEUE_TASKS_MAX
from ledger.policy import Policy
from ledger.reading import read
from ledger.replica import Replica
from ledger.table import folded_rows
from ledger.tables import MARKER_KEY, encode_marker
from ledger.turn import Partition, Position, Scope, SelectorKind
from ledger.verdict import ContentUnneeded
from processors.composition import materializer, signer_in
from processors.status import last_marker

WRITES = 10
"""Times that each conversation is written."""
COMPACTION_TIMEOUT_S = 150.0
"""A few rounds of the broker's cleaner."""
COMPACTED_AT_ONCE = {
    "segment.ms": "1000",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
}
POLL_S = 0.05
ERASE_POLL_S = 0.5
"""Each question costs the broker, and the worker beside it, a millisecond or two for every partition."""
ERASE_SETTLE_S = 5.0
"""For the lanes of a worker that erases already: generous, since nothing outside tells when the last of them runs."""
ERASE_TIMEOUT_S = 120.0


@asynccontextmanager
async def _worker(settings: KafkaSettings, directory: Path) -> AsyncIterator[subprocess.Popen[str]]:
    """Run one worker as a process of its own, which prints what it has folded."""
    child = _start(settings, directory)
    try:
        yield child
    finally:
        child.terminate()
        await asyncio.to_thread(child.communicate)


def _start(settings: KafkaSettings, directory: Path) -> subprocess.Popen[str]:
    return _spawn(["benchmarks.processors", settings.bootstrap, settings.prefix, str(directory)])


def _spawn(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True)


async def all_figures(
    bootstrap_servers: str, directory: Path, show: Callable[[list[Figure]], None], *, events: int, prefix: str
) -> list[Figure]:
    """Measure one worker beside a plain loop, two workers, a start from tables beside a replay, both on a log that was
    never rewritten and on one where nearly every row was, and the eraser; ``show`` gets each part."""
    figures: list[Figure] = []

    def add(*entries: Figure) -> None:
        figures.extend(entries)
        show(list(entries))

    for workers in (1, 2):
        settings = await in_process.prepare_kafka(bootstrap_servers, f"{prefix}-{workers}")
        async with in_process.kafka(settings, directory / f"replica-{workers}") as ledger:
            await in_process.fill(ledger, events=events)
        if workers == 1:
            plain = KafkaSettings(bootstrap=bootstrap_servers, prefix=f"{prefix}-plain")
            await create_topics(plain, replication_factor=1)
            add(await baseline.plain_loop(settings, plain, directory / "plain"))
        add(await _materialized(settings, directory, workers, f"materialize, {workers} at once"))
        if workers == 1:
            add(*await _both_ways(settings, directory / "new", "nothing rewritten"))
    add(*await _rewritten(bootstrap_servers, directory, events=events, prefix=prefix))
    add(await _erased(bootstrap_servers, directory, count=events // 4, prefix=prefix))
    return figures


async def _rewritten(bootstrap_servers: str, directory: Path, *, events: int, prefix: str) -> list[Figure]:
    """Write every conversation ten times, let what remembers the events go, compact, and start from what is left."""
    settings = KafkaSettings(bootstrap=bootstrap_servers, prefix=f"{prefix}-rewritten")
    await create_topics(settings, replication_factor=1, overrides={TABLES: COMPACTED_AT_ONCE})
    policy = Policy(event_window_max_ms=60_000)
    async with await open_kafka(
        settings, directory / "rewritten", in_process.ALIAS_KEY, format_policy=policy
    ) as ledger:
        await _rewrite(ledger, conversations=events // WRITES)
        await asyncio.sleep(policy.event_window_max_ms / 1000 + 2)
        # Each tick forgets some of the event IDs whose time has passed.
        ticks = 2 * events // ledger.replica.partition_count // QUEUE_TASKS_MAX + 2
        for partition in ledger.replica.states():
            value = codec.encode(ClockTicked(written_at_ms=ledger.now_ms()))
            appends = [ledger.log.append(partition, CONTROL_KEY, value, timeout_s=30.0) for _ in range(ticks)]
            await asyncio.gather(*appends)
        await ledger.confirm(timeout_s=120.0)
    figures = [await _materialized(settings, directory, 1, "materialize, conversations")]
    await _compacted(settings)
    return figures + await _both_ways(settings, directory / "rewritten-new", "rewritten 10 times")


async def _rewrite(ledger: Ledger, *, conversations: int) -> None:
    alias = ledger.alias_key

    def event(number: int, write: int) -> tuple[Partition, bytes, bytes]:
        scope = Scope(namespace="bench", route="default", principal=f"principal-{number % 64}")
        conversation = alias.alias_of(scope, SelectorKind.CONVERSATION, f"conversation-{number}")
        now_ms = ledger.now_ms()
        common: dict[str, Any] = {
            "event_id": alias.event_id(scope, f"{number}-{write}"),
            "principal": alias.principal(scope),
            "written_at_ms": now_ms,
            "begun_at_ms": now_ms,
            "not_after_ms": now_ms + 1_000,
            "conversation": conversation,
            "metadata": None,
        }
        owner = OwnerRef(native=False, target="", digest=b"")
        made: Event
        if write == 0:
            made = ConversationCreated(owner=owner, items=(), content=None, sealed=b"", **common)
        else:
            made = ConversationUpdated(expected_revision=None, **common)
        return ledger.committer.partition(scope), record_key("bench", conversation), codec.encode(made)

    async def append(number: int) -> None:
        write, conversation = divmod(number, conversations)
        partition, key, value = event(conversation, write)
        await ledger.log.append(partition, key, value, timeout_s=30.0)

    await timed("fill", "", append, count=conversations * WRITES, concurrency=256, warm_up=0)


async def _compacted(settings: KafkaSettings) -> None:
    """Wait until the tables hold little more than their rows."""
    tables = KafkaLog(settings, TABLES)
    count = (await tables.manifest(timeout_s=10)).partition_count
    writers = [await KafkaTransactions.start(settings, Partition(number)) for number in range(count)]
    deadline_s = time.perf_counter() + COMPACTION_TIMEOUT_S
    while True:
        records = rows = 0
        for number in range(count):
            marker = await last_marker(tables, Partition(number))
            assert marker is not None, "the tables were made"
            rows += marker.rows_count
            # A closed segment is compacted, and a new one begins with the next record.
            await writers[number].write({TABLES: [(MARKER_KEY, encode_marker(marker))]})
            end = await tables.end(Partition(number), timeout_s=10)
            async for _ in read(tables, Partition(number), Position(0), end):
                records += 1
        if records < rows * 1.5 + 100 * count or time.perf_counter() > deadline_s:
            print(f"tables: {records} records for {rows} rows", file=sys.stderr)
            break
        await asyncio.sleep(5)
    for writer in writers:
        await writer.close()
    await tables.close()


async def _both_ways(settings: KafkaSettings, directory: Path, where: str) -> list[Figure]:
    """Make the rows of a new replica from the tables, and from the log, and compare them byte for byte."""
    log, tables = KafkaLog(settings), KafkaLog(settings, TABLES)
    count = (await log.manifest(timeout_s=10)).partition_count
    partitions = [Partition(number) for number in range(count)]
    loaded, folded = RocksViewStore(directory / "tables"), RocksViewStore(directory / "log")
    try:
        began_s = time.perf_counter()
        results = await bootstrap(loaded, log, tables, partitions)
        loaded_s = time.perf_counter() - began_s
        assert not any(result.refused for result in results), results
        began_s = time.perf_counter()
        replica = Replica(log, folded)
        await replica.start(timeout_s=10)
        for result in results:
            assert result.marker is not None
            await replica.reached(result.partition, Position(result.marker.position), timeout_s=600)
        folded_s = time.perf_counter() - began_s
        # A worker that was stopped may have left ticks behind the markers: both go on to the end before they are
        # compared.
        other = Replica(log, loaded)
        await other.start(timeout_s=10)
        for partition in partitions:
            end = await log.end(partition, timeout_s=10)
            await replica.reached(partition, end, timeout_s=600)
            await other.reached(partition, end, timeout_s=600)
        await replica.stop()
        await other.stop()
        for partition in partitions:
            both = zip(folded_rows(loaded, partition), folded_rows(folded, partition), strict=True)
            same = all(row == other for row, other in both)
            assert same, f"partition {partition} has other rows"
        events = sum(result.marker.position for result in results if result.marker is not None)
    finally:
        loaded.close()
        folded.close()
        await tables.close()
        await log.close()
    return [
        Figure(name="bootstrap from tables, events", where=where, count=events, rate_per_s=events / loaded_s),
        Figure(name="replay of the log, events", where=where, count=events, rate_per_s=events / folded_s),
    ]


async def _erased(bootstrap_servers: str, directory: Path, *, count: int, prefix: str) -> Figure:
    """Time from the first null record to the last, by the broker's clock, of a worker that was idle when facts of
    contents of one chunk came.

    Its log is empty and its lanes run: one that restores lanes or carries out due tasks meanwhile measures those.
    """
    settings = await in_process.prepare_kafka(bootstrap_servers, f"{prefix}-erased")
    facts, contents = KafkaAppender(settings, settings.topic(LIFECYCLE)), KafkaLog(settings, CONTENT)
    partitions = [Partition(number) for number in range((await contents.manifest(timeout_s=10)).partition_count)]

    async def erased(at_least: int) -> list[Position]:
        deadline_s = time.perf_counter() + ERASE_TIMEOUT_S
        while True:
            ends = await asyncio.gather(*(contents.end(partition, timeout_s=10) for partition in partitions))
            if sum(ends) >= at_least:
                return ends
            assert time.perf_counter() < deadline_s, f"{sum(ends)} of {at_least} facts were carried out"
            await asyncio.sleep(ERASE_POLL_S)

    words = ["process", "--bootstrap", settings.bootstrap, "--prefix", settings.prefix, "--port", "0"]
    words += ["--directory", str(directory / "eraser"), "--checkpoint-key-file", str(directory / "eraser.key")]
    child = _spawn(["cli", *words, "--log-level", "error"])
    try:
        await _append_facts(facts, partitions, range(len(partitions)))
        before = await erased(len(partitions))
        await asyncio.sleep(ERASE_SETTLE_S)
        await _append_facts(facts, partitions, range(len(partitions), len(partitions) + count))
        ends = await erased(sum(before) + count)
        moments_ms = [
            record.appended_at_ms
            for partition, start, end in zip(partitions, before, ends, strict=True)
            async for record in read(contents, partition, start, end)
        ]
    finally:
        child.terminate()
        await asyncio.to_thread(child.communicate)
        await facts.close()
        await contents.close()
    elapsed_s = (max(moments_ms) - min(moments_ms)) / 1000
    return Figure(name="erase, facts", where="Faust agent", count=count, rate_per_s=count / elapsed_s)


async def _append_facts(facts: KafkaAppender, partitions: list[Partition], numbers: range) -> None:
    """Append a fact for each number, few large batches in all: the worker needs the processor that this takes."""
    one = ContentRef(scope=bytes(20), id=bytes(16), chunks=1, size_bytes=1, last_offset=0, oldest_at_ms=0)
    shares: dict[Partition, list[tuple[bytes, bytes | None]]] = {partition: [] for partition in partitions}
    for number in numbers:
        fact = encode_fact(ContentUnneeded(replace(one, id=number.to_bytes(16, "big"))))
        shares[partitions[number % len(partitions)]].append((bytes(20), fact))
    await asyncio.gather(*(facts.append_all(partition, share, timeout_s=30.0) for partition, share in shares.items()))


async def _materialized(settings: KafkaSettings, directory: Path, workers: int, name: str) -> Figure:
    """Time from the first record that any worker folded to the last."""
    log = KafkaLog(settings)
    count = (await log.manifest(timeout_s=10)).partition_count
    end = sum([await log.end(Partition(number), timeout_s=10) for number in range(count)])
    await log.close()
    folded: dict[int, int] = {}
    began_s = 0.0

    async def follow(child: subprocess.Popen[str]) -> None:
        nonlocal began_s
        assert child.stdout is not None
        while sum(folded.values()) < end:
            line = await asyncio.to_thread(child.stdout.readline)
            if not line:
                return
            if not line.startswith("{"):
                continue  # A line of the log.
            positions = {int(key): position for key, position in json.loads(line).items()}
            if any(positions.values()) and not began_s:
                began_s = time.perf_counter()
            folded.update({key: max(position, folded.get(key, 0)) for key, position in positions.items()})

    async def all_workers() -> None:
        async with asyncio.TaskGroup() as group, _workers(settings, directory, workers) as children:
            tasks = [group.create_task(follow(child)) for child in children]
            await asyncio.gather(*tasks)

    await all_workers()
    elapsed_s = time.perf_counter() - began_s
    return Figure(name=name, where="Kafka", count=end, rate_per_s=end / elapsed_s)


@asynccontextmanager
async def _workers(settings: KafkaSettings, directory: Path, count: int) -> AsyncIterator[list[subprocess.Popen[str]]]:
    if count == 0:
        yield []
        return
    async with (
        _worker(settings, directory / f"worker-{count}-{settings.prefix}") as first,
        _workers(settings, directory, count - 1) as others,
    ):
        yield [first, *others]


async def _run_worker(settings: KafkaSettings, directory: Path) -> None:
    async with materializer(settings, directory, signer_in(directory / "checkpoint.key")) as service:
        running = asyncio.create_task(service.run())
        while not running.done():
            await asyncio.sleep(POLL_S)
            print(json.dumps({status.partition: status.position for status in service.statuses()}), flush=True)
        running.result()


if __name__ == "__main__":
    import uvloop

    servers, prefix, path = sys.argv[1:]
    uvloop.run(_run_worker(KafkaSettings(bootstrap=servers, prefix=prefix), Path(path)))
