"""The reference adapters, in memory: what the ports' docstrings mean, in the fewest lines, and with scripted faults.

State that replicas share (``MemoryTopic``, ``MemoryContents``) is apart from the handle of each replica (``MemoryLog``,
``MemoryContentStore``), as a broker is from its clients. Nothing here reads a clock, draws randomness or starts a
thread: time is ``now_ms`` and the event loop's own, and every fault is the answer of an injected object, so that a
simulation with one seed runs the same way twice.
"""

from __future__ import annotations

import asyncio
import enum
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet

from ledger.content import ContentRef, chunk_key
from ledger.errors import ContentLost, StoreFailed, Unavailable
from ledger.log import Appended, AppendUncertain, LogGap, Manifest, Record, RecordBatch
from ledger.turn import Offset, Partition, Position

TAIL_RECORDS_MAX = 256
"""Records of one ``Tail.next`` in all: a fold batch, after which the reader yields."""
LAG_CHECK_S = 0.02
"""How often something that a fault hides is looked for again; nothing announces the end of a fault."""


class MemoryViewStore:
    """Sorted rows. A write copies the rows only while a scan still reads them, so scans are snapshots."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._rows: dict[bytes, bytes] = {}
        self._scans: WeakSet[Iterator[tuple[bytes, bytes]]] = WeakSet()
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        self._check_open()
        return self._rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check_open()
        return [self._rows.get(key) for key in keys]

    def scan(self, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        scan = self._scan(self._keys, self._rows, lower, upper)
        self._scans.add(scan)
        return scan

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        self._check_open()
        if self._scans:
            self._keys, self._rows = list(self._keys), dict(self._rows)
            self._scans.clear()
        for key, row in changes.items():
            if row is not None:
                if key not in self._rows:
                    insort(self._keys, key)
                self._rows[key] = row
            elif self._rows.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]

    def copy(self) -> MemoryViewStore:
        """Return a store with the rows as they are now: what a crash may leave behind."""
        copied = MemoryViewStore()
        copied._keys, copied._rows = list(self._keys), dict(self._rows)
        return copied

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFailed("the store is closed")

    def _scan(
        self, keys: list[bytes], rows: dict[bytes, bytes], lower: bytes, upper: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        index = bisect_left(keys, lower)
        while index < len(keys) and keys[index] < upper:
            self._check_open()
            yield keys[index], rows[keys[index]]
            index += 1


class AppendOutcome(enum.Enum):
    """What becomes of one append."""

    DELIVERED = enum.auto()
    REFUSED = enum.auto()
    """``Unavailable``; the record is not in the log."""
    UNACKNOWLEDGED = enum.auto()
    """The record is in the log, and ``AppendUncertain`` is raised."""
    LATE = enum.auto()
    """``AppendUncertain`` is raised, and the record lands ``delay_s`` later."""
    DUPLICATED = enum.auto()
    """The record lands twice; the second is acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendFate:
    """One append's outcome, and how long it takes."""

    outcome: AppendOutcome
    delay_s: float = 0.0
    """Until a late record lands; otherwise until the caller has its answer (above its timeout it is uncertain)."""


class LogFaults(Protocol):
    """What goes wrong on one replica's way to the log."""

    def append(self, partition: Partition) -> AppendFate:
        """Decide the next append."""
        ...

    def visible(self, partition: Partition, end: Position) -> Position:
        """Return the position up to which a tail sees now, at most ``end``."""
        ...

    def end(self, partition: Partition) -> float | None:
        """Return after how many seconds an end is answered, or None for never: ``Unavailable('leader')``."""
        ...


class MemoryTopic:
    """The log that all replicas share."""

    def __init__(self, partition_count: int, *, log_id: str) -> None:
        self.log_id = log_id
        self._records: list[list[Record]] = [[] for _ in range(partition_count)]
        self._first = [Position(0)] * partition_count
        self._grown = asyncio.Event()

    @property
    def partition_count(self) -> int:
        return len(self._records)

    def first(self, partition: Partition) -> Position:
        return self._first[partition]

    def end(self, partition: Partition) -> Position:
        return Position(self._first[partition] + len(self._records[partition]))

    def read(self, partition: Partition, position: Position, end: Position) -> tuple[Record, ...]:
        first = self._first[partition]
        return tuple(self._records[partition][position - first : end - first])

    def land(self, partition: Partition, key: bytes, value: bytes | None, appended_at_ms: int) -> Appended:
        """Put a record at the end and wake every tail."""
        offset = Offset(self.end(partition))
        self._records[partition].append(
            Record(partition=partition, offset=offset, appended_at_ms=appended_at_ms, key=key, value=value)
        )
        self.wake()
        return Appended(offset=offset, appended_at_ms=appended_at_ms)

    def trim(self, partition: Partition, first: Position) -> None:
        """Remove the records below ``first``."""
        kept = self.read(partition, max(first, self._first[partition]), self.end(partition))
        self._first[partition] = max(first, self._first[partition])
        self._records[partition] = list(kept)
        self.wake()

    def recreate(self, *, log_id: str) -> None:
        """Become another, empty log under the same name; running tails read on in it, as Kafka's do."""
        self.log_id = log_id
        self._records = [[] for _ in self._records]
        self._first = [Position(0)] * len(self._first)
        self.wake()

    def wake(self) -> None:
        """Let everyone who waits in ``grown`` look again."""
        self._grown.set()
        self._grown = asyncio.Event()

    async def grown(self) -> None:
        await self._grown.wait()


class MemoryLog:
    """One replica's way to a ``MemoryTopic``; without ``faults`` nothing fails."""

    def __init__(self, topic: MemoryTopic, *, now_ms: Callable[[], int], faults: LogFaults | None = None) -> None:
        self._topic = topic
        self._now_ms = now_ms
        self._faults = faults
        self._closed = False

    async def append(self, partition: Partition, key: bytes, value: bytes, *, timeout_s: float) -> Appended:
        self.check_open()
        fate = _DELIVERED if self._faults is None else self._faults.append(partition)
        match fate.outcome:
            case AppendOutcome.REFUSED:
                await asyncio.sleep(min(fate.delay_s, timeout_s))
                raise Unavailable("broker", "the append was refused")
            case AppendOutcome.LATE:
                asyncio.get_running_loop().call_later(
                    fate.delay_s, self._land_late, self._topic.log_id, partition, key, value
                )
                await asyncio.sleep(min(fate.delay_s, timeout_s))
                raise AppendUncertain("the append was not acknowledged")
            case AppendOutcome.DUPLICATED:
                self._land(partition, key, value)
        appended = self._land(partition, key, value)
        await asyncio.sleep(min(fate.delay_s, timeout_s))
        if fate.outcome is AppendOutcome.UNACKNOWLEDGED or fate.delay_s > timeout_s:
            raise AppendUncertain("the append was not acknowledged")
        return appended

    async def tail(self, positions: Mapping[Partition, Position]) -> MemoryTail:
        self.check_open()
        return MemoryTail(self, self._topic, positions)

    async def first(self, partition: Partition, *, timeout_s: float) -> Position:
        self.check_open()
        return self._topic.first(partition)

    async def end(self, partition: Partition, *, timeout_s: float) -> Position:
        self.check_open()
        # Taken as early as the port allows: a caller that needs a later one must ask later.
        end = self._topic.end(partition)
        delay_s = 0.0 if self._faults is None else self._faults.end(partition)
        await asyncio.sleep(timeout_s if delay_s is None else min(delay_s, timeout_s))
        if delay_s is None:
            raise Unavailable("leader", f"no validated leader of partition {partition} answers")
        if delay_s > timeout_s:
            raise Unavailable("deadline", f"the end of partition {partition} was not answered in time")
        return end

    async def manifest(self, *, timeout_s: float) -> Manifest:
        self.check_open()
        return Manifest(partition_count=self._topic.partition_count, log_id=self._topic.log_id)

    async def close(self) -> None:
        self._closed = True
        self._topic.wake()

    def visible(self, partition: Partition) -> Position:
        """Return the position up to which this replica's tails see."""
        end = self._topic.end(partition)
        return end if self._faults is None else min(end, self._faults.visible(partition, end))

    def check_open(self) -> None:
        if self._closed:
            raise Unavailable("closed", "the log is closed")

    def _land(self, partition: Partition, key: bytes, value: bytes) -> Appended:
        return self._topic.land(partition, key, value, self._now_ms())

    def _land_late(self, log_id: str, partition: Partition, key: bytes, value: bytes) -> None:
        # A batch for a deleted topic is never written to the one that took its name.
        if self._topic.log_id == log_id:
            self._land(partition, key, value)


_DELIVERED = AppendFate(outcome=AppendOutcome.DELIVERED)


class MemoryTail:
    """A running read of a ``MemoryTopic`` through one replica's faults."""

    def __init__(self, log: MemoryLog, topic: MemoryTopic, positions: Mapping[Partition, Position]) -> None:
        self._log = log
        self._topic = topic
        self._positions = dict(positions)
        self._closed = False

    async def next(self, wait_s: float) -> list[RecordBatch]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            self._log.check_open()
            if self._closed:
                raise Unavailable("closed", "the tail is closed")
            batches = self._read()
            left_s = deadline - loop.time()
            if batches or left_s <= 0:
                return batches
            hidden = any(self._log.visible(partition) < self._topic.end(partition) for partition in self._positions)
            try:
                async with asyncio.timeout(min(left_s, LAG_CHECK_S) if hidden else left_s):
                    await self._topic.grown()
            except TimeoutError:
                continue

    async def close(self) -> None:
        self._closed = True
        self._topic.wake()

    def _read(self) -> list[RecordBatch]:
        batches = []
        # A fixed share each, so that a busy partition cannot starve another.
        share = max(1, TAIL_RECORDS_MAX // max(1, len(self._positions)))
        for partition, position in self._positions.items():
            first, end = self._topic.first(partition), self._topic.end(partition)
            if not first <= position <= end:
                raise LogGap(partition, position, first, end)
            # A replica may see less than it has read already, when its log was trimmed or its fault has moved back.
            visible = max(position, min(self._log.visible(partition), position + share))
            records = self._topic.read(partition, position, Position(visible))
            if records:
                after = Position(records[-1].offset + 1)
                batches.append(RecordBatch(partition=partition, records=records, next_position=after))
        for batch in batches:
            self._positions[batch.partition] = batch.next_position
        return batches


class ContentFaults(Protocol):
    """What goes wrong between one replica and the contents."""

    def put(self, partition: Partition, chunks: int) -> int | None:
        """Return how many of the ``chunks`` land before ``Unavailable`` is raised, or None to let the put succeed."""
        ...

    def visible(self, partition: Partition, end: Position) -> Position:
        """Return the position up to which the replica's copy has come, at most ``end``; it never goes back."""
        ...


class MemoryContents:
    """The contents that all replicas share: per partition a log of chunks and erasures."""

    def __init__(self) -> None:
        self._ends: dict[Partition, Position] = {}
        self._chunks: dict[tuple[Partition, bytes], list[tuple[Offset, bytes | None]]] = {}

    def end(self, partition: Partition) -> Position:
        return self._ends.get(partition, Position(0))

    def land(self, partition: Partition, key: bytes, chunk: bytes | None) -> Offset:
        """Write one chunk, or its erasure (None)."""
        offset = Offset(self.end(partition))
        self._ends[partition] = Position(offset + 1)
        self._chunks.setdefault((partition, key), []).append((offset, chunk))
        return offset

    def read(self, partition: Partition, key: bytes, visible: Position) -> bytes | None:
        """Return the chunk as a copy that has come to ``visible`` has it."""
        seen = [chunk for offset, chunk in self._chunks.get((partition, key), []) if offset < visible]
        return seen[-1] if seen else None


class MemoryContentStore:
    """One replica's way to ``MemoryContents``, with a copy that may lag; without ``faults`` nothing fails."""

    def __init__(
        self, contents: MemoryContents, *, now_ms: Callable[[], int], faults: ContentFaults | None = None
    ) -> None:
        self._contents = contents
        self._now_ms = now_ms
        self._faults = faults
        self._closed = False

    async def put(
        self, partition: Partition, scope: bytes, content_id: bytes, chunks: Sequence[bytes], *, timeout_s: float
    ) -> ContentRef:
        self._check_open()
        oldest_at_ms = self._now_ms()
        landing = None if self._faults is None else self._faults.put(partition, len(chunks))
        last_offset = 0
        for number, chunk in enumerate(chunks[:landing]):
            last_offset = self._contents.land(partition, chunk_key(scope, content_id, number), chunk)
        await asyncio.sleep(0)
        if landing is not None:
            raise Unavailable("broker", "not every chunk of a content was acknowledged")
        return ContentRef(
            scope=scope,
            id=content_id,
            chunks=len(chunks),
            size_bytes=0,
            last_offset=last_offset,
            oldest_at_ms=oldest_at_ms,
        )

    async def get(self, partition: Partition, ref: ContentRef, *, timeout_s: float) -> list[bytes]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            self._check_open()
            visible = self._visible(partition)
            if visible > ref.last_offset:
                break
            left_s = deadline - loop.time()
            if left_s <= 0:
                raise Unavailable("content_lag", f"the contents of partition {partition} have come to {visible} only")
            await asyncio.sleep(min(left_s, LAG_CHECK_S))
        chunks = []
        for number in range(ref.chunks):
            chunk = self._contents.read(partition, chunk_key(ref.scope, ref.id, number), visible)
            if chunk is None:
                raise ContentLost(f"chunk {number} of {ref.chunks} is missing in partition {partition}")
            chunks.append(chunk)
        return chunks

    async def erase(self, partition: Partition, refs: Sequence[ContentRef], *, timeout_s: float) -> None:
        self._check_open()
        for ref in refs:
            for number in range(ref.chunks):
                self._contents.land(partition, chunk_key(ref.scope, ref.id, number), None)
        await asyncio.sleep(0)

    async def close(self) -> None:
        self._closed = True

    def _visible(self, partition: Partition) -> Position:
        end = self._contents.end(partition)
        return end if self._faults is None else min(end, self._faults.visible(partition, end))

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("closed", "the content store is closed")
