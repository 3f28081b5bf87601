"""What a contract suite needs of an adapter beside its port: to start it again, to trim it, to replace it."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from ledger.adapters.embedded import EmbeddedContentStore, EmbeddedDatabase, EmbeddedLog
from ledger.adapters.memory import MemoryContents, MemoryContentStore, MemoryLog, MemoryTopic
from ledger.content import ContentStore
from ledger.log import BoundedLog, EventLog, Record
from ledger.turn import Partition, Position

TIMEOUT_S = 20.0
"""Far above what any adapter needs: no test passes or fails by it."""
P0, P1 = Partition(0), Partition(1)


def ticking_clock() -> Callable[[], int]:
    """Return a clock that moves by a millisecond whenever it is read."""
    ticks = itertools.count(1_700_000_000_000)
    return lambda: next(ticks)


async def read(log: EventLog, positions: Mapping[Partition, Position], count: int) -> list[Record]:
    """Read ``count`` records and check that batches continue one another."""
    expected = dict(positions)
    records: list[Record] = []
    tail = await log.tail(positions)
    try:
        while len(records) < count:
            for batch in await tail.next(TIMEOUT_S):
                offsets = [record.offset for record in batch.records]
                assert offsets == sorted(set(offsets))
                assert all(expected[batch.partition] <= offset < batch.next_position for offset in offsets)
                assert all(record.partition == batch.partition for record in batch.records)
                expected[batch.partition] = batch.next_position
                records.extend(batch.records)
    finally:
        await tail.close()
    return records


class LogHarness(Protocol):
    """One log under test."""

    partition_count: int

    async def start(self) -> BoundedLog:
        """Open the log as a new process would, after closing what was open."""
        ...

    async def trim(self, partition: Partition, before: Position) -> None:
        """Remove the records below ``before``; the log is started and stays so."""
        ...

    async def recreate(self) -> None:
        """Replace the log by an empty one of the same name; it must be started again."""
        ...


class ContentHarness(Protocol):
    """One content store under test."""

    async def start(self) -> ContentStore:
        """Open the store as a new process would, after closing what was open."""
        ...


LogFactory = Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[LogHarness]]
ContentFactory = Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[ContentHarness]]


class _MemoryLogHarness:
    partition_count = 3

    def __init__(self) -> None:
        self._topic = MemoryTopic(self.partition_count, log_id="first")
        self._now_ms = ticking_clock()
        self.log: MemoryLog | None = None

    async def start(self) -> BoundedLog:
        if self.log is not None:
            await self.log.close()
        self.log = MemoryLog(self._topic, now_ms=self._now_ms)
        return self.log

    async def trim(self, partition: Partition, before: Position) -> None:
        self._topic.trim(partition, before)

    async def recreate(self) -> None:
        self._topic.recreate(log_id="second")


class _EmbeddedHarness:
    partition_count = 1

    def __init__(self, path: Path) -> None:
        self._path = path
        self._now_ms = ticking_clock()
        self._database: EmbeddedDatabase | None = None
        self._log: EmbeddedLog | None = None

    async def open(self) -> EmbeddedDatabase:
        await self.close()
        self._database = EmbeddedDatabase(self._path)
        return self._database

    async def start(self) -> EmbeddedLog:
        self._log = EmbeddedLog(await self.open(), now_ms=self._now_ms)
        return self._log

    async def trim(self, partition: Partition, before: Position) -> None:
        assert self._log is not None
        await self._log.trim(before, timeout_s=TIMEOUT_S)

    async def recreate(self) -> None:
        await self.close()
        shutil.rmtree(self._path)

    async def close(self) -> None:
        if self._database is not None:
            await self._database.close()


class _EmbeddedContentHarness:
    def __init__(self, database: _EmbeddedHarness) -> None:
        self._harness = database
        self._now_ms = ticking_clock()

    async def start(self) -> ContentStore:
        return EmbeddedContentStore(await self._harness.open(), now_ms=self._now_ms)


class _MemoryContentHarness:
    def __init__(self) -> None:
        self._contents = MemoryContents()
        self._now_ms = ticking_clock()

    async def start(self) -> ContentStore:
        return MemoryContentStore(self._contents, now_ms=self._now_ms)


@asynccontextmanager
async def memory_log(_: pytest.FixtureRequest) -> AsyncIterator[LogHarness]:
    yield _MemoryLogHarness()


@asynccontextmanager
async def embedded_log(request: pytest.FixtureRequest) -> AsyncIterator[LogHarness]:
    harness = _EmbeddedHarness(request.getfixturevalue("tmp_path") / "log")
    yield harness
    await harness.close()


@asynccontextmanager
async def memory_content(_: pytest.FixtureRequest) -> AsyncIterator[ContentHarness]:
    yield _MemoryContentHarness()


@asynccontextmanager
async def embedded_content(request: pytest.FixtureRequest) -> AsyncIterator[ContentHarness]:
    harness = _EmbeddedHarness(request.getfixturevalue("tmp_path") / "log")
    yield _EmbeddedContentHarness(harness)
    await harness.close()
