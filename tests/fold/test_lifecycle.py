"""Expiry, grace, tombstones, holds, cascades and eviction."""

import pytest

from ledger.lifecycle import EVICTIONS_MAX, QUEUE_EVERY_RECORDS, QUEUE_TASKS_MAX
from ledger.rows import Fate, Kind
from ledger.verdict import Code
from tests.fold.given import World, present
from tests.fold.names import SECOND_MS, T0_MS, response_alias
from tests.fold.recount import Table, check


def sliding() -> World:
    world = World()
    world.change_policy(sliding=True)
    return world


# Expiry and grace


@pytest.mark.parametrize(
    ("after_s", "code"), [(99.999, Code.ACCEPTED), (109.999, Code.ACCEPTED), (110, Code.PARENT_GONE)]
)
def test_expired_parent_is_in_grace_for_commit_grace(world: World, after_s: float, code: Code) -> None:
    world.turn("a")
    world.wait(after_s)
    assert world.turn("b", parent="a").code is code


@pytest.mark.parametrize(("after_s", "fate"), [(109.999, Fate.LIVING), (110, Fate.EXPIRED)])
def test_expired_response_is_buried_after_the_grace_that_was_the_policys_then(
    world: World, after_s: float, fate: Fate
) -> None:
    world.turn("a")
    world.change_policy(commit_grace_ms=0)
    world.tick_after(after_s)
    row = world.response("a")
    assert row is not None
    assert row.fate == fate


@pytest.mark.parametrize(("after_s", "code"), [(9.999, Code.ACCEPTED), (10, Code.PARENT_GONE)])
def test_deleted_parent_is_in_grace_for_commit_grace(world: World, after_s: float, code: Code) -> None:
    world.turn("a")
    world.delete("a")
    world.wait(after_s)
    assert world.turn("b", parent="a").code is code


@pytest.mark.parametrize(("after_s", "code"), [(99.999, Code.RESPONSE_EXISTS), (100, Code.ALIAS_GONE)])
def test_response_expires_a_ttl_after_its_turn(world: World, after_s: float, code: Code) -> None:
    world.turn("a")
    world.wait(50)
    world.turn("b", parent="a")
    world.wait(after_s - 50)
    assert world.turn("a").code is code


def test_sliding_lineage_expires_a_ttl_after_its_last_turn() -> None:
    world = sliding()
    world.turn("a")
    world.wait(99)
    world.turn("b", parent="a")
    world.wait(99)
    assert world.turn("a").code is Code.RESPONSE_EXISTS
    world.wait(1)
    assert world.turn("a").code is Code.ALIAS_GONE
    assert world.turn("b").code is Code.ALIAS_GONE


def test_refused_turn_does_not_refresh_a_lineage() -> None:
    world = sliding()
    world.turn("a")
    world.wait(99)
    assert world.turn("a").code is Code.RESPONSE_EXISTS
    world.wait(1)
    assert world.turn("a").code is Code.ALIAS_GONE


@pytest.mark.parametrize("is_sliding", [False, True])
def test_conversation_lives_a_ttl_after_its_last_entry(is_sliding: bool) -> None:
    world = World()
    world.change_policy(sliding=is_sliding)
    world.create_conversation("c")
    world.wait(99)
    world.append_items("c", ["i"])
    world.wait(99)
    assert world.create_conversation("c").code is Code.REVISION_CONFLICT
    world.wait(11)
    assert world.turn("a", conversation="c").code is Code.CONVERSATION_GONE


def test_child_outlives_its_parent_with_its_whole_history(world: World) -> None:
    """Case B25: also when the parent's tombstone is gone and its ID is used again."""
    world.turn("a")
    world.wait(90)
    world.turn("b", parent="a")
    world.tick_after(62)
    assert world.response("a") is None
    assert world.history("b") == [2, 1]
    world.turn("a", native=True)
    assert world.history("b") == [2, 1]
    assert world.turn("c", parent="b").code is Code.ACCEPTED
    assert world.history("c")[1:] == [2, 1]
    assert world.unneeded() == []


# Tombstones


def test_tombstone_says_why_and_when_without_the_raw_ids(world: World) -> None:
    world.turn("a", sealed=b"raw")
    world.wait(5)
    world.delete("a")
    row = present(world.response("a"))
    assert (row.fate, row.gone_at_ms, row.sealed) == (Fate.DELETED, T0_MS + 5_000, b"")
    assert row.forget_at_ms == T0_MS + 55_000
    assert world.principal().tombstones == 1
    assert world.delete("a").code is Code.ALIAS_GONE


@pytest.mark.parametrize("ticked", [False, True], ids=["before the queue ran", "after the queue ran"])
@pytest.mark.parametrize(("after_s", "code"), [(49.999, Code.ALIAS_GONE), (50, Code.ACCEPTED)])
def test_forgotten_alias_can_be_claimed_again(world: World, after_s: float, code: Code, ticked: bool) -> None:
    world.turn("a", items=["i"])
    world.delete("a")
    world.wait(after_s)
    if ticked:
        world.settle()
    assert world.turn("a", items=["i"], native=True).code is code
    check(Table.of(world.stored()))


@pytest.mark.parametrize("ticked", [False, True], ids=["before the queue ran", "after the queue ran"])
def test_lineage_that_begins_anew_does_not_revive_what_had_expired(ticked: bool) -> None:
    world = sliding()
    world.turn("a", conversation="c")
    world.wait(150)
    if ticked:
        world.settle()
    assert world.turn("b", conversation="c", native=True).code is Code.ACCEPTED
    assert world.turn("d", parent="a").code is Code.PARENT_UNKNOWN
    assert world.turn("a", native=True).code is Code.ACCEPTED
    world.settle()
    check(Table.of(world.stored()))


def test_forgotten_conversation_starts_anew(world: World) -> None:
    world.turn("a", conversation="c")
    world.delete_conversation("c")
    world.wait(50)
    assert world.turn("b", conversation="c", expected_revision=0, native=True).code is Code.ACCEPTED
    assert world.history("b") == [world.last_offset]


@pytest.mark.parametrize(("number", "forgotten"), [(2, False), (3, True)])
def test_oldest_tombstone_over_the_maximum_is_forgotten_early(world: World, number: int, forgotten: bool) -> None:
    world.change_policy(tombstones_per_principal_max=2)
    for index in range(number):
        world.turn(f"r{index}")
        world.delete(f"r{index}")
        world.wait(1)
    assert (world.response("r0") is None) == forgotten
    assert world.principal().tombstones == 2
    assert present(world.response(f"r{number - 1}")).fate == Fate.DELETED


def test_tombstones_of_one_principal_do_not_push_out_anothers(world: World) -> None:
    world.change_policy(tombstones_per_principal_max=1)
    for principal in ("alice", "bob"):
        world.turn("a", principal=principal)
        world.delete("a", principal=principal)
    assert present(world.response("a", "alice")).fate == present(world.response("a", "bob")).fate == Fate.DELETED


# Holds


def test_node_goes_when_its_response_is_out_of_grace(world: World) -> None:
    world.turn("a")
    world.delete("a")
    world.tick_after(9.999)
    assert world.node(1) is not None
    world.tick_after(0.001)
    assert world.node(1) is None
    assert world.unneeded() == [1]
    assert world.lineage(response_alias("a")) is None


def test_chain_goes_from_the_leaf_and_reports_each_content_once(world: World) -> None:
    """Case A11: no ancestor goes while a descendant lives."""
    for child, parent in (("a", None), ("b", "a"), ("c", "b")):
        world.turn(child, parent=parent)
    world.delete("a")
    world.delete("b")
    world.tick_after(10)
    assert world.history("c") == [3, 2, 1]
    assert world.unneeded() == []
    world.delete("c")
    world.tick_after(10)
    assert world.unneeded() == [3, 2, 1]


def test_conversation_holds_its_head_when_every_response_is_deleted(world: World) -> None:
    world.turn("a", conversation="c")
    world.turn("b", conversation="c")
    world.delete("a")
    world.delete("b")
    world.tick_after(60)
    world.turn("d", conversation="c")
    assert world.history("d")[1:] == [2, 1]
    assert world.unneeded() == []


def test_responses_of_a_deleted_conversation_live_on(world: World) -> None:
    world.turn("a", conversation="c")
    world.delete_conversation("c")
    world.tick_after(20)
    assert world.turn("b", parent="a").code is Code.ACCEPTED
    assert world.unneeded() == []


def test_deleted_conversation_lets_its_item_batches_go(world: World) -> None:
    world.create_conversation("c", metadata=world.content(number=7), items=["i"], content=world.content(number=8))
    world.append_items("c", ["j"], content=world.content(number=9))
    world.delete_conversation("c")
    assert world.unneeded() == [7]
    world.tick_after(10)
    assert world.unneeded() == [7, 9, 8]
    assert present(world.item("i")).fate == Fate.DELETED
    assert world.principal().size_bytes == 0


# Cascade


def test_cascade_takes_the_whole_lineage_at_once(world: World) -> None:
    world.turn("a", conversation="c", items=["i"])
    world.turn("branch", parent="a")
    world.turn("other")
    world.delete_conversation("c", cascade=True)
    assert world.delete("a").code is Code.ALIAS_GONE
    assert world.turn("branch").code is Code.ALIAS_GONE
    assert (world.principal().records, world.principal().size_bytes) == (1, 100)
    world.tick_after(10)
    assert sorted(world.unneeded()) == [1, 2]
    assert present(world.item("i")).fate == Fate.DELETED
    assert present(world.response("other")).fate == Fate.LIVING


def test_cascade_leaves_grace_to_turns_under_way(world: World) -> None:
    world.turn("a", conversation="c")
    world.delete_conversation("c", cascade=True)
    world.wait(9.999)
    assert world.turn("b", parent="a").code is Code.ACCEPTED
    world.tick_after(20)
    assert world.history("b") == [3, 1]
    assert world.turn("d", parent="b").code is Code.ACCEPTED
    assert world.turn("d2", parent="a").code is Code.PARENT_GONE


@pytest.mark.parametrize("over", [0, 1])
def test_one_look_at_the_queue_ends_a_bounded_number_of_nodes(world: World, over: int) -> None:
    """A cascade of as many nodes as one look may end is done at once; of one more, it goes on at the next."""
    count = QUEUE_TASKS_MAX - 1 + over
    for index in range(count):
        world.turn(f"r{index}", conversation="c")
    world.delete_conversation("c", cascade=True)
    world.tick()
    living = [index for index in range(count) if present(world.response(f"r{index}")).fate == Fate.LIVING]
    assert living == []
    assert (world.rows.meta.queue_due_ms <= world.rows.meta.clock_ms) == bool(over)
    assert world.delete(f"r{count - 1}").code is Code.ALIAS_GONE
    for _ in range(3):
        world.tick_after(10)
    assert len(world.unneeded()) == count


# Eviction


@pytest.mark.parametrize(("number", "evicted"), [(3, []), (4, ["r0"]), (5, ["r0", "r1"])])
def test_oldest_responses_over_the_record_budget_are_evicted(world: World, number: int, evicted: list[str]) -> None:
    world.change_policy(principal_records_max=3)
    for index in range(number):
        world.turn(f"r{index}")
    gone = [name for name in (f"r{index}" for index in range(number)) if present(world.response(name)).fate]
    assert gone == evicted
    assert all(present(world.response(name)).fate == Fate.EVICTED for name in gone)
    assert world.principal().records == 3


def test_evicted_parent_has_no_grace_and_its_childs_history_stays(world: World) -> None:
    world.change_policy(principal_records_max=1)
    world.turn("a")
    world.turn("b", parent="a")
    assert world.turn("c", parent="a").code is Code.PARENT_GONE
    world.tick_after(1)
    assert world.history("b") == [3, 2]


def test_overhang_after_a_lowered_budget_shrinks_by_a_bounded_number_per_turn(world: World) -> None:
    for index in range(10):
        world.turn(f"r{index}")
    world.change_policy(principal_records_max=1)
    world.turn("x0")
    assert world.principal().records == 11 - EVICTIONS_MAX
    for index in range(1, 4):
        world.turn(f"x{index}")
    assert world.principal().records == 1


@pytest.mark.parametrize(("size_bytes", "evicted"), [(100, False), (101, True)])
def test_idlest_lineage_over_the_byte_budget_is_evicted_whole(world: World, size_bytes: int, evicted: bool) -> None:
    world.change_policy(principal_bytes_max=400)
    world.turn("a")
    world.turn("b")
    world.turn("a2", parent="a")
    world.turn("c", size_bytes=size_bytes)
    code = Code.PARENT_GONE if evicted else Code.ACCEPTED
    assert world.turn("b2", parent="b", size_bytes=0).code is code
    assert world.turn("a3", parent="a2", size_bytes=0).code is Code.ACCEPTED


def test_lineage_being_written_is_never_evicted(world: World) -> None:
    world.change_policy(principal_bytes_max=150)
    world.turn("a")
    assert world.turn("b", parent="a").code is Code.ACCEPTED
    assert world.principal().size_bytes == 200
    assert world.history("b") == [3, 2]


def test_eviction_by_bytes_takes_conversation_and_responses(world: World) -> None:
    world.change_policy(principal_bytes_max=150)
    world.turn("a", conversation="c")
    world.turn("b")
    assert world.turn("a2", conversation="c").code is Code.CONVERSATION_GONE
    world.tick_after(1)
    assert present(world.conversation("c")).fate == present(world.response("a")).fate == Fate.EVICTED
    assert world.unneeded() == [2]


def test_budget_of_one_principal_does_not_evict_anothers(world: World) -> None:
    world.change_policy(principal_records_max=1, principal_bytes_max=100)
    world.turn("a", principal="alice")
    world.turn("a", principal="bob")
    assert present(world.response("a", "alice")).fate == Fate.LIVING


def test_response_that_expired_before_it_could_be_evicted_has_expired(world: World) -> None:
    world.change_policy(principal_records_max=1)
    world.turn("a")
    world.wait(100)
    world.turn("b")
    row = present(world.response("a"))
    assert (row.fate, row.gone_at_ms) == (Fate.EXPIRED, T0_MS + 100 * SECOND_MS)


# The queue


def test_queue_runs_at_fixed_offsets_and_at_ticks(world: World) -> None:
    world.turn("a")
    world.wait(200)
    while world.next_offset % QUEUE_EVERY_RECORDS:
        assert world.response("a") is not None
        world.append_bytes(b"poison")
    world.turn("b")
    assert world.response("a") is None


def test_everything_goes_in_the_end(world: World) -> None:
    world.start("t", response="a", conversation="c", exclusive=True, key="k")
    world.turn("a", conversation="c", turn_id="t", key="k", items=["i"])
    world.create_conversation("d", metadata=world.content(number=50))
    world.append_items("d", ["j"])
    world.start("u", response="never")
    for _ in range(3):
        world.tick_after(300)
    left = Table.of(world.stored())
    assert {kind for kind, rows in (left.points | left.indexes).items() if rows} == {Kind.META, Kind.PRINCIPAL}
    assert sorted(world.unneeded()) == [2, 4, 50]
