"""The one reader from a position to an end: each of its policies, on the reference log."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from ledger import reading
from ledger.adapters.memory import AppendFate, AppendOutcome, MemoryLog, MemoryTopic
from ledger.errors import Unavailable
from ledger.reading import Gap, Silence, read
from ledger.turn import Partition, Position

P0 = Partition(0)


class Hiding:
    """Shows a tail only what lies below an offset."""

    def __init__(self, shown: int) -> None:
        self.shown = shown

    def append(self, partition: Partition) -> AppendFate:
        return AppendFate(outcome=AppendOutcome.DELIVERED)

    def visible(self, partition: Partition, end: Position) -> Position:
        return Position(self.shown)

    def end(self, partition: Partition) -> float | None:
        return 0.0


def log_of(count: int, *, first: int = 0, shown: int | None = None) -> MemoryLog:
    topic = MemoryTopic(1, log_id="log")
    for number in range(count):
        topic.land(P0, b"key", b"%d" % number, number)
    topic.trim(P0, Position(first))
    return MemoryLog(topic, now_ms=lambda: 0, faults=None if shown is None else Hiding(shown))


async def offsets(log: MemoryLog, start: int, end: int, **policies: Any) -> list[int]:
    records = read(log, P0, Position(start), Position(end), **policies)
    return [record.offset async for record in records]


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 1), (3, 700), (699, 700), (700, 700), (5, 4)])
async def test_reader_gives_what_lies_between_start_and_end(start: int, end: int) -> None:
    assert await offsets(log_of(800), start, end) == list(range(start, end))


async def test_gap_is_refused_or_skipped_and_a_shrunk_topic_always_refused() -> None:
    log = log_of(20, first=7)
    with pytest.raises(Unavailable, match="complete only from offset 7 on; 3 was asked for") as refused:
        await offsets(log, 3, 20)
    assert refused.value.reason == "log_gap"
    assert await offsets(log, 3, 20, gap=Gap.SKIPPED) == list(range(7, 20))
    for gap in Gap:
        with pytest.raises(Unavailable, match="it lost records") as refused:
            await offsets(log, 30, 40, gap=gap)
        assert refused.value.reason == "log_diverged"


async def test_silence_below_the_end_is_refused_ends_the_reading_or_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "WAIT_S", 0.01)
    log = log_of(20, shown=5)
    with pytest.raises(Unavailable, match="gives nothing from 5 on, its end is 20"):
        await offsets(log, 0, 20, silence_max_s=0.03)
    assert await offsets(log, 0, 20, silence=Silence.ENDS, silence_max_s=0.03) == [0, 1, 2, 3, 4]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await offsets(log, 0, 20, silence=Silence.WAITED_FOR, silence_max_s=0.03)


async def test_others_get_their_turn_while_much_is_read() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    running = asyncio.create_task(other())
    async with aclosing(read(log_of(200), P0, Position(0), Position(200), at_once=10)) as records:
        assert len([record async for record in records]) == 200
    running.cancel()
    assert turns >= 19
