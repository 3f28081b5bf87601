"""Tables and the bootstrap from them: the rows are those of a replay, or the table is refused."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ledger import bootstrap as bootstrapping
from ledger import codec, tables
from ledger.adapters.memory import MemoryLog, MemoryTopic, MemoryViewStore
from ledger.bootstrap import bootstrap, needs_bootstrap, read_table
from ledger.derived import is_derived
from ledger.errors import UndecodableRecord
from ledger.fold import fold
from ledger.log import Record
from ledger.policy import Policy
from ledger.rows import FOLDED_KINDS, INDEX_KINDS, Kind, LocalKind, Task
from ledger.table import folded_rows
from ledger.tables import (
    MARKER_KEY,
    Marker,
    TableCopy,
    TableState,
    decode_marker,
    digest_of,
    encode_marker,
    table_change,
)
from ledger.turn import Offset
from tests.fold.given import World
from tests.fold.names import T0_MS, formatted
from tests.fold.refold import refold
from tests.fold.sequences import POLICIES, Step, Writer, steps
from tests.tables.topic import LOG_ID, P0, TABLES_ID, TableTopic, TableWriter

FORMATTED = [
    Record(partition=P0, offset=Offset(0), appended_at_ms=T0_MS, key=b"", value=codec.encode(formatted(POLICIES[0])))
]
"""The shortest log that has rows."""
policies = st.sampled_from(POLICIES)
indexes = st.integers(0, 60)


def log_of(records: list[Record]) -> MemoryLog:
    topic = MemoryTopic(1, log_id=LOG_ID)
    for record in records:
        topic.land(P0, record.key or b"", record.value or b"", record.appended_at_ms)
    return MemoryLog(topic, now_ms=lambda: 0)


def written(records: list[Record], batch_ends: frozenset[int]) -> TableWriter:
    writer = TableWriter(TableTopic())
    for index, record in enumerate(records):
        fold(writer.rows, record)
        if index in batch_ends or index == len(records) - 1:
            writer.write()
    return writer


def rows_in(store: MemoryViewStore) -> dict[bytes, bytes]:
    return {key[2:]: row for key, row in folded_rows(store, P0)}


@settings(max_examples=60)
@given(
    policy=policies,
    log=steps(),
    batch_ends=st.frozensets(indexes, max_size=12),
    compactions=st.lists(st.tuples(st.integers(0, 400), st.booleans()), max_size=3),
    pending_max=st.sampled_from([2, 5, 2_048]),
)
def test_bootstrapped_rows_are_those_of_a_replay(
    policy: Policy,
    log: list[Step],
    batch_ends: frozenset[int],
    compactions: list[tuple[int, bool]],
    pending_max: int,
) -> None:
    records = Writer(policy).write(log)
    writer = written(records, batch_ends)
    for below, drop_nulls in compactions:
        writer.topic.compact(below, drop_nulls=drop_nulls)
    store = MemoryViewStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrapping, "PENDING_ROWS_MAX", pending_max)
        (result,) = asyncio.run(bootstrap(store, log_of(records), writer.topic, [P0]))
    assert result.refused == ""
    assert rows_in(store) == refold(records).rows
    assert digest_of(store, P0) == (writer.state.rows_digest, writer.state.rows_count)
    assert not needs_bootstrap(store, P0)


@settings(max_examples=40)
@given(
    policy=policies,
    log=steps(size_max=30),
    lost=st.integers(0, 200),
    change=st.sampled_from(["lost", "longer", "other"]),
)
def test_table_that_lost_or_changed_one_row_is_refused(policy: Policy, log: list[Step], lost: int, change: str) -> None:
    records = Writer(policy).write(log)
    writer = written(records, frozenset())
    victims = [index for index, record in enumerate(writer.topic.records) if record.key != MARKER_KEY]
    victim = victims[lost % len(victims)]
    record = writer.topic.records[victim]
    match change:
        case "longer":
            writer.topic.records[victim] = replace(record, value=(record.value or b"") + b"x")
        case "other":
            value = record.value or b""
            writer.topic.records[victim] = replace(record, value=value[:-1] + bytes([value[-1] ^ 1]) if value else b"x")
        case _:
            del writer.topic.records[victim]
    store = MemoryViewStore()
    (result,) = asyncio.run(bootstrap(store, log_of(records), writer.topic, [P0]))
    assert result.refused in ("digest", "unreadable")
    assert result.marker is None
    assert rows_in(store) == {}
    assert needs_bootstrap(store, P0)


@settings(max_examples=40)
@given(policy=policies, log=steps(), first=indexes, batch_ends=st.frozensets(indexes, max_size=6))
def test_copy_that_is_read_on_later_is_the_same(
    policy: Policy, log: list[Step], first: int, batch_ends: frozenset[int]
) -> None:
    records = Writer(policy).write(log)
    writer = TableWriter(TableTopic())
    copy = TableCopy(MemoryViewStore(), P0)
    state = TableState(tables_id=TABLES_ID)
    for index, record in enumerate(records):
        fold(writer.rows, record)
        if index in batch_ends or index in (first, len(records) - 1):
            writer.write()
        if index == first:
            state = asyncio.run(read_table(copy, state, writer.topic, None))
            assert state.verified
    state = asyncio.run(read_table(copy, state, writer.topic, None))
    assert state.verified
    assert state == copy.load()
    assert rows_in(copy.store) == rows_in(writer.store)  # type: ignore[arg-type]


@given(keys=st.lists(st.tuples(st.binary(min_size=1, max_size=3), st.none() | st.binary(max_size=3)), max_size=30))
def test_digest_kept_up_to_date_is_that_of_a_full_scan(keys: list[tuple[bytes, bytes | None]]) -> None:
    store = MemoryViewStore()
    digest, count = digest_of(store, P0)
    for key, row in keys:
        changes = {b"\0\0" + Kind.NODE + key: row}
        change = table_change(store, changes, digest, count)
        digest, count = change.rows_digest, change.rows_count
        store.write(changes)
    assert (digest, count) == digest_of(store, P0)


def test_rows_that_are_being_wiped_are_never_taken_for_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "WIPE_ROWS", 3)
    world = World()
    for number in range(4):
        world.turn(f"response_{number}")
    world.stored()
    assert not needs_bootstrap(world.store, P0)
    steps_count = 0
    for _ in TableCopy(world.store, P0).wipe():
        assert needs_bootstrap(world.store, P0)
        steps_count += 1
    assert steps_count > 3
    assert rows_in(world.store) == {}


def test_copy_that_another_release_has_begun_is_begun_anew() -> None:
    writer = written(FORMATTED, frozenset())
    writer.store.write({b"\0\0" + LocalKind.TABLE_STATE: msgspec.msgpack.encode(["topic", 1, bytes(32), 0, None])})
    assert needs_bootstrap(writer.store, P0)
    (result,) = asyncio.run(bootstrap(writer.store, log_of(FORMATTED), writer.topic, [P0]))
    assert result.refused == ""
    assert not needs_bootstrap(writer.store, P0)


@pytest.mark.parametrize("kind", sorted(INDEX_KINDS))
def test_digest_of_a_scan_finds_a_derived_entry_too_few_or_too_many(kind: bytes) -> None:
    world = World()
    world.turn("deleted")
    world.turn("living")
    world.delete("deleted")
    world.stored()
    whole = digest_of(world.store, P0)
    entries = [key for key, _ in folded_rows(world.store, P0) if is_derived(key[2:]) and key[2:3] == kind]
    assert entries
    value = world.store.get(entries[0])
    world.store.write({entries[0]: None})
    assert digest_of(world.store, P0) != whole
    world.store.write({entries[0]: value})
    assert digest_of(world.store, P0) == whole
    world.store.write({entries[0] + b"x": value})
    assert digest_of(world.store, P0) != whole


def marker(**changes: object) -> Marker:
    values: dict[str, object] = {
        "ledger_id": b"ledger of tests!",
        "log_id": LOG_ID,
        "position": 7,
        "clock_ms": 1,
        "chain": b"c" * 32,
        "chain_before": b"b" * 32,
        "anchor_offset": 6,
        "rows_digest": b"d" * 32,
        "rows_count": 3,
    }
    return Marker(**(values | changes))  # type: ignore[arg-type]


def test_marker_has_one_encoding() -> None:
    value = encode_marker(marker())
    assert decode_marker(value) == marker()
    assert value.hex() == (
        "0299c4106c6564676572206f6620746573747321a36c6f670701c420"
        + "63" * 32
        + "c420"
        + "62" * 32
        + "06c420"
        + "64" * 32
        + "03"
    )
    for wrong, reason in [
        (b"", "empty"),
        (None, "empty"),
        (b"\x03" + value[1:], "newer_format"),
        (b"\x01" + value[1:], "older_format"),
        (value + b"\0", "malformed"),
        (value[:-1] + b"\xcc\x03", "not_canonical"),
    ]:
        with pytest.raises(UndecodableRecord) as refused:
            decode_marker(wrong)
        assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda topic: topic.records.clear(), "empty"),
        (lambda topic: topic.add([(MARKER_KEY, b"\x03")]), "upgrade"),
        (lambda topic: topic.add([(MARKER_KEY, b"\x01")]), "unreadable"),
        (lambda topic: topic.add([(MARKER_KEY, b"\x02x")]), "unreadable"),
        (lambda topic: topic.add([(b"?", b""), (MARKER_KEY, encode_marker(marker()))]), "unreadable"),
        (lambda topic: topic.add([(MARKER_KEY, encode_marker(marker()))]), "digest"),
    ],
)
def test_unusable_table_is_refused_with_its_reason(break_it: object, reason: str) -> None:
    records = FORMATTED
    writer = written(records, frozenset())
    break_it(writer.topic)  # type: ignore[operator]
    store = MemoryViewStore()
    (result,) = asyncio.run(bootstrap(store, log_of(records), writer.topic, [P0]))
    assert result.refused == reason
    assert rows_in(store) == {}


def test_table_of_another_log_and_one_ahead_of_its_log_are_refused() -> None:
    records = FORMATTED
    writer = written(records, frozenset())
    other = MemoryLog(MemoryTopic(1, log_id="another"), now_ms=lambda: 0)
    (result,) = asyncio.run(bootstrap(MemoryViewStore(), other, writer.topic, [P0]))
    assert result.refused == "other_log"
    (result,) = asyncio.run(bootstrap(MemoryViewStore(), log_of([]), writer.topic, [P0]))
    assert result.refused == "beyond_end"


def test_interrupted_bootstrap_is_begun_again() -> None:
    records = FORMATTED
    writer = written(records, frozenset())
    store = MemoryViewStore()
    copy = TableCopy(store, P0)
    copy.apply(TableState(tables_id=TABLES_ID), {Kind.QUEUE + bytes(8) + Task.SWEEP_PRINCIPAL + b"half": b""}, 1, None)
    assert needs_bootstrap(store, P0)
    (result,) = asyncio.run(bootstrap(store, log_of(records), writer.topic, [P0]))
    # What was read before is not of this table: the digest tells, and the log is folded instead.
    assert result.refused == "digest"
    (result,) = asyncio.run(bootstrap(store, log_of(records), writer.topic, [P0]))
    assert result.refused == ""
    assert rows_in(store) == refold(records).rows


def kinds_of(home: type) -> list[bytes]:
    return [kind for name, kind in vars(home).items() if name.isupper()]


def test_all_kinds_of_rows_are_distinct_and_the_key_of_markers_is_none_of_them() -> None:
    folded, local = kinds_of(Kind), kinds_of(LocalKind)
    assert set(folded) == FOLDED_KINDS
    assert len({*folded, *local}) == len(folded) + len(local)
    assert max(folded) < min(local)
    assert max(local) < MARKER_KEY
    assert {len(kind) for kind in (*folded, *local)} == {1}
