"""Folding the same records again, with other batch boundaries, restarts and crashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ledger.adapters.memory import MemoryViewStore
from ledger.fold import fold
from ledger.log import Record
from ledger.table import Rows, folded_rows
from ledger.turn import Partition
from ledger.verdict import Fact, Outcome
from tests.fold.names import P0


@dataclass
class Refold:
    """What came of folding some records."""

    outcomes: list[Outcome]
    facts: list[list[Fact]]
    rows: dict[bytes, bytes]


def refold(
    records: list[Record],
    *,
    partition: Partition = P0,
    batch_ends: frozenset[int] = frozenset(),
    crashes: dict[int, int] | None = None,
    after_each: Callable[[int, Rows, Outcome], None] | None = None,
) -> Refold:
    """Fold ``records`` (indexes count from 0).

    After an index in ``batch_ends`` what was folded is written. ``crashes`` maps an index to one that is not later:
    the first time that index was folded, the process dies, and a new one finds the store as of the last batch that
    ended before the index it maps to.
    """
    store = MemoryViewStore()
    rows = Rows(store, partition)
    outcomes: dict[int, Outcome] = {}
    facts: dict[int, list[Fact]] = {}
    copies: dict[int, MemoryViewStore] = {0: store.copy()}
    ahead = dict(crashes or {})
    index = 0
    while index < len(records):
        outcome, found = fold(rows, records[index])
        if index in outcomes:
            assert (outcomes[index], facts[index]) == (outcome, found), f"record {index} was judged differently"
        outcomes[index], facts[index] = outcome, found
        if after_each is not None:
            after_each(index, rows, outcome)
        index += 1
        if index - 1 in batch_ends:
            store.write(rows.changes())
            rows.committed()
            copies[index] = store.copy()
        if index - 1 in ahead:
            earlier = ahead.pop(index - 1)
            index = max(start for start in copies if start <= earlier + 1)
            store = copies[index].copy()
            rows = Rows(store, partition)
    store.write(rows.changes())
    rows.committed()
    return Refold(
        outcomes=[outcomes[number] for number in range(len(records))],
        facts=[facts[number] for number in range(len(records))],
        rows={key[2:]: value for key, value in folded_rows(store, partition)},
    )
