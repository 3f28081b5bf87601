"""One partition's lane in memory: transactions that are lost on either side, rows that a crash set back, and in the end
the table of a replay and every fact once. And lanes that are closed while their rows are purged."""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import codec
from ledger.adapters import rocks
from ledger.adapters.memory import MemoryLog, MemoryTopic, MemoryViewStore
from ledger.adapters.rocks import RocksViewStore
from ledger.bootstrap import bootstrap
from ledger.checkpoint import Signer
from ledger.errors import PurgeStopped
from ledger.facts import encode_fact
from ledger.log import AppendUncertain, Record, RecordBatch
from ledger.policy import Policy
from ledger.rows import Kind, LineageRow, Task
from ledger.table import folded_rows
from ledger.tables import MARKER_KEY, WriterFenced
from ledger.turn import Offset, Partition, Position
from ledger.view import PurgeableStore
from processors.lane import LIFECYCLE, TABLES, Lane, LaneParts, LaneStopped
from processors.ports import Records
from tests.fold.names import T0_MS, formatted
from tests.fold.refold import refold
from tests.fold.sequences import FREQUENT, POLICIES, Step, Writer, steps
from tests.tables.topic import LOG_ID, P0, TableTopic

SIGNER = Signer(b"s" * 32)


class Fate(enum.Enum):
    """What becomes of one transaction."""

    COMMITTED = enum.auto()
    LOST = enum.auto()
    """It is aborted, and the writer does not know."""
    UNACKNOWLEDGED = enum.auto()
    """It is committed, and the writer does not know."""
    FENCED = enum.auto()


class Rows(enum.Enum):
    """What a worker finds on its disk when it starts again."""

    KEPT = enum.auto()
    SET_BACK = enum.auto()
    """Unsynced writes are gone."""
    GONE = enum.auto()


class Disk(MemoryViewStore):
    """A worker's rows, and what they were before."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[MemoryViewStore] = []

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        self.copies.append(self.copy())
        super().write(changes)

    def purge(self) -> None:
        """There is no disk."""

    def stop_purging(self) -> None:
        """There is none."""

    def close(self) -> None:
        """The next worker opens it again."""

    def after_crash(self, rows: Rows) -> Disk:
        disk = Disk()
        if rows is Rows.GONE:
            return disk
        found = self.copies[-2:][0] if rows is Rows.SET_BACK and self.copies else self.copy()
        disk.__dict__.update({name: value for name, value in found.__dict__.items() if name != "copies"})
        return disk


class World:
    """What outlives workers: the log, the table and the facts."""

    def __init__(self, records: list[Record], fates: list[Fate]) -> None:
        self.records = records
        topic = self.topic = MemoryTopic(1, log_id=LOG_ID)
        for record in records:
            topic.land(P0, record.key or b"", record.value or b"", record.appended_at_ms)
        self.log = MemoryLog(topic, now_ms=lambda: 0)
        self.tables = TableTopic()
        self.facts: list[bytes | None] = []
        self.fates = fates
        self.disk = Disk()

    async def start_writer(self, partition: Partition) -> World:
        return self

    async def write(self, records: Records) -> Mapping[str, Offset]:
        await asyncio.sleep(0)
        fate = self.fates.pop(0) if self.fates else Fate.COMMITTED
        if fate is Fate.FENCED:
            raise WriterFenced("another one writes")
        if fate is Fate.LOST:
            # The broker's record of the aborted transaction takes an offset.
            self.tables.add([])
            raise AppendUncertain("lost")
        self.tables.add(list(records[TABLES]))
        self.facts += [value for _, value in records.get(LIFECYCLE, ())]
        if fate is Fate.UNACKNOWLEDGED:
            raise AppendUncertain("no answer")
        return {TABLES: Offset(self.tables.next_offset - 2)}

    async def close(self) -> None:
        pass

    def parts(self, open_store: Callable[[Partition], PurgeableStore]) -> LaneParts:
        return LaneParts(
            log=self.log,
            tables=self.tables,
            start_writer=self.start_writer,
            open_store=open_store,
            signer=SIGNER,
            now_ms=lambda: 0,
            computing=asyncio.Lock(),
        )

    async def work(self, crashes: list[Rows], batch_size: int) -> None:
        """Fold everything, starting again after every failure."""
        while True:
            lane = Lane(self.parts(lambda _: self.disk), P0)
            try:
                await lane.restore()
                position = lane.start
                while position < len(self.records):
                    part = tuple(self.records[position : position + batch_size])
                    position = Position(position + len(part))
                    await lane.fold([RecordBatch(partition=P0, records=part, next_position=position)])
            except (AppendUncertain, WriterFenced):
                self.disk = self.disk.after_crash(crashes.pop(0) if crashes else Rows.KEPT)
            else:
                return


@settings(max_examples=150)
@given(
    policy=st.sampled_from(POLICIES),
    log=steps(FREQUENT),
    fates=st.lists(st.sampled_from(Fate), min_size=5, max_size=25),
    crashes=st.lists(st.sampled_from(Rows), max_size=25),
    batch_size=st.integers(1, 8),
)
def test_whatever_happens_to_transactions_the_table_is_that_of_a_replay(
    policy: Policy, log: list[Step], fates: list[Fate], crashes: list[Rows], batch_size: int
) -> None:
    records = Writer(policy).write(log)
    world = World(records, list(fates))
    asyncio.run(world.work(list(crashes), batch_size))
    expected = refold(records)
    store = MemoryViewStore()
    (result,) = asyncio.run(bootstrap(store, world.log, world.tables, [P0]))
    assert result.refused == ""
    assert {key[2:]: row for key, row in folded_rows(store, P0)} == expected.rows
    assert {key[2:]: row for key, row in folded_rows(world.disk, P0)} == expected.rows
    facts = [encode_fact(fact) for record in expected.facts for fact in record]
    assert Counter(world.facts) == Counter(facts), "a fact is in the transaction of its rows"


FORMATTED = [
    Record(partition=P0, offset=Offset(0), appended_at_ms=T0_MS, key=b"", value=codec.encode(formatted(POLICIES[0])))
]
OLDER = (MARKER_KEY, b"\x01")
"""A marker as releases before format 2 wrote them."""
UNREADABLE_TABLES = [
    [(Kind.LIVING + bytes(28), b"alias"), OLDER],
    [(Kind.QUEUE + bytes(8) + Task.FORGET_EVENT + bytes(16), b""), OLDER],
    [(Kind.QUEUE, b""), (MARKER_KEY, b"\x02")],
    [(Kind.NODE + bytes(8), b"no row"), OLDER],
    [(Kind.LINEAGE + bytes(20), msgspec.msgpack.encode(LineageRow(principal=bytes(20), active_offset=-1))), OLDER],
    [(b"?", b"of no kind"), OLDER],
]


@pytest.mark.parametrize("older", UNREADABLE_TABLES)
def test_table_that_cannot_be_read_is_made_again_and_counts_before_it_is_compacted(
    older: list[tuple[bytes, bytes | None]],
) -> None:
    world = World(FORMATTED, [])
    world.tables.add(older)
    asyncio.run(world.work([], batch_size=1))
    store = MemoryViewStore()
    (result,) = asyncio.run(bootstrap(store, world.log, world.tables, [P0]))
    assert result.refused == ""
    assert dict(folded_rows(store, P0)) == dict(folded_rows(world.disk, P0)) != {}
    table, world.disk = list(world.tables.records), Disk()
    lane = Lane(world.parts(lambda _: world.disk), P0)
    asyncio.run(lane.restore())
    assert lane.restored_from == "tables"
    assert world.tables.records == table


@pytest.mark.parametrize("older", UNREADABLE_TABLES)
def test_table_that_cannot_be_read_is_left_when_the_log_no_longer_begins_at_its_beginning(
    older: list[tuple[bytes, bytes | None]],
) -> None:
    world = World(FORMATTED, [])
    world.topic.trim(P0, Position(1))
    world.tables.add(older)
    table = list(world.tables.records)
    lane = Lane(world.parts(lambda _: world.disk), P0)
    with pytest.raises(LaneStopped) as stopped:
        asyncio.run(lane.restore())
    assert stopped.value.reason.reason == "log_gap"
    assert world.tables.records == table


LATE_S = 10.0
"""A purge ends by itself after it, so that a lane that waits for it on the event loop fails instead of hanging."""


class SlowDisk(RocksViewStore):
    """Rows whose purge takes until ``may_end``, whatever stops it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.events: list[str] = []
        self.has_begun = Event()
        self.may_end = Event()

    def purge(self) -> None:
        with self._long_call:
            self.events.append("purge begun")
            self.has_begun.set()
            self.may_end.wait(LATE_S)
            self.events.append("purge ended")

    def close(self) -> None:
        super().close()
        self.events.append("closed")


async def purging(path: Path) -> tuple[Lane, SlowDisk, asyncio.Task[None]]:
    """Return a lane whose rows are being purged."""
    disk = SlowDisk(path)
    lane = Lane(World([], []).parts(lambda _: disk), P0)
    lane.purged.erased()
    task = asyncio.create_task(lane.purge())
    await asyncio.to_thread(disk.has_begun.wait)
    return lane, disk, task


async def turns_of_the_loop(disk: SlowDisk) -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    disk.events.append("others had their turn")


async def test_lane_that_is_closed_while_it_is_purged_leaves_the_event_loop_to_others(tmp_path: Path) -> None:
    lane, disk, task = await purging(tmp_path)
    closing = asyncio.create_task(lane.close())
    await turns_of_the_loop(disk)
    disk.may_end.set()
    await closing
    await task
    assert disk.events == ["purge begun", "others had their turn", "purge ended", "closed"]
    RocksViewStore(tmp_path).close()


class Ordered(World):
    """A world whose writer tells whether the purge had ended when it was closed."""

    def __init__(self) -> None:
        super().__init__([], [])
        self.purging: list[asyncio.Task[None]] = []
        self.was_purged: list[bool] = []

    async def close(self) -> None:
        self.was_purged.append(all(task.done() for task in self.purging))


async def test_purge_is_stopped_before_the_writer_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocks, "REMOVAL_WAIT_S", 3_600.0)
    world, store = Ordered(), RocksViewStore(tmp_path)
    store.write({b"row": b"row"})
    store.flush()
    lane = Lane(world.parts(lambda _: store), P0)
    await lane.restore()
    lane.purged.erased()
    # It waits for the scan, until it is stopped.
    scan = store.scan(b"", b"\xff")
    world.purging.append(asyncio.create_task(lane.purge()))
    await asyncio.sleep(0.2)
    assert not world.purging[0].done()
    await lane.close()
    assert world.was_purged == [True]
    with pytest.raises(PurgeStopped):
        await world.purging[0]
    del scan
    RocksViewStore(tmp_path).close()


async def test_purge_whose_caller_is_cancelled_is_waited_for_all_the_same(tmp_path: Path) -> None:
    lane, disk, task = await purging(tmp_path)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    closing = asyncio.create_task(lane.close())
    await turns_of_the_loop(disk)
    disk.may_end.set()
    await closing
    assert disk.events == ["purge begun", "others had their turn", "purge ended", "closed"]


async def test_two_purges_of_a_lane_never_overlap(tmp_path: Path) -> None:
    lane, disk, task = await purging(tmp_path)
    task.cancel()
    second = asyncio.create_task(lane.purge())
    await turns_of_the_loop(disk)
    assert lane.purged.at(Position(9)) == 0, "the first goes on"
    disk.may_end.set()
    await second
    assert not lane.purged.is_due
    await lane.purge()
    assert disk.events.count("purge begun") == 2
    await lane.close()
