"""Rules 8, 9, 11 and 12: started turns, aliases, parents, contents and limits."""

import pytest

from ledger.turn import Status
from ledger.verdict import Code
from tests.fold.given import World, present
from tests.fold.names import T0_MS, response_alias, turn_digest

CONTINUED = [Status.COMPLETED, Status.INCOMPLETE]
NOT_CONTINUED = [Status.FAILED, Status.CANCELLED]


def test_turn_claims_its_response_and_is_its_own_lineage(world: World) -> None:
    outcome = world.turn("a", size_bytes=7, sealed=b"raw")
    assert (outcome.code, outcome.node) == (Code.ACCEPTED, 1)
    row, node = present(world.response("a")), present(world.node_of("a"))
    assert (row.node, row.lineage, row.sealed) == (1, response_alias("a"), b"raw")
    assert (node.parent, node.lineage, node.size_bytes) == (0, response_alias("a"), 10)


def test_child_joins_its_parents_lineage(world: World) -> None:
    world.turn("a")
    world.turn("b", parent="a")
    world.turn("c", parent="b")
    assert world.history("c") == [3, 2, 1]
    assert present(world.response("c")).lineage == response_alias("a")


def test_branches_see_their_own_ancestors_only(world: World) -> None:
    """Case A10."""
    world.turn("a")
    world.turn("b1", parent="a")
    world.turn("b2", parent="a")
    world.turn("c1", parent="b1")
    assert world.history("c1") == [4, 2, 1]
    assert present(world.node(1)).child_holds == 2


@pytest.mark.parametrize("native", [True, False])
def test_response_is_claimed_once(world: World, native: bool) -> None:
    world.turn("a", native=native, target="p1")
    assert world.turn("a", native=native, target="p1").code is Code.RESPONSE_EXISTS
    assert world.turn("a", native=not native, target="p1").code is Code.OWNER_CONFLICT
    row = present(world.response("a"))
    assert (row.node, row.owner.native) == (1, native)


def test_target_of_a_portable_turn_is_only_a_hint(world: World) -> None:
    world.turn("a", target="p1")
    assert world.turn("a", target="p2").code is Code.RESPONSE_EXISTS


def test_item_keeps_its_first_node(world: World) -> None:
    world.turn("a", items=["i", "j"])
    assert world.turn("b", items=["i", "k"]).code is Code.ACCEPTED
    assert [present(world.item(name)).node for name in "ijk"] == [1, 1, 2]


def test_one_id_of_two_principals_is_two_responses(world: World) -> None:
    """Case A19."""
    world.turn("a", principal="alice")
    assert world.turn("b", parent="a", principal="bob").code is Code.PARENT_UNKNOWN
    assert world.delete("a", principal="bob").code is Code.RESPONSE_UNKNOWN
    assert world.turn("a", principal="bob", native=True).code is Code.ACCEPTED


def test_native_turn_may_have_a_parent_that_was_never_seen(world: World) -> None:
    world.turn("b", parent="a", native=True)
    assert world.history("b") == [1]
    assert present(world.response("b")).lineage == response_alias("b")


def test_native_turn_may_not_have_a_parent_that_is_known_to_be_gone(world: World) -> None:
    world.turn("a", native=True)
    world.delete("a")
    world.wait(10)
    assert world.turn("b", parent="a", native=True).code is Code.PARENT_GONE


def test_native_turn_may_continue_a_portable_one_but_not_the_reverse(world: World) -> None:
    world.turn("a")
    assert world.turn("b", parent="a", native=True).code is Code.ACCEPTED
    assert world.turn("c", parent="b").code is Code.PARENT_NOT_PORTABLE


@pytest.mark.parametrize("status", CONTINUED)
def test_completed_and_incomplete_turns_can_be_continued(world: World, status: Status) -> None:
    world.turn("a", status=status)
    assert world.turn("b", parent="a").code is Code.ACCEPTED


@pytest.mark.parametrize("status", NOT_CONTINUED)
def test_failed_and_cancelled_turns_cannot_be_continued(world: World, status: Status) -> None:
    world.turn("a", status=status)
    assert world.turn("b", parent="a").code is Code.PARENT_UNFINISHED


def test_turn_in_progress_cannot_be_continued(world: World) -> None:
    """Case A6."""
    world.start("t", response="a")
    assert world.turn("b", parent="a").code is Code.PARENT_UNFINISHED


@pytest.mark.parametrize("native", [True, False])
def test_contradictions_are_invalid(world: World, native: bool) -> None:
    content = world.content()
    assert world.turn("a", parent="b", conversation="c", native=native).code is Code.INVALID
    assert world.turn("a", expected_revision=0, native=native).code is Code.INVALID
    assert world.turn("a", native=True, content=content).code is Code.INVALID
    assert world.turn("a", status=Status.FAILED, key="k", request="").code is Code.INVALID


def test_portable_turn_that_can_be_continued_needs_content(world: World) -> None:
    world.turn("a", event_id="e")
    failed = world.turn("b", status=Status.FAILED)
    assert failed.code is Code.ACCEPTED
    assert present(world.node_of("b")).content is None


# Started turns


def test_started_turn_shows_its_response_in_progress(world: World) -> None:
    world.start("t", response="a", lease_s=5)
    row = present(world.response("a"))
    assert (row.status, row.lease_until_ms, row.turn_id) == (Status.IN_PROGRESS, T0_MS + 5_000, turn_digest("t"))
    assert world.start("u", response="a").code is Code.RESPONSE_EXISTS
    assert world.turn("a").code is Code.RESPONSE_EXISTS


def test_first_terminal_of_a_started_turn_wins(world: World) -> None:
    world.start("t", response="a")
    assert world.turn("a", turn_id="t", status=Status.CANCELLED).code is Code.ACCEPTED
    assert world.turn("a", turn_id="t").code is Code.TURN_ENDED
    assert world.start("t", response="a").code is Code.TURN_ENDED
    assert present(world.response("a")).status == Status.CANCELLED


def test_terminal_for_another_response_is_refused(world: World) -> None:
    world.start("t", response="a")
    assert world.turn("b", turn_id="t").code is Code.TURN_UNKNOWN


def test_turn_started_without_a_response_may_end_with_any(world: World) -> None:
    world.start("t")
    assert world.turn("a", turn_id="t").code is Code.ACCEPTED


@pytest.mark.parametrize(("after_s", "code"), [(4.999, Code.ACCEPTED), (5, Code.LEASE_EXPIRED)])
def test_lease_ends_by_the_partition_clock(world: World, after_s: float, code: Code) -> None:
    world.start("t", response="a", lease_s=5)
    world.wait(after_s)
    assert world.turn("a", turn_id="t").code is code


def test_renewal_extends_the_lease_and_never_shortens_it(world: World) -> None:
    world.start("t", response="a", lease_s=5)
    world.wait(4)
    assert world.start("t", response="a", lease_s=0).code is Code.ACCEPTED
    assert present(world.response("a")).lease_until_ms == T0_MS + 5_000
    world.start("t", response="a", lease_s=5)
    world.wait(4.999)
    assert world.turn("a", turn_id="t").code is Code.ACCEPTED
    assert world.history("a") == [world.last_offset]


def test_lease_cannot_be_renewed_after_its_end(world: World) -> None:
    world.start("t", lease_s=5)
    world.wait(5)
    assert world.start("t", lease_s=5).code is Code.LEASE_EXPIRED


def test_renewal_for_something_else_is_invalid(world: World) -> None:
    world.start("t", response="a", conversation="c", exclusive=True)
    assert world.start("t", response="b", conversation="c").code is Code.INVALID
    assert world.start("t", response="a", conversation="d").code is Code.INVALID
    assert world.start("t", response="a", conversation="c", key="k").code is Code.INVALID


def test_renewal_may_name_the_response_that_the_start_could_not_know(world: World) -> None:
    world.start("t", conversation="c", exclusive=True)
    assert world.start("t", response="a", conversation="c", exclusive=True).code is Code.ACCEPTED
    assert present(world.response("a")).status == Status.IN_PROGRESS
    assert world.start("t", response="b", conversation="c", exclusive=True).code is Code.INVALID
    assert world.start("t", conversation="c", exclusive=True).code is Code.INVALID
    assert world.turn("a", conversation="c", turn_id="t").code is Code.ACCEPTED


@pytest.mark.parametrize(("lease_s", "counted_ms"), [(19.999, 19_999), (20, 20_000), (20.001, 20_000)])
def test_lease_is_bounded_by_the_policy(world: World, lease_s: float, counted_ms: int) -> None:
    world.start("t", response="a", lease_s=lease_s)
    assert present(world.response("a")).lease_until_ms == T0_MS + counted_ms


@pytest.mark.parametrize("ticked", [False, True], ids=["before the queue ran", "after the queue ran"])
def test_turn_without_a_terminal_is_forgotten_one_event_window_after_its_lease(world: World, ticked: bool) -> None:
    world.change_policy(tombstone_ttl_ms=100_000)
    world.start("t", response="a", conversation="c", exclusive=True, lease_s=5)
    world.wait(64.999)
    if ticked:
        world.settle()
    assert world.turn("a", turn_id="t").code is Code.LEASE_EXPIRED
    assert world.turn("a").code is Code.RESPONSE_EXISTS
    world.wait(0.001)
    if ticked:
        world.settle()
    assert world.turn("a", turn_id="t").code is Code.TURN_UNKNOWN
    assert world.turn("a").code is Code.ALIAS_GONE
    assert world.start("t").code is Code.ACCEPTED


def test_deleted_turn_in_progress_cannot_end_any_more(world: World) -> None:
    world.start("t", response="a")
    assert world.delete("a").code is Code.ACCEPTED
    assert world.turn("a", turn_id="t").code is Code.ALIAS_GONE


# Contents and limits


@pytest.mark.parametrize(("age_s", "code"), [(60, Code.ACCEPTED), (60.001, Code.CONTENT_STALE)])
def test_content_is_stale_after_its_grace(world: World, age_s: float, code: Code) -> None:
    assert world.turn("a", content=world.content(age_s=age_s)).code is code


def test_lineage_keeps_so_many_turns(world: World) -> None:
    world.change_policy(lineage_turns_max=2)
    world.turn("a", conversation="c")
    assert world.append_items("c", ["i"]).code is Code.ACCEPTED
    outcome = world.turn("b", conversation="c")
    assert (outcome.code, outcome.reason) == (Code.LIMIT_EXCEEDED, "lineage_turns_max")
    assert world.append_items("c", ["j"]).code is Code.LIMIT_EXCEEDED
    assert world.turn("d").code is Code.ACCEPTED


@pytest.mark.parametrize(("size_bytes", "code"), [(40, Code.ACCEPTED), (41, Code.LIMIT_EXCEEDED)])
def test_lineage_keeps_so_many_bytes(world: World, size_bytes: int, code: Code) -> None:
    world.change_policy(lineage_bytes_max=100)
    world.turn("a", size_bytes=60)
    outcome = world.turn("b", parent="a", size_bytes=size_bytes)
    assert outcome.code is code
    assert outcome.reason == ("" if code is Code.ACCEPTED else "lineage_bytes_max")


@pytest.mark.parametrize(("size_bytes", "code"), [(100, Code.ACCEPTED), (101, Code.LIMIT_EXCEEDED)])
def test_what_can_never_fit_a_principal_is_refused(world: World, size_bytes: int, code: Code) -> None:
    world.change_policy(principal_bytes_max=100)
    outcome = world.turn("a", size_bytes=size_bytes)
    assert outcome.code is code
    assert outcome.reason == ("" if code is Code.ACCEPTED else "principal_bytes_max")


def test_lineage_has_room_again_when_its_turns_are_gone(world: World) -> None:
    world.change_policy(lineage_turns_max=2)
    world.turn("a")
    world.turn("b", parent="a")
    world.delete("b")
    world.tick_after(10)
    assert world.turn("c", parent="a").code is Code.ACCEPTED
