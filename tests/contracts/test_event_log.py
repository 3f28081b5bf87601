"""Contract of the port ``EventLog``, on every adapter."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ledger.errors import Unavailable
from ledger.log import EventLog, LogGap
from ledger.turn import Partition, Position
from tests.contracts.harness import P0, P1, TIMEOUT_S, LogHarness, read


async def append(log: EventLog, count: int, *, partition: Partition = P0, name: str = "value") -> None:
    for number in range(count):
        await log.append(partition, b"key", f"{name}-{number}".encode(), timeout_s=TIMEOUT_S)


async def test_acknowledged_append_is_read_back_at_its_offset(log_harness: LogHarness) -> None:
    log = await log_harness.start()
    await append(log, 3)
    appended = await log.append(P0, b"\x00\xffkey", b"\x00\xffvalue", timeout_s=TIMEOUT_S)
    (record,) = await read(log, {P0: Position(appended.offset)}, 1)
    assert record.offset == appended.offset == 3
    assert record.appended_at_ms == appended.appended_at_ms > 0
    assert (record.partition, record.key, record.value) == (P0, b"\x00\xffkey", b"\x00\xffvalue")


async def test_empty_value_is_not_an_erasure(log_harness: LogHarness) -> None:
    log = await log_harness.start()
    await log.append(P0, b"key", b"", timeout_s=TIMEOUT_S)
    (record,) = await read(log, {P0: Position(0)}, 1)
    assert record.value == b""


async def test_acknowledged_appends_survive_a_restart(log_harness: LogHarness) -> None:
    await append(await log_harness.start(), 5)
    log = await log_harness.start()
    assert await log.end(P0, timeout_s=TIMEOUT_S) == 5
    records = await read(log, {P0: Position(0)}, 5)
    assert [record.value for record in records] == [b"value-%d" % number for number in range(5)]
    assert (await log.append(P0, b"key", b"next", timeout_s=TIMEOUT_S)).offset == 5


async def test_two_appends_of_one_task_keep_their_order(log_harness: LogHarness) -> None:
    log = await log_harness.start()

    async def writer(name: str) -> None:
        await append(log, 20, name=name)

    await asyncio.gather(writer("a"), writer("b"), writer("c"))
    values = [record.value for record in await read(log, {P0: Position(0)}, 60)]
    for name in ("a", "b", "c"):
        expected = [f"{name}-{number}".encode() for number in range(20)]
        assert [value for value in values if value in expected] == expected


async def test_concurrent_appends_have_an_offset_each_and_leave_no_holes(log_harness: LogHarness) -> None:
    log = await log_harness.start()
    values = [b"value-%d" % number for number in range(100)]
    appended = await asyncio.gather(*(log.append(P0, b"key", value, timeout_s=TIMEOUT_S) for value in values))
    assert sorted(one.offset for one in appended) == list(range(100))
    by_offset = {record.offset: record.value for record in await read(log, {P0: Position(0)}, 100)}
    assert [by_offset[one.offset] for one in appended] == values


async def test_cancelled_append_harms_no_other(log_harness: LogHarness) -> None:
    log = await log_harness.start()
    cancelled = asyncio.create_task(log.append(P0, b"key", b"cancelled", timeout_s=TIMEOUT_S))
    others = [asyncio.create_task(log.append(P0, b"key", b"other", timeout_s=TIMEOUT_S)) for _ in range(3)]
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    offsets = [appended.offset for appended in await asyncio.gather(*others)]
    last = await log.append(P0, b"key", b"last", timeout_s=TIMEOUT_S)
    values = {record.offset: record.value for record in await read(log, {P0: Position(0)}, last.offset + 1)}
    assert [values[offset] for offset in offsets] == [b"other"] * 3
    assert values[last.offset] == b"last"


@pytest.mark.parametrize("position", [0, 1, 5, 9])
async def test_tail_begins_at_its_position(log_harness: LogHarness, position: int) -> None:
    log = await log_harness.start()
    await append(log, 10)
    records = await read(log, {P0: Position(position)}, 10 - position)
    assert [record.offset for record in records] == list(range(position, 10))


async def test_tail_at_the_end_sees_only_what_comes_after(log_harness: LogHarness) -> None:
    log = await log_harness.start()
    await append(log, 3)
    tail = await log.tail({P0: await log.end(P0, timeout_s=TIMEOUT_S)})
    waiting = asyncio.create_task(tail.next(TIMEOUT_S))
    await asyncio.sleep(0)
    appended = await log.append(P0, b"key", b"later", timeout_s=TIMEOUT_S)
    batches = await waiting
    assert [(record.offset, record.value) for batch in batches for record in batch.records] == [
        (appended.offset, b"later")
    ]
    assert batches[0].next_position == appended.offset + 1
    await tail.close()


@pytest.mark.parametrize("wait_s", [0.0, 0.01])
async def test_tail_returns_nothing_when_nothing_comes(log_harness: LogHarness, wait_s: float) -> None:
    log = await log_harness.start()
    tail = await log.tail({P0: Position(0)})
    assert await tail.next(wait_s) == []
    await append(log, 1)
    while not (batches := await tail.next(TIMEOUT_S)):
        pass
    assert [record.offset for record in batches[0].records] == [0]
    await tail.close()


async def test_one_read_returns_a_few_hundred_records_at_most(log_harness: LogHarness) -> None:
    log = await log_harness.start()
    await asyncio.gather(*(log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S) for _ in range(1_200)))
    tail = await log.tail({P0: Position(0)})
    seen = 0
    while seen < 1_200:
        count = sum(len(batch.records) for batch in await tail.next(TIMEOUT_S))
        assert count <= 1_000
        seen += count
    await tail.close()


async def test_tails_do_not_share_their_positions(log_harness: LogHarness) -> None:
    log = await log_harness.start()
    await append(log, 4)
    assert len(await read(log, {P0: Position(0)}, 4)) == 4
    assert len(await read(log, {P0: Position(2)}, 2)) == 2
    assert len(await read(log, {P0: Position(0)}, 4)) == 4


async def test_each_partition_has_an_order_of_its_own(partitioned_log_harness: LogHarness) -> None:
    log = await partitioned_log_harness.start()
    await append(log, 3, partition=P0, name="zero")
    await append(log, 2, partition=P1, name="one")
    assert await log.end(P0, timeout_s=TIMEOUT_S) == 3
    assert await log.end(P1, timeout_s=TIMEOUT_S) == 2
    records = await read(log, {P0: Position(1), P1: Position(0)}, 4)
    assert [record.value for record in records if record.partition == P0] == [b"zero-1", b"zero-2"]
    assert [record.value for record in records if record.partition == P1] == [b"one-0", b"one-1"]


async def test_tail_reads_only_the_partitions_it_names(partitioned_log_harness: LogHarness) -> None:
    log = await partitioned_log_harness.start()
    await append(log, 1, partition=P0)
    await append(log, 1, partition=P1)
    records = await read(log, {P1: Position(0)}, 1)
    assert [record.partition for record in records] == [P1]


async def next_until_gap(log: EventLog, position: Position) -> LogGap:
    tail = await log.tail({P0: position})
    try:
        while True:
            # An adapter may notice the gap only when it has asked the log.
            assert await tail.next(TIMEOUT_S) == []
    except LogGap as gap:
        return gap
    finally:
        await tail.close()


async def test_position_beyond_the_end_is_a_gap(log_harness: LogHarness) -> None:
    log = await log_harness.start()
    await append(log, 2)
    gap = await next_until_gap(log, Position(3))
    assert (gap.partition, gap.position, gap.first, gap.end) == (P0, 3, 0, 2)


async def test_position_below_the_first_record_is_a_gap(log_harness: LogHarness) -> None:
    log = await log_harness.start()
    await append(log, 5)
    await log_harness.trim(P0, Position(3))
    gap = await next_until_gap(log, Position(2))
    assert (gap.partition, gap.position, gap.first, gap.end) == (P0, 2, 3, 5)


async def test_trimmed_log_begins_above_zero_and_keeps_its_offsets(log_harness: LogHarness) -> None:
    log = await log_harness.start()
    await append(log, 5)
    await log_harness.trim(P0, Position(3))
    records = await read(log, {P0: Position(3)}, 2)
    assert [(record.offset, record.value) for record in records] == [(3, b"value-3"), (4, b"value-4")]


async def test_log_says_where_it_begins(log_harness: LogHarness) -> None:
    log = await log_harness.start()
    await append(log, 5)
    assert await log.first(P0, timeout_s=TIMEOUT_S) == 0
    await log_harness.trim(P0, Position(3))
    assert await log.first(P0, timeout_s=TIMEOUT_S) == 3
    assert await (await log_harness.start()).first(P0, timeout_s=TIMEOUT_S) == 3


async def test_log_trimmed_to_its_end_goes_on_counting(log_harness: LogHarness) -> None:
    await append(await log_harness.start(), 4)
    await log_harness.trim(P0, Position(4))
    log = await log_harness.start()
    assert await log.end(P0, timeout_s=TIMEOUT_S) == 4
    assert (await log.append(P0, b"key", b"only", timeout_s=TIMEOUT_S)).offset == 4
    (record,) = await read(log, {P0: Position(4)}, 1)
    assert record.value == b"only"


async def test_trim_survives_a_restart(log_harness: LogHarness) -> None:
    await append(await log_harness.start(), 4)
    await log_harness.trim(P0, Position(2))
    gap = await next_until_gap(await log_harness.start(), Position(1))
    assert (gap.first, gap.end) == (2, 4)


async def test_empty_partition_ends_at_zero(log_harness: LogHarness) -> None:
    log = await log_harness.start()
    assert await log.end(P0, timeout_s=TIMEOUT_S) == 0


async def test_end_lies_above_every_acknowledged_append_and_never_goes_back(log_harness: LogHarness) -> None:
    log = await log_harness.start()
    highest = Position(0)
    for _ in range(10):
        appended = await log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S)
        end = await log.end(P0, timeout_s=TIMEOUT_S)
        assert end > appended.offset
        assert end >= highest
        highest = end


async def test_manifest_is_the_same_after_a_restart(log_harness: LogHarness) -> None:
    before = await (await log_harness.start()).manifest(timeout_s=TIMEOUT_S)
    after = await (await log_harness.start()).manifest(timeout_s=TIMEOUT_S)
    assert before == after
    assert before.partition_count == log_harness.partition_count
    assert before.log_id


async def test_recreated_log_is_empty_and_has_another_identity(log_harness: LogHarness) -> None:
    log = await log_harness.start()
    await append(log, 1)
    before = await log.manifest(timeout_s=TIMEOUT_S)
    await log_harness.recreate()
    log = await log_harness.start()
    after = await log.manifest(timeout_s=TIMEOUT_S)
    assert after.log_id != before.log_id
    assert await log.end(P0, timeout_s=TIMEOUT_S) == 0


CALLS: dict[str, Callable[[EventLog], Awaitable[object]]] = {
    "append": lambda log: log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S),
    "tail": lambda log: log.tail({P0: Position(0)}),
    "end": lambda log: log.end(P0, timeout_s=TIMEOUT_S),
    "manifest": lambda log: log.manifest(timeout_s=TIMEOUT_S),
}


@pytest.mark.parametrize("call", CALLS)
async def test_closed_log_says_so(log_harness: LogHarness, call: str) -> None:
    log = await log_harness.start()
    await log.close()
    with pytest.raises(Unavailable) as refused:
        await CALLS[call](log)
    assert refused.value.reason == "closed"


async def test_log_is_closed_twice_without_harm(log_harness: LogHarness) -> None:
    log = await log_harness.start()
    await log.close()
    await log.close()
