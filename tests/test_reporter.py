"""Where processes stop to be compared, what they report then, and when: with reports in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ledger import replica_reporter, reporter
from ledger.adapters.memory import MemoryLog, MemoryTopic, MemoryViewStore
from ledger.disk import DiskUse
from ledger.errors import InvalidInput, StoreFailed, Unavailable
from ledger.log import Record
from ledger.replica import Replica
from ledger.replica_reporter import Digests, digested
from ledger.report import (
    ALIGNED_RECORDS,
    NAME_CHARACTERS_MAX,
    Report,
    ReporterKind,
    RowsStatement,
    decode_report,
    first_piece,
    is_crossing,
)
from ledger.reporter import REPORTER_FILE, Holding, Identity, Reporter, Standing, name_or_host, reporter_id_in
from ledger.rows import Kind, MetaRow
from ledger.tables import digest_of
from ledger.turn import Offset, Partition, Position

P0 = Partition(0)
EDGE = ALIGNED_RECORDS


@pytest.mark.parametrize(
    ("before", "offset", "crosses"),
    [
        (-1, 0, False),
        (-1, EDGE, False),
        (0, EDGE - 1, False),
        (EDGE - 2, EDGE - 1, False),
        (EDGE - 1, EDGE, True),
        # Control records take offsets, and nobody sees them.
        (EDGE - 3, EDGE + 2, True),
        (EDGE, EDGE + 1, False),
        (EDGE, 2 * EDGE, True),
    ],
)
def test_aligned_place_lies_where_offsets_reach_a_multiple(before: int, offset: int, crosses: bool) -> None:
    assert is_crossing(before, offset) is crosses


def records(*offsets: int) -> list[Record]:
    return [Record(partition=P0, offset=Offset(one), appended_at_ms=0, key=b"k", value=b"v") for one in offsets]


@pytest.mark.parametrize(
    ("offsets", "start", "size", "expected"),
    [
        ([5, 6, 7], 0, 2, [5, 6]),
        ([5, 6, 7], 2, 9, [7]),
        ([5, 6, 7], 3, 9, []),
        ([EDGE - 2, EDGE - 1, EDGE, EDGE + 1], 0, 9, [EDGE - 2, EDGE - 1]),
        ([EDGE - 2, EDGE - 1, EDGE, EDGE + 1], 0, 2, [EDGE - 2, EDGE - 1]),
        ([EDGE - 2, EDGE - 1, EDGE, EDGE + 1], 2, 9, [EDGE, EDGE + 1]),
        ([EDGE - 5, EDGE + 3, 2 * EDGE], 0, 9, [EDGE - 5]),
    ],
)
def test_no_piece_has_an_aligned_place_within(offsets: list[int], start: int, size: int, expected: list[int]) -> None:
    assert [record.offset for record in first_piece(records(*offsets), start, size)] == expected


def test_reporter_id_is_made_once_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    made = reporter_id_in(tmp_path / "state")
    assert len(made) == 16
    assert reporter_id_in(tmp_path / "state") == made
    assert reporter_id_in(tmp_path / "other") != made
    for damaged in ("", "zz", "00" * 15):
        (tmp_path / "state" / REPORTER_FILE).write_text(damaged)
        with pytest.raises(InvalidInput, match=r"reporter\.id"):
            reporter_id_in(tmp_path / "state")


def test_name_of_a_reporter_has_its_bound() -> None:
    assert name_or_host(None)
    assert name_or_host("x" * NAME_CHARACTERS_MAX) == "x" * NAME_CHARACTERS_MAX
    for wrong in ("", "x" * (NAME_CHARACTERS_MAX + 1)):
        with pytest.raises(InvalidInput, match="reporter_name"):
            name_or_host(wrong)


class Topic:
    """Reports that were written; away for as long as a test says."""

    def __init__(self) -> None:
        self.written: list[Report | None] = []
        self.is_away = False

    async def write(self, partition: Partition, key: bytes, value: bytes | None, *, timeout_s: float) -> None:
        await asyncio.sleep(0)
        if self.is_away:
            raise Unavailable("broker", "no broker")
        self.written.append(None if value is None else decode_report(value))

    async def close(self) -> None:
        pass


class Held:
    """One partition, moved by the test."""

    def __init__(self) -> None:
        self.position = 1
        self.purged = 1

    def standing(self, rows: RowsStatement | None = None) -> Standing:
        return Standing(MetaRow(position=self.position, anchor_offset=self.position - 1), "log", rows)

    def holdings(self) -> dict[Partition, Holding]:
        return {P0: Holding(self.standing(), Position(self.purged), None)}


@asynccontextmanager
async def reporting(topic: Topic, held: Held, *, interval_s: float = 1_000.0) -> AsyncIterator[Reporter]:
    identity = Identity(id=b"i" * 16, kind=ReporterKind.WORKER, name="one", interval_s=interval_s)
    running = Reporter(identity, topic, held.holdings, now_ms=lambda: 5)
    await running.start()
    yield running
    await running.close()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "LOOK_INTERVAL_S", 0.01)
    monkeypatch.setattr(reporter, "RETRY_PAUSE_S", 0.02)
    monkeypatch.setattr(reporter, "PAUSE_S", 0.05)


async def written(topic: Topic, count: int) -> list[Report | None]:
    async with asyncio.timeout(20):
        while len(topic.written) < count:  # noqa: ASYNC110 - the topic tells nobody
            await asyncio.sleep(0.01)
    return topic.written


@pytest.mark.usefixtures("fast")
async def test_report_is_made_at_once_when_idle_at_aligned_places_and_when_a_disk_was_purged() -> None:
    topic, held = Topic(), Held()
    async with reporting(topic, held) as running:
        await written(topic, 1)
        held.position = 5
        await written(topic, 2)
        held.purged = 5
        await written(topic, 3)
        await asyncio.sleep(0.2)
        assert len(topic.written) == 3, "nothing is new"
        running.aligned(P0, held.standing())
        running.digested(P0, held.standing(RowsStatement(b"d" * 32, 3)))
        await written(topic, 5)
        await running.withdraw(P0)
    found = [
        None if one is None else (one.position, one.purged_position, one.rows is not None) for one in topic.written
    ]
    assert found[:6] == [(1, 1, False), (5, 1, False), (5, 5, False), (5, 5, True), (5, 5, False), None]


@pytest.mark.usefixtures("fast")
async def test_partition_that_is_held_no_more_is_withdrawn_as_soon_as_that_can_be_written() -> None:
    topic, held = Topic(), Held()
    topic.is_away = True
    async with reporting(topic, held) as running:
        running.give_up([Partition(1)])
        await asyncio.sleep(0.1)
        assert topic.written == []
        topic.is_away = False
        await written(topic, 2)
    assert [None if one is None else one.position for one in topic.written] == [None, 1]


@pytest.mark.usefixtures("fast")
async def test_rows_that_cannot_be_read_for_a_moment_do_not_silence_a_reporter() -> None:
    topic, held = Topic(), Held()
    failures = iter([StoreFailed("the disk is full")])

    def holdings() -> dict[Partition, Holding]:
        if (failure := next(failures, None)) is not None:
            raise failure
        return held.holdings()

    identity = Identity(id=b"i" * 16, kind=ReporterKind.WORKER, name="one", interval_s=1_000.0)
    running = Reporter(identity, topic, holdings, now_ms=lambda: 5)
    await running.start()
    await written(topic, 1)
    await running.close()


@pytest.mark.usefixtures("fast")
async def test_report_is_made_once_per_interval_and_what_could_not_be_written_is_written_later() -> None:
    topic, held = Topic(), Held()
    topic.is_away = True
    async with reporting(topic, held, interval_s=0.1) as running:
        running.digested(P0, held.standing(RowsStatement(b"d" * 32, 3)))
        await asyncio.sleep(0.2)
        assert topic.written == []
        topic.is_away = False
        first, *_ = await written(topic, 4)
        assert first is not None
        assert first.rows is not None


def store_of(count: int) -> MemoryViewStore:
    store = MemoryViewStore()
    rows: dict[bytes, bytes | None] = {b"\0\0" + Kind.RESPONSE + b"%05d" % number: b"row" for number in range(count)}
    # Rows of this process alone, and another partition's.
    store.write(rows | {b"\0\0\xfe": b"local", b"\0\1" + Kind.RESPONSE: b"row"})
    return store


@pytest.mark.parametrize("count", [0, 1, 199, 200, 201, 1_000])
async def test_digest_of_a_scan_is_that_of_the_table_while_rows_change(count: int) -> None:
    store = store_of(count)
    expected = digest_of(store, P0)
    scan = store.scan(b"\0\0", b"\0\0\xff")
    reading = asyncio.create_task(digested(scan))
    await asyncio.sleep(0)
    store.write({b"\0\0" + Kind.RESPONSE + b"99999": b"later", b"\0\0" + Kind.RESPONSE + b"00000": None})
    assert await reading == RowsStatement(*expected)


async def test_digest_waits_for_a_purge_and_for_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_reporter, "DIGEST_ROWS", 1)
    replica = Replica(MemoryLog(MemoryTopic(2, log_id="log"), now_ms=lambda: 0), store_of(5))
    await replica.start(timeout_s=5)
    held, topic, use = Held(), Topic(), DiskUse()
    digests = Digests(replica, use, interval_s=0.001)
    assert not digests.is_due(P0), "it is as old as this process"
    await asyncio.sleep(0.01)
    for name in ("is_purging", "is_purge_due", "is_scanning"):
        setattr(use, name, True)
        assert not digests.is_due(P0)
        setattr(use, name, False)
    async with reporting(topic, held) as running:
        assert digests.is_due(P0)
        digests.begin(P0, held.standing(), running)
        assert use.is_scanning
        assert not digests.is_due(Partition(1))
        async with asyncio.timeout(20):
            while not digests.digests_count:  # noqa: ASYNC110 - a counter tells nobody
                await asyncio.sleep(0.01)
    await digests.close()
    await replica.stop()


async def test_digest_whose_store_is_closed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(500)
    scan = store.scan(b"\0\0", b"\0\0\xff")
    reading = asyncio.create_task(digested(scan))
    await asyncio.sleep(0)
    store.close()
    with pytest.raises(StoreFailed):
        await reading
