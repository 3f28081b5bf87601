"""The fold's ordered entries: what a scan returns, and that working a queue off does not read what was deleted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledger.adapters.memory import MemoryViewStore
from ledger.fold import fold
from ledger.index import FLOORS_MAX, Index
from ledger.lifecycle import QUEUE_TASKS_MAX
from ledger.partition import COUNT_EVERY_RECORDS, Part, PartitionState, fold_part
from ledger.policy import Policy
from ledger.table import Rows, folded_rows
from ledger.turn import Position
from tests.fold.given import World
from tests.fold.names import P0, SECOND_MS
from tests.fold.sequences import POLICIES, Step, Writer, steps

PREFIX = b"\0\0q"
LAST = b"\xff" * 4
CHANGES_PER_TASK_MAX = 8
"""A response that ends changes its row, its queue entry, three indexes, and the rows of what it belongs to."""

keys = st.builds(lambda group, number: group + bytes([number]), st.sampled_from([b"a", b"b"]), st.integers(0, 12))
actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys),
        st.tuples(st.just("delete"), keys),
        st.tuples(st.just("scan"), st.tuples(keys, st.integers(0, 12), st.integers(1, 4))),
        st.tuples(st.sampled_from(["commit", "discard"]), st.none()),
    ),
    max_size=60,
)


WHOLE = ("scan", (b"a\0", 12, 4))
DISCARDED: list[tuple[str, object]] = [
    ("put", b"a\1"),
    ("commit", None),
    ("delete", b"a\1"),
    WHOLE,
    ("discard", None),
    WHOLE,
]


@given(actions=actions, group_bytes=st.sampled_from([0, 1]))
@example(actions=DISCARDED, group_bytes=1)
def test_scans_are_those_of_a_sorted_dictionary(actions: list[tuple[str, object]], group_bytes: int) -> None:
    store = MemoryViewStore()
    index = Index(store, PREFIX, group_bytes=group_bytes)
    expected: dict[bytes, bytes] = {}
    stored: dict[bytes, bytes] = {}
    for number, (action, argument) in enumerate(actions):
        match action, argument:
            case "put", bytes(key):
                expected[key] = bytes([number])
                index.put(PREFIX + key, expected[key])
            case "delete", bytes(key):
                expected.pop(key, None)
                index.delete(PREFIX + key)
            case "scan", (bytes(lower), int(last), int(limit)):
                upper = lower[:group_bytes] + (bytes([last]) if group_bytes else LAST)
                inside = [(key, expected[key]) for key in sorted(expected) if lower <= key < upper]
                assert index.scan(lower, upper, limit) == inside[:limit]
            case "commit", _:
                store.write(index.changed)
                index.committed()
                stored = dict(expected)
            case "discard", _:
                index.discard()
                expected = dict(stored)


class CountingStore(MemoryViewStore):
    """Counts the rows that scans have read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_count = 0

    def scan(self, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row in super().scan(lower, upper):
            self.read_count += 1
            yield row


@pytest.mark.parametrize("commits", [False, True], ids=["in one batch", "in many batches"])
def test_queue_that_is_worked_off_reads_each_stored_entry_once(commits: bool) -> None:
    store, count, limit = CountingStore(), 1_000, 10
    store.write({PREFIX + number.to_bytes(2, "big"): b"" for number in range(count)})
    index = Index(store, PREFIX, group_bytes=0)
    for done in range(0, count, limit):
        for key, _ in index.scan(b"", LAST, limit):
            index.delete(PREFIX + key)
        index.put(PREFIX + (count + done).to_bytes(2, "big"), b"")
        if commits:
            store.write(index.changed)
            index.committed()
    assert [key for key, _ in index.scan(b"", LAST, 1)] == [count.to_bytes(2, "big")]
    # Each scan reads those that it returns, those deleted since the one before, and one ahead.
    assert store.read_count <= 2 * count + count // limit + limit


def test_floors_are_bounded() -> None:
    index = Index(MemoryViewStore(), PREFIX, group_bytes=2)
    index.put(PREFIX + b"\0\0key", b"")
    for number in range(FLOORS_MAX + 1):
        group = number.to_bytes(2, "big")
        assert bool(index.scan(group, group + LAST, 1)) == (number == 0)
        assert len(index._floors) <= FLOORS_MAX
    assert [key for key, _ in index.scan(b"\0\0", b"\0\0" + LAST, 1)] == [b"\0\0key"]


@given(policy=st.sampled_from(POLICIES), log=steps(), batch_records=st.integers(1, 9))
def test_rows_told_to_be_new_are_never_stored_already(policy: Policy, log: list[Step], batch_records: int) -> None:
    store = MemoryViewStore()
    rows = Rows(store, P0)
    for number, record in enumerate(Writer(policy).write(log)):
        fold(rows, record)
        if number % batch_records == 0:
            new, other, derived = rows.changes_apart()
            assert store.get_many(list(new)) == [None] * len(new)
            assert len(new | other | derived) == len(new) + len(other) + len(derived)
            store.write(rows.changes())
            rows.committed()


def test_part_of_many_ticks_ends_when_enough_has_changed() -> None:
    whole, bounded = _due_world(), _due_world()
    first = whole.next_offset
    for _ in range(20):
        whole.tick()
    ticks = whole.records[first:]
    state = PartitionState(rows=bounded.rows)
    bounded.store.write(bounded.rows.changes())
    bounded.rows.committed()
    changes_max = 100
    part: Part | None = Part(P0, ticks, Position(first + len(ticks)))
    parts = 0
    while part is not None:
        folded = fold_part(state, part, changes_max=changes_max)
        parts += 1
        assert bounded.rows.changes_count <= changes_max + COUNT_EVERY_RECORDS * QUEUE_TASKS_MAX * CHANGES_PER_TASK_MAX
        bounded.store.write(bounded.rows.changes())
        bounded.rows.committed()
        assert folded.rest is None or folded.rest.next_position == first + len(ticks)
        part = folded.rest
    assert parts > 2
    whole.store.write(whole.rows.changes())
    assert list(folded_rows(whole.store, P0)) == list(folded_rows(bounded.store, P0))


def _due_world() -> World:
    """Return a partition in which the next ticks end many conversations and responses."""
    world = World()
    for number in range(300):
        world.turn(f"resp_{number}", conversation=f"conv_{number}")
    world.wait(world.policy.active_ttl_ms / SECOND_MS * 2)
    return world
