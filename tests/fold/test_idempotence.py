"""Rules 5 and 7: event IDs and idempotency keys."""

import pytest

from ledger.turn import Status
from ledger.verdict import Code
from tests.fold.given import World, present
from tests.fold.names import T0_MS, event_digest, key_digest


def test_redelivered_turn_answers_its_first_verdict_and_place(world: World) -> None:
    """Case B1."""
    first = world.turn("a", event_id="e", conversation="c")
    again = world.again(world.last_offset)
    assert again.code is Code.DUPLICATE
    assert (again.first, again.first_offset) == (Code.ACCEPTED, 1)
    assert (again.node, again.revision) == (first.node, first.revision)
    assert again.event_id == event_digest("e")


def test_redelivered_refusal_answers_the_refusal_even_if_it_would_pass_now(world: World) -> None:
    world.turn("b", parent="a", event_id="e")
    world.turn("a")
    again = world.turn("b", parent="a", event_id="e")
    assert (again.code, again.first) == (Code.DUPLICATE, Code.PARENT_UNKNOWN)
    assert world.turn("b", parent="a", event_id="another").code is Code.ACCEPTED


def test_retry_with_another_content_changes_nothing(world: World) -> None:
    """Case B19: the copy that the first append named stays the one that counts."""
    world.turn("a", event_id="e", content=world.content(number=1))
    world.turn("a", event_id="e", content=world.content(number=2))
    node = present(world.node_of("a"))
    assert present(node.content).last_offset == 1
    assert world.unneeded() == []


def test_event_ids_of_two_principals_are_different_ids(world: World) -> None:
    world.turn("a", event_id="e", principal="alice")
    assert world.turn("a", event_id="e", principal="bob").code is Code.ACCEPTED


@pytest.mark.parametrize(("late_ms", "code"), [(0, Code.ACCEPTED), (1, Code.TOO_LATE)])
def test_not_after_is_the_last_moment(world: World, late_ms: int, code: Code) -> None:
    """Case B24: a batch that lands hours later is refused."""
    not_after_ms = world.now_ms + 5_000
    world.now_ms = not_after_ms + late_ms
    assert world.turn("a", not_after_ms=not_after_ms).code is code


def test_deleted_response_does_not_come_back_with_a_late_batch(world: World) -> None:
    """Case B24: also when the tombstone and the memory of the event ID are gone."""
    world.turn("a")
    world.delete("a")
    world.tick_after(200)
    assert world.response("a") is None
    assert world.again(1).code is Code.TOO_LATE


def test_event_id_is_remembered_one_event_window_longer_than_it_could_be_accepted(world: World) -> None:
    """So that who waited until ``not_after`` can still abandon it (case A5)."""
    world.turn("a", event_id="e")
    row = present(world.rows.event(event_digest("e")))
    assert row.until_ms == T0_MS + 20_000 + 60_000
    world.tick_after(80)
    assert world.rows.event(event_digest("e")) is not None
    world.tick_after(0.001)
    assert world.rows.event(event_digest("e")) is None


@pytest.mark.parametrize(("over_ms", "code"), [(0, Code.ACCEPTED), (1, Code.INVALID)])
def test_not_after_may_lie_one_event_window_ahead(world: World, over_ms: int, code: Code) -> None:
    outcome = world.turn("a", event_id="e", not_after_ms=world.now_ms + 60_000 + over_ms)
    assert outcome.code is code
    assert (world.rows.event(event_digest("e")) is None) == (code is Code.INVALID)


def test_second_attempt_with_a_key_is_answered_by_the_first_accepted_turn(world: World) -> None:
    first = world.turn("a", key="k")
    again = world.turn("b", key="k")
    assert (again.code, again.first, again.node) == (Code.DUPLICATE, Code.ACCEPTED, first.node)
    assert world.response("b") is None


def test_refusal_does_not_bind_the_key(world: World) -> None:
    assert world.turn("b", parent="unknown", key="k").code is Code.PARENT_UNKNOWN
    assert world.turn("b", key="k", request="another").code is Code.ACCEPTED


def test_failed_turn_binds_its_key(world: World) -> None:
    world.turn("a", key="k", status=Status.FAILED)
    assert world.turn("b", key="k").code is Code.DUPLICATE


def test_key_answers_for_its_own_time(world: World) -> None:
    world.turn("a", key="k")
    world.wait(29.999)
    assert world.turn("b", key="k").code is Code.DUPLICATE
    world.wait(0.001)
    assert world.turn("c", key="k", request="another").code is Code.ACCEPTED


def test_key_is_forgotten_after_its_time(world: World) -> None:
    world.turn("a", key="k")
    world.tick_after(30)
    assert world.rows.key(key_digest("k")) is None


def test_keys_of_two_principals_are_different_keys(world: World) -> None:
    world.turn("a", key="k", principal="alice")
    assert world.turn("a", key="k", principal="bob").code is Code.ACCEPTED


def test_key_without_a_digest_of_its_request_is_invalid(world: World) -> None:
    outcome = world.turn("a", key="k", request="")
    assert (outcome.code, outcome.reason) == (Code.INVALID, "request_digest and idempotency must come together")


def test_running_attempt_makes_the_others_wait_until_its_lease_ends(world: World) -> None:
    world.start("t", key="k", lease_s=5)
    assert world.turn("b", key="k").code is Code.KEY_IN_PROGRESS
    assert world.start("u", key="k").code is Code.KEY_IN_PROGRESS
    assert world.turn("b", key="k", request="another").code is Code.IDEMPOTENCY_CONFLICT
    world.wait(5)
    assert world.turn("c", key="k", request="another").code is Code.ACCEPTED


def test_running_attempt_binds_its_key_when_it_ends(world: World) -> None:
    world.start("t", key="k")
    first = world.turn("a", key="k", turn_id="t")
    assert first.code is Code.ACCEPTED
    assert world.turn("b", key="k").node == first.node


def test_attempt_that_ends_without_its_key_releases_it(world: World) -> None:
    world.start("t", key="k")
    world.turn("a", turn_id="t", status=Status.FAILED)
    assert world.turn("b", key="k").code is Code.ACCEPTED


def test_duplicate_by_key_is_remembered_as_such(world: World) -> None:
    world.turn("a", key="k")
    by_key = world.turn("b", key="k", event_id="e")
    again = world.turn("b", key="k", event_id="e")
    assert by_key.first is Code.ACCEPTED
    assert (again.code, again.first, again.node) == (Code.DUPLICATE, Code.DUPLICATE, by_key.node)


def test_key_of_an_erased_turn_is_free(world: World) -> None:
    world.turn("a", key="k")
    world.erase()
    assert world.turn("b", key="k", request="another").code is Code.ACCEPTED
