"""A router gave a commit up: before it, after it, and after something was built on it."""

import pytest

from ledger.rows import Fate
from ledger.turn import Status
from ledger.verdict import Code
from tests.fold.given import World, present
from tests.fold.names import conversation_alias, event_digest, key_digest


def test_abandonment_before_the_turn_blocks_it(world: World) -> None:
    assert world.abandon("e").code is Code.ACCEPTED
    blocked = world.turn("a", event_id="e")
    assert (blocked.code, blocked.first) == (Code.DUPLICATE, Code.ABANDONED)
    assert world.response("a") is None


def test_blocking_lasts_as_long_as_the_turn_could_be_accepted(world: World) -> None:
    world.abandon("e")
    assert present(world.rows.event(event_digest("e"))).until_ms == world.now_ms + 60_000


def test_abandonment_after_the_turn_undoes_it(world: World) -> None:
    world.turn("a", event_id="e", items=["i"])
    assert world.abandon("e").code is Code.ACCEPTED
    assert present(world.response("a")).fate == Fate.ABANDONED
    assert present(world.item("i")).fate == Fate.ABANDONED
    assert world.node(1) is None
    assert world.unneeded() == [1]
    assert (world.principal().records, world.principal().size_bytes) == (0, 0)


def test_undone_turn_cannot_be_continued_or_claimed_again(world: World) -> None:
    world.turn("a", event_id="e")
    world.abandon("e")
    assert world.turn("b", parent="a").code is Code.PARENT_GONE
    assert world.turn("a").code is Code.ALIAS_GONE
    again = world.turn("a", event_id="e")
    assert (again.code, again.first, again.node) == (Code.DUPLICATE, Code.ABANDONED, 0)


def test_second_abandonment_finds_nothing_to_do(world: World) -> None:
    world.turn("a", event_id="e")
    world.abandon("e")
    assert world.abandon("e").code is Code.ACCEPTED
    assert world.unneeded() == [1]


def test_undone_turn_gives_the_conversation_back(world: World) -> None:
    """Case A5: the turn the client was told had failed does not turn up as the head."""
    world.turn("a", conversation="c")
    world.turn("b", conversation="c", event_id="e")
    world.abandon("e")
    row = present(world.conversation("c"))
    assert (row.head, row.revision) == (1, 3)
    assert world.turn("d", conversation="c", expected_revision=2).code is Code.REVISION_CONFLICT
    world.turn("d", conversation="c", expected_revision=3)
    assert world.history("d") == [world.last_offset, 1]


def test_undone_first_turn_takes_its_conversation_with_it(world: World) -> None:
    world.turn("a", conversation="c", event_id="e")
    world.abandon("e")
    assert world.conversation("c") is None
    assert world.lineage(conversation_alias("c")) is None
    assert world.turn("b", conversation="c", expected_revision=0).code is Code.ACCEPTED


def test_undone_creation_takes_the_conversation_and_its_contents(world: World) -> None:
    world.create_conversation(
        "c", metadata=world.content(number=7), content=world.content(number=8), items=["i"], event_id="e"
    )
    assert world.abandon("e").code is Code.ACCEPTED
    assert world.conversation("c") is None
    assert sorted(world.unneeded()) == [7, 8]
    assert world.principal().size_bytes == 0


def test_undone_item_batch_gives_the_conversation_back(world: World) -> None:
    world.turn("a", conversation="c")
    world.append_items("c", ["i"], event_id="e")
    assert world.abandon("e").code is Code.ACCEPTED
    assert present(world.conversation("c")).head == 1
    assert present(world.item("i")).fate == Fate.ABANDONED


def test_child_keeps_its_parent(world: World) -> None:
    world.turn("a", event_id="e")
    world.turn("b", parent="a")
    assert world.abandon("e").code is Code.KEPT
    assert world.history("b") == [2, 1]


def test_parent_can_be_undone_after_its_child_was(world: World) -> None:
    world.turn("a", event_id="e1")
    world.turn("b", parent="a", event_id="e2")
    assert world.abandon("e2").code is Code.ACCEPTED
    assert world.abandon("e1").code is Code.ACCEPTED
    assert world.unneeded() == [2, 1]


@pytest.mark.parametrize("change", ["turn", "items", "metadata", "failed turn", "deletion"])
def test_later_change_of_the_conversation_keeps_the_turn(world: World, change: str) -> None:
    world.turn("a", conversation="c", event_id="e")
    match change:
        case "turn":
            world.turn("b", conversation="c")
        case "items":
            world.append_items("c", ["i"])
        case "metadata":
            world.update_conversation("c", metadata=world.content())
        case "failed turn":
            world.turn("b", conversation="c", status=Status.FAILED)
        case _:
            world.delete_conversation("c")
    assert world.abandon("e").code is Code.KEPT
    assert present(world.response("a")).fate == Fate.LIVING


def test_duplicate_answered_from_its_key_keeps_the_turn(world: World) -> None:
    """Case B23: another replica answered a retry of the same client key from it."""
    world.turn("a", key="k", event_id="e")
    assert world.turn("b", key="k").code is Code.DUPLICATE
    assert world.abandon("e").code is Code.KEPT


def test_turn_whose_key_answered_nobody_goes_and_frees_the_key(world: World) -> None:
    """Case B23."""
    world.turn("a", key="k", event_id="e")
    world.abandon("e")
    assert world.rows.key(key_digest("k")) is None
    assert world.turn("b", key="k").code is Code.ACCEPTED


def test_start_answered_from_the_key_keeps_the_turn_too(world: World) -> None:
    world.turn("a", key="k", event_id="e")
    assert world.start("t", key="k").code is Code.DUPLICATE
    assert world.abandon("e").code is Code.KEPT


def test_same_retry_of_the_abandoned_append_is_not_an_answer(world: World) -> None:
    world.turn("a", key="k", event_id="e")
    world.turn("a", key="k", event_id="e")
    assert world.abandon("e").code is Code.ACCEPTED


def test_abandoned_refusal_stays_refused(world: World) -> None:
    world.turn("b", parent="a", event_id="e")
    assert world.abandon("e").code is Code.ACCEPTED
    assert world.turn("b", parent="a", event_id="e").first is Code.PARENT_UNKNOWN


def test_abandoned_duplicate_does_not_undo_the_turn_that_answered_it(world: World) -> None:
    world.turn("a", key="k")
    world.turn("b", key="k", event_id="e")
    assert world.abandon("e").code is Code.ACCEPTED
    assert present(world.response("a")).fate == Fate.LIVING


def test_abandonment_of_another_principals_event_does_nothing(world: World) -> None:
    world.turn("a", event_id="e", principal="alice")
    world.abandon("e", principal="bob")
    assert present(world.response("a", "alice")).fate == Fate.LIVING


def test_deletion_cannot_be_abandoned(world: World) -> None:
    world.turn("a")
    world.delete("a")
    deletion = f"append-{world.last_offset}"
    assert world.abandon(deletion).code is Code.KEPT


@pytest.mark.parametrize("ticked", [False, True], ids=["before the queue ran", "after the queue ran"])
def test_abandonment_of_an_erased_turn_finds_nothing_to_do(world: World, ticked: bool) -> None:
    world.turn("a", conversation="c", event_id="e")
    world.erase()
    if ticked:
        world.settle()
    assert world.abandon("e").code is Code.ACCEPTED
    world.settle()
    assert present(world.response("a")).fate == Fate.ERASED


def test_undone_alias_claimed_again_after_its_tombstone_is_not_undone_twice(world: World) -> None:
    world.change_policy(tombstones_per_principal_max=0)
    world.turn("a", event_id="e1", conversation="c")
    world.delete("a")
    world.turn("a", event_id="e2")
    assert world.abandon("e1").code is Code.ACCEPTED
    assert present(world.response("a")).fate == Fate.LIVING


def test_turn_abandoned_after_its_deletion_cannot_be_continued_within_the_grace(world: World) -> None:
    world.turn("a", event_id="e")
    world.delete("a")
    assert world.abandon("e").code is Code.ACCEPTED
    assert world.turn("b", parent="a").code is Code.PARENT_GONE
