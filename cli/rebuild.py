"""A replica's view on its own: what it holds, and how it is made anew from the log.

Only a view that nobody has open can be looked at or rebuilt here; a service answers for its own.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ledger.adapters.embedded import EmbeddedDatabase, EmbeddedLog
from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.adapters.rocks import RocksViewStore
from ledger.closing import failure_logged
from ledger.composition import DISCARDED, REBUILT, remove_unfinished
from ledger.errors import InvalidInput, StoreFailed
from ledger.holding import stored_partitions
from ledger.ledger import wall_clock_ms
from ledger.log import BoundedLog, EventLog
from ledger.outbox import Outbox
from ledger.replica import Replica
from ledger.table import Rows
from ledger.turn import Partition, Position
from ledger.view import ViewStore

LOG, VIEW, CONTENT = "log", "view", "content"
"""Directories of a state directory: an embedded ledger has the first two, a replica on Kafka the last two."""
PROGRESS_INTERVAL_S = 0.1
START_TIMEOUT_S = 30.0
"""For the log's manifest and ends; folding itself takes as long as it takes."""
Progress = Callable[[int, int], None]
"""Called with the records folded so far and the records there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """Where the fold of one partition stands in a view."""

    partition: Partition
    ledger_id: str
    position: Position
    first: Position | None
    """Where the log begins: its history is complete from there on. None: the log was not asked."""
    end: Position | None
    """Of the log, likewise."""
    clock_ms: int
    generation: int
    quarantined: int


def is_embedded(directory: Path) -> bool:
    """Return whether a state directory is an embedded ledger's. Raises ``InvalidInput`` when it is no state
    directory."""
    if (directory / LOG).is_dir():
        return True
    if not (directory / VIEW).is_dir():
        raise InvalidInput("directory", f"{directory} holds no ledger and no view")
    return False


@asynccontextmanager
async def log_of(directory: Path, kafka: KafkaSettings | None) -> AsyncIterator[BoundedLog]:
    """Open the log that a state directory's view is folded from, so that nobody else opens the view meanwhile.

    Raises ``StateDirectoryLocked`` when a process has the directory open, ``InvalidInput`` without ``kafka`` for a
    replica on Kafka.
    """
    async with AsyncExitStack() as stack:
        log: BoundedLog
        if is_embedded(directory):
            database = EmbeddedDatabase(directory / LOG)
            stack.push_async_callback(database.close)
            log = EmbeddedLog(database, now_ms=wall_clock_ms)
        elif kafka is None:
            raise InvalidInput("bootstrap", f"{directory} is the view of a replica on Kafka; name its brokers")
        else:
            # A process opens the view and then the contents; it gives the view up again when it gets no further.
            stack.callback(RocksViewStore(directory / CONTENT).close)
            log = KafkaLog(kafka)
        stack.push_async_callback(log.close)
        yield log


@contextmanager
def view_of(directory: Path) -> Iterator[ViewStore]:
    """Open the view of a state directory. Raises ``StateDirectoryLocked``, and ``StoreFailed`` when there is none."""
    store = RocksViewStore(directory / VIEW, create=False)
    try:
        yield store
    finally:
        store.close()


async def statuses(store: ViewStore, log: BoundedLog | None) -> list[PartitionStatus]:
    """Return where each partition that a view has stands, and where its log begins and ends."""
    rows = [Rows(store, partition) for partition in stored_partitions(store)] or [Rows(store, Partition(0))]
    return [
        PartitionStatus(
            partition=partition_rows.partition,
            ledger_id=partition_rows.meta.ledger_id.hex(),
            position=partition_rows.position,
            first=None if log is None else await log.first(partition_rows.partition, timeout_s=START_TIMEOUT_S),
            end=None if log is None else await log.end(partition_rows.partition, timeout_s=START_TIMEOUT_S),
            clock_ms=partition_rows.meta.clock_ms,
            generation=partition_rows.meta.generation,
            quarantined=partition_rows.meta.quarantined,
        )
        for partition_rows in rows
    ]


def partitions_in(directory: Path) -> frozenset[Partition] | None:
    """Return the partitions that a view has; None when it has none or cannot be read. Raises ``StateDirectoryLocked``.

    What is rebuilt goes by them where nobody says more: a disk that holds some partitions may have no room for all.
    """
    try:
        with view_of(directory) as old:
            return frozenset(stored_partitions(old)) or None
    except StoreFailed:
        return None


async def rebuild(
    directory: Path,
    log: EventLog,
    progress: Progress,
    fill: Callable[[ViewStore], Awaitable[None]] | None = None,
    partitions: Collection[Partition] | None = None,
) -> int:
    """Replace the view by one folded from the beginning of ``log``; return at which record it ends, counted from there.

    ``partitions`` are those that the view is to have; None: all. ``fill`` may write rows first, such as those of the
    tables; the log is then folded from there on. The old view stays until the new one is whole, so a log that no longer
    begins at its first record (``Unavailable``, ``log_gap``) costs nothing. Abandonments that still wait to be written
    are carried over: they are not in the log yet. Raises ``StateDirectoryLocked``, and the ``Unavailable`` that stops a
    partition.
    """
    view, rebuilt, discarded = directory / VIEW, directory / REBUILT, directory / DISCARDED
    waiting = []
    # A view that cannot be read any more is a reason to rebuild it, not to refuse.
    with suppress(StoreFailed), view_of(directory) as old:
        waiting = list(Outbox(old).entries(list(stored_partitions(old))))
    remove_unfinished(directory)
    store = RocksViewStore(rebuilt)
    try:
        outbox = Outbox(store)
        for partition, event in waiting:
            outbox.put(partition, event)
        if fill is not None:
            await fill(store)
        count = await _fold_all(Replica(log, store, partitions=partitions), log, progress)
        store.flush()
    except BaseException:
        with failure_logged():
            store.close()
        shutil.rmtree(rebuilt, ignore_errors=True)
        raise
    store.close()
    if view.exists():
        view.rename(discarded)
    rebuilt.rename(view)
    shutil.rmtree(discarded, ignore_errors=True)
    return count


async def _fold_all(replica: Replica, log: EventLog, progress: Progress) -> int:
    await replica.start(timeout_s=START_TIMEOUT_S)
    try:
        partitions = list(replica.held)
        ends = {partition: await log.end(partition, timeout_s=START_TIMEOUT_S) for partition in partitions}
        total = sum(ends.values())
        while True:
            positions = {partition: replica.rows(partition).position for partition in partitions}
            folded = sum(min(position, ends[partition]) for partition, position in positions.items())
            progress(folded, total)
            if folded == total:
                return total
            await asyncio.sleep(PROGRESS_INTERVAL_S)
    finally:
        await replica.stop()
