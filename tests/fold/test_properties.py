"""What must hold for every log, on logs that hypothesis draws."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

import ledger.lifecycle
from ledger.adapters.memory import MemoryViewStore
from ledger.fold import fold
from ledger.log import Record
from ledger.policy import Policy
from ledger.rows import Kind, Rows, folded_rows
from ledger.turn import Offset, Partition
from ledger.verdict import Code, ContentUnneeded, Outcome
from tests.fold import recount
from tests.fold.names import P0, principals_of
from tests.fold.refold import refold
from tests.fold.sequences import EVERYTHING, FREQUENT, POLICIES, UNLIMITED_POLICIES, Action, Step, Writer, steps

policies = st.sampled_from(POLICIES)
indexes = st.frozensets(st.integers(0, 60), max_size=12)


@given(policy=policies, log=steps(), batch_ends=indexes, crashes=st.dictionaries(st.integers(0, 60), st.integers(0, 60), max_size=4))
def test_batches_restarts_and_crashes_change_nothing(
    policy: Policy, log: list[Step], batch_ends: frozenset[int], crashes: dict[int, int]
) -> None:
    records = Writer(policy).write(log)
    at_once = refold(records)
    one_by_one = refold(records, batch_ends=frozenset(range(len(records))))
    back = {index: min(index, earlier) for index, earlier in crashes.items()}
    interrupted = refold(records, batch_ends=batch_ends, crashes=back)
    assert at_once == one_by_one == interrupted


@given(policy=policies, log=steps())
def test_counters_holds_indexes_and_queue_equal_a_recount(policy: Policy, log: list[Step]) -> None:
    def check(index: int, rows: Rows, outcome: Outcome) -> None:
        store = MemoryViewStore()
        store.write(rows.changes())
        recount.check(recount.Table.of({key[2:]: value for key, value in folded_rows(store, P0)}))

    refold(Writer(policy).write(log), after_each=check)
