"""What must hold for every log, on logs that hypothesis draws."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import ledger.lifecycle
from ledger import codec
from ledger.adapters.memory import MemoryViewStore
from ledger.errors import UndecodableRecord
from ledger.event import (
    ClockTicked,
    ConversationCreated,
    ConversationUpdated,
    Event,
    ItemDeleted,
    ItemsAppended,
    ScopedEvent,
    TurnAbandoned,
    TurnCompleted,
)
from ledger.fates import response_fate
from ledger.fold import UnsupportedUpgrade, fold
from ledger.log import Record
from ledger.policy import Policy
from ledger.rows import Kind, ResponseRow
from ledger.table import Rows, folded_rows
from ledger.turn import Offset, Partition, Status
from ledger.verdict import Code, ContentUnneeded, Outcome
from tests.fold import recount
from tests.fold.names import P0, principals_of
from tests.fold.refold import refold
from tests.fold.sequences import FREQUENT, POLICIES, TIGHT, UNLIMITED_POLICIES, Action, Step, Writer, steps

policies = st.sampled_from(POLICIES)
indexes = st.integers(0, 60)


def table_of(rows: Rows) -> recount.Table:
    """Return the rows as they would be stored now; ``rows`` must not have been committed before."""
    store = MemoryViewStore()
    store.write(rows.changes())
    return recount.Table.of({key[2:]: value for key, value in folded_rows(store, rows.partition)})


def events_of(records: list[Record]) -> list[Event | None]:
    events: list[Event | None] = []
    for record in records:
        try:
            events.append(codec.decode(record.value))
        except UndecodableRecord:
            events.append(None)
    return events


@given(
    policy=policies,
    log=steps(),
    batch_ends=st.frozensets(indexes, max_size=12),
    crashes=st.dictionaries(indexes, indexes, max_size=4),
)
def test_batches_restarts_and_crashes_change_nothing(
    policy: Policy, log: list[Step], batch_ends: frozenset[int], crashes: dict[int, int]
) -> None:
    records = Writer(policy).write(log)
    back = {index: min(index, earlier) for index, earlier in crashes.items()}
    at_once = refold(records)
    assert refold(records, batch_ends=frozenset(range(len(records)))) == at_once
    assert refold(records, batch_ends=batch_ends, crashes=back) == at_once


@given(policy=policies, logs=st.tuples(steps(size_max=30), steps(size_max=30)), turns=st.lists(st.booleans()))
def test_interleaved_partitions_do_not_touch_each_other(
    policy: Policy, logs: tuple[list[Step], list[Step]], turns: list[bool]
) -> None:
    partitions = (Partition(0), Partition(1))
    written = [
        Writer(policy, partition=partition, partition_count=2, principals=tuple(principals_of(partition, 2, 2))).write(
            log
        )
        for partition, log in zip(partitions, logs, strict=True)
    ]
    alone = [refold(records, partition=partition) for records, partition in zip(written, partitions, strict=True)]
    store = MemoryViewStore()
    rows = [Rows(store, partition) for partition in partitions]
    waiting = [list(records) for records in written]
    outcomes: list[list[Outcome]] = [[], []]
    while waiting[0] or waiting[1]:
        number = int(turns.pop()) if turns else 0
        number = number if waiting[number] else 1 - number
        outcomes[number].append(fold(rows[number], waiting[number].pop(0))[0])
        store.write(rows[number].changes())
        rows[number].committed()
    for number, partition in enumerate(partitions):
        assert outcomes[number] == alone[number].outcomes
        assert {key[2:]: value for key, value in folded_rows(store, partition)} == alone[number].rows


@given(policy=policies, log=steps())
def test_counters_holds_indexes_and_queue_equal_a_recount(policy: Policy, log: list[Step]) -> None:
    refold(Writer(policy).write(log), after_each=lambda _index, rows, _outcome: recount.check(table_of(rows)))


@given(policy=policies, log=steps(), again=st.data())
def test_redelivered_event_changes_no_row_and_answers_its_first_verdict(
    policy: Policy, log: list[Step], again: st.DataObject
) -> None:
    records = Writer(policy).write(log)
    events = events_of(records)
    rows = Rows(MemoryViewStore(), P0)
    outcomes = [fold(rows, record)[0] for record in records]
    index = again.draw(st.integers(0, len(records) - 1))
    event = events[index]
    assume(isinstance(event, ScopedEvent))
    assert isinstance(event, ScopedEvent)
    first = _first_with(event.event_id, events, outcomes)
    assume(first is not None)
    # The queue runs at every 16th offset; between them a redelivery is all that happens.
    offset = len(records) + (len(records) % ledger.lifecycle.QUEUE_EVERY_RECORDS == 0)
    before = table_of(rows)
    outcome, facts = fold(rows, replace(records[index], offset=Offset(offset), appended_at_ms=rows.meta.clock_ms))
    after = table_of(rows)
    assert before.points | {Kind.META: {}} == after.points | {Kind.META: {}}
    assert before.indexes == after.indexes
    assert facts == []
    if rows.meta.clock_ms <= event.not_after_ms:
        assert (outcome.code, outcome.first, outcome.first_offset) == (Code.DUPLICATE, *(first or ()))
    else:
        # By then it may be forgotten, or only its abandonment be remembered; it is never judged as new.
        assert outcome.code in (Code.DUPLICATE, Code.TOO_LATE)


def _first_with(event_id: bytes, events: list[Event | None], outcomes: list[Outcome]) -> tuple[Code, int] | None:
    """Return (verdict, offset) of the first event with an ID that is remembered, as abandonments have left it."""
    first: tuple[Code, int] | None = None
    for offset, (event, outcome) in enumerate(zip(events, outcomes, strict=True)):
        if isinstance(event, TurnAbandoned) and event.abandoned == event_id and outcome.code is Code.ACCEPTED:
            first = (Code.ABANDONED, offset) if first is None else (_after_abandonment(first[0]), first[1])
        is_remembered = outcome.code is not Code.TOO_LATE and not outcome.reason.startswith("not_after")
        if getattr(event, "event_id", None) == event_id and first is None and is_remembered:
            first = (outcome.code, offset)
    return first


def _after_abandonment(code: Code) -> Code:
    return Code.ABANDONED if code is Code.ACCEPTED else code


@dataclass
class Claims:
    """Watches that an alias is claimed once, that a revision compares, and where heads must be."""

    events: list[Event | None]
    before: recount.Table = field(default_factory=recount.Table)
    heads: dict[bytes, list[int]] = field(default_factory=dict)
    """Accepted entries of each living conversation, the head last."""

    def check(self, index: int, rows: Rows, outcome: Outcome) -> None:
        after = table_of(rows)
        event = self.events[index]
        clock_ms = after.meta.clock_ms
        for alias, row in self.before.responses.items():
            claimed = after.responses.get(alias)
            if claimed is None or claimed.node == row.node or row.status not in (Status.COMPLETED, Status.INCOMPLETE):
                continue
            assert outcome.code is Code.ACCEPTED, "a refused event claimed a response"
            assert self._is_forgotten(row, clock_ms, after), "a response was claimed twice"
        expected = getattr(event, "expected_revision", None)
        if outcome.code is Code.ACCEPTED and expected is not None:
            named: bytes = getattr(event, "conversation", b"")
            conversation, now = self.before.conversations.get(named), after.conversations.get(named)
            is_new = conversation is None or now is None or now.created_offset == index
            found = 0 if conversation is None or is_new else conversation.revision
            assert found == expected, "compare-and-set was violated"
        self._follow_heads(index, event, outcome, after)
        self.before = after

    def _is_forgotten(self, row: ResponseRow, clock_ms: int, after: recount.Table) -> bool:
        principal = after.principals[row.principal]
        policy = after.meta.policy
        gone = response_fate(row, self.before.lineages.get(row.lineage), principal, clock_ms, policy)
        may_be_forgotten_early = policy.tombstones_per_principal_max == TIGHT.tombstones_per_principal_max
        return gone is not None and (clock_ms >= gone.forget_at_ms or may_be_forgotten_early)

    def _follow_heads(self, index: int, event: Event | None, outcome: Outcome, after: recount.Table) -> None:
        if outcome.code is Code.ACCEPTED:
            match event:
                case TurnCompleted(conversation=bytes() as alias) if Status(event.status).continuable:
                    self._entry(alias, index, after)
                case ItemsAppended(conversation=alias):
                    self._entry(alias, index, after)
                case ConversationCreated(conversation=alias):
                    self.heads[alias] = [] if event.content is None else [index]
                case TurnAbandoned():
                    for alias, entries in self.heads.items():
                        row, was = after.conversations.get(alias), self.before.conversations.get(alias)
                        if entries and row is not None and was is not None and was.head != row.head:
                            abandoned = self.events[entries.pop()]
                            assert getattr(abandoned, "event_id", None) == event.abandoned, "another turn was undone"
                case _:
                    pass
        for alias, row in after.conversations.items():
            if not row.fate:
                assert row.head == (self.heads[alias] or [0])[-1], "the head is not the last accepted entry"

    def _entry(self, alias: bytes, index: int, after: recount.Table) -> None:
        if after.conversations[alias].created_offset == index:
            self.heads[alias] = []
        self.heads[alias].append(index)


@given(policy=policies, log=steps())
def test_responses_are_claimed_once_and_heads_follow_the_log(policy: Policy, log: list[Step]) -> None:
    records = Writer(policy).write(log)
    refold(records, after_each=Claims(events_of(records)).check)


@given(policy=policies, log=steps(size_max=40))
def test_everything_ends_and_every_content_is_reported_unneeded_once(policy: Policy, log: list[Step]) -> None:
    records = Writer(policy).write(log)
    events = events_of(records)
    rows = Rows(MemoryViewStore(), P0)
    accepted: list[bytes] = []
    unneeded: list[bytes] = []

    def run(record: Record, event: Event | None) -> None:
        outcome, facts = fold(rows, record)
        if outcome.code is Code.ACCEPTED and event is not None:
            accepted.extend(_contents(event))
        unneeded.extend(fact.content.id for fact in facts if isinstance(fact, ContentUnneeded))
        assert not table_of(rows).contents() & set(unneeded), "a content that is referred to was reported unneeded"

    for record, event in zip(records, events, strict=True):
        run(record, event)
    now_ms = rows.meta.clock_ms
    kept = {Kind.META, Kind.PRINCIPAL, Kind.QUARANTINE}
    for offset in range(len(records), len(records) + 100):
        now_ms += 60_000
        tick = ClockTicked(written_at_ms=now_ms)
        run(replace(records[0], offset=Offset(offset), appended_at_ms=now_ms, value=codec.encode(tick)), tick)
        left = table_of(rows)
        if not any(found for kind, found in (left.points | left.indexes).items() if kind not in kept):
            break
    else:
        pytest.fail(f"rows were never removed: { {kind for kind, found in left.points.items() if found} - kept }")
    assert sorted(unneeded) == sorted(accepted)
    assert all((row.records, row.size_bytes, row.tombstones) == (0, 0, 0) for row in left.principals.values())


def _contents(event: Event) -> list[bytes]:
    match event:
        case TurnCompleted() | ItemsAppended() | ItemDeleted():
            contents = [event.content]
        case ConversationCreated():
            contents = [event.content, event.metadata]
        case ConversationUpdated():
            contents = [event.metadata]
        case _:
            contents = []
    return [content.id for content in contents if content is not None]


@given(log=steps(), at=indexes, place=st.integers(0, 3), bit=st.integers(0, 10_000))
def test_chain_differs_when_any_byte_of_any_record_differs(log: list[Step], at: int, place: int, bit: int) -> None:
    records = Writer(POLICIES[0]).write(log)
    index = at % len(records)
    other = list(records)
    record = records[index]
    match place:
        case 0:
            other[index] = replace(record, value=_flipped(record.value or b"\0", bit))
        case 1:
            other[index] = replace(record, key=_flipped(record.key or b"\0", bit))
        case 2:
            other[index] = replace(record, appended_at_ms=record.appended_at_ms + 1)
        case _:
            other[index] = replace(record, key=b"", value=(record.key or b"") + (record.value or b""))
    try:
        chains = [_chain(found) for found in (records, other)]
    except UnsupportedUpgrade:
        assume(False)
    assert chains[0] != chains[1]


def _flipped(value: bytes, bit: int) -> bytes:
    place = bit % (8 * len(value))
    return value[: place // 8] + bytes([value[place // 8] ^ (1 << place % 8)]) + value[place // 8 + 1 :]


def _chain(records: list[Record]) -> bytes:
    rows = Rows(MemoryViewStore(), P0)
    for record in records:
        fold(rows, record)
    return rows.meta.chain


@pytest.mark.parametrize("tasks_max", [1, 3])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(policy=st.sampled_from(UNLIMITED_POLICIES), log=steps(FREQUENT))
def test_verdicts_do_not_depend_on_the_queues_progress(
    monkeypatch: pytest.MonkeyPatch, tasks_max: int, policy: Policy, log: list[Step]
) -> None:
    # Three things look at what the queue has done, and are kept out of its way here: an abandonment looks at children,
    # which go when their grace is over; a second erasure moves the time of the first for what is not yet swept; and
    # limits count what has not been ended yet.
    policy = replace(policy, commit_grace_ms=policy.event_window_max_ms, tombstone_ttl_ms=policy.event_window_max_ms)
    erasures = [index for index, step in enumerate(log) if step.action is Action.ERASE]
    records = Writer(policy).write([step for index, step in enumerate(log) if index not in erasures[1:]])
    with monkeypatch.context() as patch:
        patch.setattr(ledger.lifecycle, "QUEUE_TASKS_MAX", tasks_max)
        slow = refold(records)
    assert slow.outcomes == refold(records).outcomes
