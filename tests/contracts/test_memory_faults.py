"""The faults of the memory adapters, which the simulation is built from: each does what its name says."""

import asyncio
from dataclasses import dataclass, field

import pytest

from ledger.adapters.memory import (
    AppendFate,
    AppendOutcome,
    MemoryContents,
    MemoryContentStore,
    MemoryLog,
    MemoryTopic,
    MemoryViewStore,
)
from ledger.errors import ContentLost, StoreFailed, Unavailable
from ledger.log import AppendUncertain, LogGap
from ledger.turn import Partition, Position
from tests.contracts.harness import P0, P1, TIMEOUT_S, read, ticking_clock


@dataclass
class ScriptedFaults:
    """Answers from a script; what it does not name goes well."""

    fates: list[AppendFate] = field(default_factory=list)
    visible_to: int | None = None
    end_after_s: float | None = 0.0
    chunks_landing: int | None = None

    def append(self, partition: Partition) -> AppendFate:
        return self.fates.pop(0) if self.fates else AppendFate(outcome=AppendOutcome.DELIVERED)

    def visible(self, partition: Partition, end: Position) -> Position:
        return end if self.visible_to is None else Position(min(self.visible_to, end))

    def end(self, partition: Partition) -> float | None:
        return self.end_after_s

    def put(self, partition: Partition, chunks: int) -> int | None:
        return self.chunks_landing


@pytest.fixture
def topic() -> MemoryTopic:
    return MemoryTopic(2, log_id="first")


def faulty(topic: MemoryTopic, faults: ScriptedFaults) -> MemoryLog:
    return MemoryLog(topic, now_ms=ticking_clock(), faults=faults)


def fate(outcome: AppendOutcome, delay_s: float = 0.0) -> list[AppendFate]:
    return [AppendFate(outcome=outcome, delay_s=delay_s)]


async def test_refused_append_is_not_in_the_log(topic: MemoryTopic) -> None:
    log = faulty(topic, ScriptedFaults(fates=fate(AppendOutcome.REFUSED)))
    with pytest.raises(Unavailable):
        await log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S)
    assert topic.end(P0) == 0


async def test_unacknowledged_append_is_in_the_log(topic: MemoryTopic) -> None:
    log = faulty(topic, ScriptedFaults(fates=fate(AppendOutcome.UNACKNOWLEDGED)))
    with pytest.raises(AppendUncertain):
        await log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S)
    assert topic.end(P0) == 1


async def test_acknowledgement_later_than_the_timeout_is_uncertain(topic: MemoryTopic) -> None:
    log = faulty(topic, ScriptedFaults(fates=fate(AppendOutcome.DELIVERED, delay_s=60.0)))
    with pytest.raises(AppendUncertain):
        await log.append(P0, b"key", b"value", timeout_s=0.0)
    assert topic.end(P0) == 1


async def test_late_append_lands_behind_what_came_after_it(topic: MemoryTopic) -> None:
    log = faulty(topic, ScriptedFaults(fates=fate(AppendOutcome.LATE, delay_s=0.01)))
    with pytest.raises(AppendUncertain):
        await log.append(P0, b"key", b"late", timeout_s=0.0)
    await log.append(P0, b"key", b"after", timeout_s=TIMEOUT_S)
    await log.close()
    other = MemoryLog(topic, now_ms=ticking_clock())
    assert [record.value for record in await read(other, {P0: Position(0)}, 2)] == [b"after", b"late"]


async def test_late_append_never_lands_in_a_recreated_log(topic: MemoryTopic) -> None:
    log = faulty(topic, ScriptedFaults(fates=fate(AppendOutcome.LATE)))
    with pytest.raises(AppendUncertain):
        await log.append(P0, b"key", b"late", timeout_s=-1.0)
    topic.recreate(log_id="second")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert topic.end(P0) == 0
    assert (await log.manifest(timeout_s=TIMEOUT_S)).log_id == "second"


async def test_duplicated_append_lands_twice(topic: MemoryTopic) -> None:
    log = faulty(topic, ScriptedFaults(fates=fate(AppendOutcome.DUPLICATED)))
    appended = await log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S)
    assert appended.offset == 1
    assert [record.value for record in await read(log, {P0: Position(0)}, 2)] == [b"value", b"value"]


async def test_append_time_is_what_the_clock_says_also_when_it_steps_back(topic: MemoryTopic) -> None:
    times = iter([2_000, 1_000])
    log = MemoryLog(topic, now_ms=lambda: next(times))
    for _ in range(2):
        await log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S)
    assert [record.appended_at_ms for record in await read(log, {P0: Position(0)}, 2)] == [2_000, 1_000]


async def test_replicas_share_a_topic_and_one_may_see_less(topic: MemoryTopic) -> None:
    faults = ScriptedFaults(visible_to=1)
    behind, ahead = faulty(topic, faults), MemoryLog(topic, now_ms=ticking_clock())
    for _ in range(3):
        await ahead.append(P0, b"key", b"value", timeout_s=TIMEOUT_S)
    tail = await behind.tail({P0: Position(0)})
    (batch,) = await tail.next(TIMEOUT_S)
    assert batch.next_position == 1
    assert await tail.next(0.01) == []
    assert await behind.end(P0, timeout_s=TIMEOUT_S) == 3
    faults.visible_to = 0
    assert await tail.next(0.0) == []
    faults.visible_to = None
    (batch,) = await tail.next(TIMEOUT_S)
    assert [record.offset for record in batch.records] == [1, 2]
    assert len(await read(ahead, {P0: Position(0)}, 3)) == 3


async def test_hidden_records_are_seen_when_the_fault_ends_without_a_new_append(topic: MemoryTopic) -> None:
    faults = ScriptedFaults(visible_to=0)
    log = faulty(topic, faults)
    await log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S)
    tail = await log.tail({P0: Position(0)})
    waiting = asyncio.create_task(tail.next(TIMEOUT_S))
    await asyncio.sleep(0)
    faults.visible_to = None
    assert len(await waiting) == 1


async def test_lagging_replica_of_a_trimmed_log_reads_nothing_wrong(topic: MemoryTopic) -> None:
    log = faulty(topic, ScriptedFaults(visible_to=1))
    for _ in range(5):
        await log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S)
    topic.trim(P0, Position(3))
    tail = await log.tail({P0: Position(3)})
    assert await tail.next(0.0) == []


async def test_end_may_be_slow_or_unanswered(topic: MemoryTopic) -> None:
    faults = ScriptedFaults(end_after_s=60.0)
    log = faulty(topic, faults)
    with pytest.raises(Unavailable) as slow:
        await log.end(P0, timeout_s=0.0)
    assert slow.value.reason == "deadline"
    faults.end_after_s = None
    with pytest.raises(Unavailable) as unanswered:
        await log.end(P0, timeout_s=0.0)
    assert unanswered.value.reason == "leader"


async def test_busy_partition_does_not_starve_another(topic: MemoryTopic) -> None:
    log = MemoryLog(topic, now_ms=ticking_clock())
    for _ in range(1_000):
        await log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S)
    await log.append(P1, b"key", b"value", timeout_s=TIMEOUT_S)
    tail = await log.tail({P0: Position(0), P1: Position(0)})
    assert {batch.partition for batch in await tail.next(TIMEOUT_S)} == {P0, P1}


async def test_running_tail_meets_a_recreated_log_as_a_gap_or_as_other_records(topic: MemoryTopic) -> None:
    log = MemoryLog(topic, now_ms=ticking_clock())
    await log.append(P0, b"key", b"old", timeout_s=TIMEOUT_S)
    tail = await log.tail({P0: Position(1)})
    topic.recreate(log_id="second")
    with pytest.raises(LogGap):
        await tail.next(TIMEOUT_S)
    for value in (b"new-0", b"new-1"):
        await log.append(P0, b"key", value, timeout_s=TIMEOUT_S)
    (batch,) = await tail.next(TIMEOUT_S)
    assert [record.value for record in batch.records] == [b"new-1"]


async def test_failed_put_leaves_orphans(topic: MemoryTopic) -> None:
    contents = MemoryContents()
    faults = ScriptedFaults(chunks_landing=2)
    store = MemoryContentStore(contents, now_ms=ticking_clock(), faults=faults)
    with pytest.raises(Unavailable):
        await store.put(P0, b"s" * 20, b"i" * 16, [b"0", b"1", b"2"], timeout_s=TIMEOUT_S)
    assert contents.end(P0) == 2


async def test_lagging_copy_still_has_what_was_erased_and_lacks_what_was_put() -> None:
    contents = MemoryContents()
    faults = ScriptedFaults()
    ahead = MemoryContentStore(contents, now_ms=ticking_clock())
    behind = MemoryContentStore(contents, now_ms=ticking_clock(), faults=faults)
    ref = await ahead.put(P0, b"s" * 20, b"i" * 16, [b"chunk"], timeout_s=TIMEOUT_S)
    faults.visible_to = 0
    with pytest.raises(Unavailable) as unavailable:
        await behind.get(P0, ref, timeout_s=0.01)
    assert unavailable.value.reason == "content_lag"
    await ahead.erase(P0, [ref], timeout_s=TIMEOUT_S)
    faults.visible_to = 1
    assert await behind.get(P0, ref, timeout_s=TIMEOUT_S) == [b"chunk"]
    faults.visible_to = None
    with pytest.raises(ContentLost):
        await behind.get(P0, ref, timeout_s=TIMEOUT_S)


def test_copied_rows_are_what_a_crash_left_behind() -> None:
    store = MemoryViewStore()
    store.write({b"a": b"1"})
    left = store.copy()
    store.write({b"a": b"2", b"b": b"2"})
    store.close()
    assert list(left.scan(b"", b"z")) == [(b"a", b"1")]
    with pytest.raises(StoreFailed):
        store.get(b"a")
