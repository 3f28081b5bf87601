"""Rules 1 to 3: the chain, quarantine, the partition clock; and the events that concern a whole partition."""

from pathlib import Path

import pytest
from msgspec.structs import replace

import ledger.fold
from ledger import codec
from ledger.event import ClockTicked
from ledger.fold import UnsupportedUpgrade, is_anchor
from ledger.log import RECORD_BYTES_MAX
from ledger.rows import Kind, ordered
from ledger.turn import Partition
from ledger.verdict import Code
from tests.fold.given import World
from tests.fold.names import FOREVER_MS, POLICY, T0_MS, formatted, principals_of
from tests.fold.recount import Table


def test_chain_and_anchor_follow_every_record_readable_or_not(world: World) -> None:
    chains = {world.rows.meta.chain}
    for value in (world.records[0].value, b"poison", None):
        world.append_bytes(value)
        assert world.rows.meta.chain not in chains
        chains.add(world.rows.meta.chain)
        assert world.rows.meta.anchor_offset == world.last_offset
        assert is_anchor(world.rows.meta, world.records[-1])


def test_anchor_is_told_from_a_record_that_took_its_offset(world: World) -> None:
    world.turn("a")
    record = world.records[-1]
    assert not is_anchor(world.rows.meta, replace(record, value=(record.value or b"") + b"\0"))
    assert not is_anchor(world.rows.meta, replace(record, key=b"other"))
    assert not is_anchor(world.rows.meta, replace(record, appended_at_ms=record.appended_at_ms + 1))
    assert not is_anchor(world.rows.meta, world.records[0])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "empty"),
        (b"", "empty"),
        (b"\x01\xc1", "malformed"),
        (b"\x01\x92\x04", "malformed"),
        (b"\x01\x92\x63\x01", "malformed"),
        (b"\x01\x92\x04\xa1x", "malformed"),
        (b"\x01" + b"\x91" * 5_000 + b"\x01", "malformed"),
        (b"\x01\x92\x04\xcd\x00\x01", "not_canonical"),
        (b"\x01\x92\x04\x01\x00", "malformed"),
        (b"\x00\x92\x04\x01", "newer_format"),
        (b"\x02\x92\x04\x01", "newer_format"),
        (b"\x01" + b"\0" * RECORD_BYTES_MAX, "oversized"),
        (b"{}", "newer_format"),
    ],
    ids=str,
)
def test_poison_record_is_quarantined_and_the_partition_goes_on(world: World, value: bytes | None, reason: str) -> None:
    """Case B10."""
    outcome = world.append_bytes(value)
    assert (outcome.code, outcome.reason) == (Code.QUARANTINED, reason)
    table = Table.of(world.stored())
    assert table.points[Kind.QUARANTINE][ordered(world.last_offset)].reason == reason
    assert world.rows.meta.quarantined == 1
    assert world.turn("a").code is Code.ACCEPTED


def test_record_of_another_partitions_principal_is_quarantined() -> None:
    stranger, neighbour = principals_of(1, 4, 1)[0], principals_of(0, 4, 1)[0]
    world = World(partition_count=4)
    outcome = world.turn("a", principal=stranger)
    assert (outcome.code, outcome.reason) == (Code.QUARANTINED, "wrong_partition")
    assert world.response("a", stranger) is None
    assert world.turn("a", principal=neighbour).code is Code.ACCEPTED


def test_records_before_the_partition_is_formatted_are_quarantined() -> None:
    world = World(is_formatted=False)
    assert world.turn("a").reason == "not_formatted"
    assert world.append(formatted(POLICY)).code is Code.ACCEPTED
    assert world.turn("a").code is Code.ACCEPTED


def test_format_of_another_partition_is_quarantined() -> None:
    world = World(is_formatted=False, partition=Partition(1), partition_count=2)
    assert world.append(formatted(POLICY, partition=0, partition_count=2)).reason == "wrong_partition"
    assert world.rows.meta.ledger_id == b""


def test_first_format_wins(world: World) -> None:
    first = formatted(POLICY)
    assert world.append(first).code is Code.DUPLICATE
    assert world.append(replace(first, ledger_id=b"another ledger!!")).code is Code.STALE_GENERATION
    assert world.append(replace(first, partition_count=2)).code is Code.STALE_GENERATION
    assert world.rows.meta.ledger_id == first.ledger_id


def test_clock_never_goes_back(world: World) -> None:
    """Case B22: a broker's clock that steps back ten minutes."""
    world.wait(-600)
    world.turn("a", native=True, not_after_ms=T0_MS + 10_000)
    assert world.rows.meta.clock_ms == T0_MS
    row = world.response("a")
    assert row is not None
    assert row.accepted_at_ms == T0_MS


@pytest.mark.parametrize(("step_ms", "moved"), [(300_000, True), (300_001, False)])
def test_large_step_of_a_broken_broker_clock_is_ignored(world: World, step_ms: int, moved: bool) -> None:
    world.append(ClockTicked(written_at_ms=T0_MS), appended_at_ms=T0_MS + step_ms)
    assert world.rows.meta.clock_ms == T0_MS + (step_ms if moved else 0)


@pytest.mark.parametrize(("disagreement_ms", "moved"), [(300_000, True), (300_001, False)])
def test_large_step_counts_when_the_writers_clock_agrees(world: World, disagreement_ms: int, moved: bool) -> None:
    day_ms = 86_400_000
    tick = ClockTicked(written_at_ms=T0_MS + day_ms - disagreement_ms)
    world.append(tick, appended_at_ms=T0_MS + day_ms)
    assert world.rows.meta.clock_ms == T0_MS + (day_ms if moved else 0)


def test_broken_clock_expires_nothing_and_later_records_go_on(world: World) -> None:
    """Case B22: the broker's clock is a year ahead for one record, then right again."""
    world.turn("a")
    world.append(ClockTicked(written_at_ms=world.now_ms), appended_at_ms=T0_MS + 366 * 86_400_000)
    world.wait(1)
    assert world.turn("b", parent="a").code is Code.ACCEPTED
    assert world.rows.meta.clock_ms == T0_MS + 1_000


def test_unreadable_record_does_not_move_the_clock(world: World) -> None:
    world.append_bytes(b"poison", appended_at_ms=T0_MS + 1_000)
    assert world.rows.meta.clock_ms == T0_MS


def test_higher_generation_of_policy_wins_whatever_the_order(world: World) -> None:
    assert world.change_policy(generation=2, active_ttl_ms=2_000).code is Code.ACCEPTED
    assert world.change_policy(generation=1, active_ttl_ms=1_000).code is Code.STALE_GENERATION
    assert world.change_policy(generation=2, active_ttl_ms=1_000).code is Code.STALE_GENERATION
    assert world.rows.meta.policy.active_ttl_ms == 2_000
    assert world.raise_format(generation=2).code is Code.STALE_GENERATION
    assert world.raise_format(generation=3).code is Code.ACCEPTED
    assert world.rows.meta.generation == 3


def test_policy_counts_from_its_own_record_on(world: World) -> None:
    world.turn("a")
    world.change_policy(active_ttl_ms=1_000)
    world.turn("b")
    before, after = world.response("a"), world.response("b")
    assert before is not None
    assert after is not None
    assert (before.expires_at_ms, after.expires_at_ms) == (T0_MS + 100_000, T0_MS + 1_000)


@pytest.mark.parametrize(("record_format", "fold_version"), [(2, 1), (1, 2), (FOREVER_MS, 1)])
def test_unsupported_upgrade_stops_the_view_before_any_row_changes(
    world: World, record_format: int, fold_version: int
) -> None:
    world.turn("a")
    rows = world.stored()
    with pytest.raises(UnsupportedUpgrade, match="offset 2"):
        world.raise_format(generation=1, record_format=record_format, fold_version=fold_version)
    assert world.stored() == rows


def test_ledger_formatted_by_a_newer_build_stops_the_view() -> None:
    world = World(is_formatted=False)
    with pytest.raises(UnsupportedUpgrade):
        world.append(replace(formatted(POLICY), format=codec.FORMAT + 1))
    assert world.next_offset == 0


def test_format_is_not_lowered(world: World) -> None:
    assert world.raise_format(generation=1, record_format=0).code is Code.STALE_GENERATION


def test_rules_are_numbered_without_a_gap() -> None:
    """Tests cite the rules by number."""
    text = Path(ledger.fold.__file__).read_text().split('"""')[1]
    numbers = [int(line.split(".")[0]) for line in text.splitlines() if line.lstrip()[:1].isdigit()]
    assert numbers == list(range(1, 14))
