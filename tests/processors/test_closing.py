"""Lanes that are closed while something else happens: no rows are opened before those of the lane before are closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from ledger import codec
from ledger.adapters.rocks import RocksViewStore
from ledger.errors import Unavailable
from ledger.log import Record
from ledger.turn import Offset, Partition
from processors.materialize import Materializer
from tests.fold.names import T0_MS, formatted
from tests.fold.sequences import POLICIES
from tests.processors.test_lane import Fate, World
from tests.processors.world import Assigned, until
from tests.tables.topic import P0

FORMATTED = Record(
    partition=P0, offset=Offset(0), appended_at_ms=T0_MS, key=b"", value=codec.encode(formatted(POLICIES[0]))
)


class SlowWorld(World):
    """A world whose writers take until ``may_close`` to close; the first one is fenced."""

    def __init__(self, path: Path) -> None:
        super().__init__([FORMATTED], [Fate.FENCED])
        self.path = path
        self.events: list[str] = []
        self.is_closing = asyncio.Event()
        self.may_close = asyncio.Event()

    async def close(self) -> None:
        self.is_closing.set()
        await self.may_close.wait()

    def open_store(self, _: Partition) -> RocksViewStore:
        store = Recorded(self.path, self.events)
        self.events.append("opened")
        return store


class FailingWorld(SlowWorld):
    """A world whose writers cannot be closed."""

    async def close(self) -> None:
        raise Unavailable("broker", "no broker")


class Recorded(RocksViewStore):
    """Rows that tell when they are closed."""

    def __init__(self, path: Path, events: list[str]) -> None:
        super().__init__(path)
        self._events = events

    def close(self) -> None:
        super().close()
        self._events.append("closed")


@asynccontextmanager
async def running(service: Materializer) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(service.run())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await service.close()


async def taken_and_given_back(service: Materializer, membership: Assigned) -> None:
    """Take the partition from the worker and give it back, as soon as the worker knows of each."""
    membership.assign(frozenset())
    await until(lambda: not service.held())
    membership.assign(frozenset({P0}))
    await until(lambda: bool(service.statuses()))


async def opened_only_once_closed(service: Materializer, world: SlowWorld) -> None:
    """Let the writer close, and see that the rows are opened again after that and not before."""
    assert world.events == ["opened"]
    world.may_close.set()
    await until(lambda: P0 in service.lanes())
    assert world.events == ["opened", "closed", "opened"]


async def test_partition_that_is_lost_while_its_lane_is_closed_for_a_restore_is_closed_to_the_end(
    tmp_path: Path,
) -> None:
    world, membership = SlowWorld(tmp_path), Assigned(P0)
    service = Materializer(world.parts(world.open_store), membership.join)
    async with running(service):
        await world.is_closing.wait()
        await taken_and_given_back(service, membership)
        await opened_only_once_closed(service, world)
    assert world.events[3:] == ["closed"]


async def test_partition_that_comes_back_and_is_lost_again_before_its_lane_is_closed_is_closed_to_the_end(
    tmp_path: Path,
) -> None:
    world, membership = SlowWorld(tmp_path), Assigned(P0)
    world.fates.clear()
    service = Materializer(world.parts(world.open_store), membership.join)
    async with running(service):
        await until(lambda: P0 in service.lanes())
        for _ in range(2):
            await taken_and_given_back(service, membership)
        await opened_only_once_closed(service, world)
    assert world.events[3:] == ["closed"]


async def test_lane_whose_writer_cannot_be_closed_gives_its_rows_free_and_says_so(tmp_path: Path) -> None:
    world, membership = FailingWorld(tmp_path), Assigned(P0)
    service = Materializer(world.parts(world.open_store), membership.join)
    with structlog.testing.capture_logs() as logs:
        async with running(service):
            await until(lambda: P0 in service.lanes() and world.events == ["opened", "closed", "opened"])
    assert world.events[3:] == ["closed"]
    failures = [log for log in logs if log["event"] == "lane_not_closed"]
    assert [(log["partition"], log["message"]) for log in failures] == [
        (P0, "Unavailable: unavailable (broker): no broker")
    ] * 2
