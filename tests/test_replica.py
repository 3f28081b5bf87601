"""What a process says when its own view has failed: the reason, at once, and never an answer."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import replica, report
from ledger.adapters.memory import MemoryContents, MemoryContentStore, MemoryLog, MemoryTopic, MemoryViewStore
from ledger.alias import AliasKey
from ledger.errors import RetryableError, Unavailable
from ledger.fold import fold
from ledger.ledger import Ledger, wall_clock_ms
from ledger.log import Record, RecordBatch
from ledger.policy import Policy
from ledger.replica import Replica
from ledger.table import Rows, folded_rows
from ledger.turn import Owner, Position, Scope, Selector, SelectorKind, Turn
from ledger.verdict import Code, Outcome
from tests.fold.given import World
from tests.fold.names import P0, SECOND_MS


def busy_log() -> list[Record]:
    """Return turns of few conversations, ticks that carry out hundreds of tasks, an erasure, and turns again."""
    world = World()
    for number in range(60):
        world.turn(f"resp_{number}", conversation=f"conv_{number % 7}")
    world.wait(world.policy.active_ttl_ms / SECOND_MS * 2)
    for _ in range(10):
        world.tick()
    for number in range(60, 90):
        world.turn(f"resp_{number}", conversation=f"conv_{number % 7}")
    world.erase()
    for _ in range(20):
        world.tick()
    for number in range(90, 120):
        world.turn(f"resp_{number}", conversation=f"conv_{number % 7}")
    return world.records


BUSY = busy_log()


@given(
    sizes=st.lists(st.integers(0, 25), min_size=1, max_size=20),
    records_max=st.integers(1, 20),
    changes_max=st.integers(1, 80),
    at_once=st.integers(1, 4),
)
def test_view_has_the_rows_of_a_plain_fold_however_its_rounds_were_cut(
    sizes: list[int], records_max: int, changes_max: int, at_once: int
) -> None:
    store = MemoryViewStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica, "FOLD_BATCH_RECORDS_MAX", records_max)
        patch.setattr(replica, "FOLD_BATCH_CHANGES_MAX", changes_max)
        patch.setattr(report, "ALIGNED_RECORDS", 13)
        offsets, places = asyncio.run(folded_in_batches(store, sizes, at_once))
    assert offsets == [record.offset for record in BUSY]
    assert places == [
        before.offset for before, after in itertools.pairwise(BUSY) if before.offset // 13 != after.offset // 13
    ]
    plain = MemoryViewStore()
    rows = Rows(plain, P0)
    for record in BUSY:
        fold(rows, record)
    plain.write(rows.changes())
    assert list(folded_rows(store, P0)) == list(folded_rows(plain, P0))


async def folded_in_batches(store: MemoryViewStore, sizes: list[int], at_once: int) -> tuple[list[int], list[int]]:
    """Fold the busy log in batches of these sizes, some in one read; return the offsets folded and the aligned
    places at which the rows stood."""
    offsets: list[int] = []
    places: list[int] = []
    log = MemoryLog(MemoryTopic(1, log_id="log"), now_ms=wall_clock_ms)
    view = Replica(log, store, on_outcome=lambda record, _: offsets.append(record.offset))
    await view.start(timeout_s=5.0)
    # Its own tail would find an empty log.
    await view.stop()
    rows = view.rows(P0)
    view.on_aligned = lambda _: places.append(rows.stored_meta.anchor_offset)
    start, cycle = 0, itertools.cycle([*sizes, 1])
    while start < len(BUSY):
        batches = []
        for _ in range(at_once):
            records = tuple(BUSY[start : start + next(cycle)])
            start += len(records)
            batches.append(
                RecordBatch(partition=P0, records=records, next_position=Position(BUSY[start - 1].offset + 1))
            )
        await view._fold_batches([batch for batch in batches if batch.records])
    return offsets, places


SCOPE = Scope(namespace="n", route="r", principal="p")
RESPONSE = Selector(scope=SCOPE, kind=SelectorKind.RESPONSE, id="resp_1")


def turn(response_id: str) -> Turn:
    return Turn(
        scope=SCOPE,
        event_id=response_id,
        response_id=response_id,
        owner=Owner(native=True, target="provider-a"),
        begun_at_ms=wall_clock_ms(),
    )


def fails_at_turns(_: Record, outcome: Outcome) -> None:
    """An observer with a defect: it takes the tail's task with it."""
    assert outcome.code is not Code.ACCEPTED or outcome.event_id is None, "a defect of the observer"


async def test_view_that_met_a_defect_says_so_instead_of_lagging() -> None:
    ledger = Ledger(
        MemoryLog(MemoryTopic(1, log_id="log"), now_ms=wall_clock_ms),
        MemoryContentStore(MemoryContents(), now_ms=wall_clock_ms),
        MemoryViewStore(),
        AliasKey(b"k" * 32),
        on_outcome=fails_at_turns,
    )
    await ledger.start(format_policy=Policy())
    try:
        await ledger.committer.commit(turn("resp_1"))
        with pytest.raises(RetryableError):
            await ledger.committer.commit(turn("resp_2"), timeout_s=1.0)
        with pytest.raises(Unavailable) as refused:
            await ledger.reader.load(RESPONSE)
        assert refused.value.reason == "defect"
        assert "defect" in ledger.not_ready_reason()
    finally:
        await ledger.close()
