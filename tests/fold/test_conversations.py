"""Rule 10: heads, revisions, locks, owners; and what changes a conversation outside a turn."""

import pytest

from ledger.turn import Status
from ledger.verdict import Code
from tests.fold.given import World, present
from tests.fold.names import conversation_alias


def test_first_turn_that_names_a_conversation_makes_it(world: World) -> None:
    outcome = world.turn("a", conversation="c")
    row = present(world.conversation("c"))
    assert (row.head, row.revision, row.created_offset) == (1, 1, 1)
    assert outcome.revision == 1
    assert present(world.response("a")).lineage == conversation_alias("c")


def test_each_turn_of_a_conversation_continues_the_entry_before_it(world: World) -> None:
    world.turn("a", conversation="c")
    world.append_items("c", ["i"])
    world.turn("b", conversation="c")
    assert world.history("b") == [3, 2, 1]
    assert present(world.conversation("c")).head == 3


def test_branch_off_a_conversations_turn_does_not_change_it(world: World) -> None:
    world.turn("a", conversation="c")
    world.turn("b", conversation="c")
    world.turn("branch", parent="a")
    row = present(world.conversation("c"))
    assert (row.head, row.revision) == (2, 2)
    assert present(world.response("branch")).lineage == conversation_alias("c")
    assert world.history("branch") == [3, 1]


def test_last_writer_wins_without_an_expected_revision(world: World) -> None:
    """Case A13."""
    world.turn("a", conversation="c")
    first = world.turn("b1", conversation="c", read_revision=1)
    second = world.turn("b2", conversation="c", read_revision=1)
    assert (first.code, second.code) == (Code.ACCEPTED, Code.ACCEPTED)
    assert present(world.conversation("c")).head == second.node
    assert present(world.node(second.node)).read_revision == 1


def test_second_writer_of_one_revision_is_refused_and_told_the_revision(world: World) -> None:
    world.turn("a", conversation="c")
    world.turn("b1", conversation="c", expected_revision=1)
    outcome = world.turn("b2", conversation="c", expected_revision=1)
    assert (outcome.code, outcome.revision) == (Code.REVISION_CONFLICT, 2)
    assert world.response("b2") is None
    assert world.turn("b2", conversation="c", expected_revision=2).code is Code.ACCEPTED


def test_revision_zero_means_that_the_conversation_must_not_exist(world: World) -> None:
    assert world.turn("a", conversation="c", expected_revision=0).code is Code.ACCEPTED
    assert world.turn("b", conversation="c", expected_revision=0).code is Code.REVISION_CONFLICT
    assert world.turn("b", conversation="d", expected_revision=1).code is Code.REVISION_CONFLICT


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED])
def test_turn_that_cannot_be_continued_does_not_become_the_head(world: World, status: Status) -> None:
    world.turn("a", conversation="c")
    outcome = world.turn("b", conversation="c", status=status)
    assert (outcome.code, outcome.revision) == (Code.ACCEPTED, 0)
    assert present(world.conversation("c")).head == 1
    assert world.turn("d", conversation="other", status=status).code is Code.ACCEPTED
    assert world.conversation("other") is None


def test_natively_owned_conversation_keeps_its_owner(world: World) -> None:
    world.turn("a", conversation="c", native=True, target="p1")
    assert world.turn("b", conversation="c", native=True, target="p2").code is Code.OWNER_CONFLICT
    assert world.turn("b", conversation="c").code is Code.OWNER_CONFLICT
    assert world.turn("b", conversation="c", native=True, target="p1").code is Code.ACCEPTED


def test_one_conversation_id_of_two_principals_is_two_conversations(world: World) -> None:
    """Case A19."""
    world.turn("a", conversation="c", principal="alice")
    world.turn("a", conversation="c", principal="bob")
    assert present(world.conversation("c", "alice")).head == 1
    assert present(world.conversation("c", "bob")).head == 2
    assert world.delete_conversation("c", principal="carol").code is Code.CONVERSATION_UNKNOWN


def test_exclusive_turn_locks_its_conversation_against_every_change(world: World) -> None:
    world.turn("a", conversation="c")
    world.start("t", conversation="c", exclusive=True)
    assert world.turn("b", conversation="c").code is Code.CONVERSATION_LOCKED
    assert world.start("u", conversation="c").code is Code.CONVERSATION_LOCKED
    assert world.append_items("c", ["i"]).code is Code.CONVERSATION_LOCKED
    assert world.update_conversation("c").code is Code.CONVERSATION_LOCKED
    assert world.turn("branch", parent="a").code is Code.ACCEPTED


def test_lock_opens_when_its_turn_ends(world: World) -> None:
    world.start("t", conversation="c", exclusive=True)
    assert world.turn("a", conversation="c", turn_id="t").code is Code.ACCEPTED
    assert world.turn("b", conversation="c").code is Code.ACCEPTED


def test_lock_does_not_outlive_a_replica_that_died(world: World) -> None:
    world.start("t", conversation="c", exclusive=True, lease_s=5)
    world.wait(4.999)
    assert world.turn("a", conversation="c").code is Code.CONVERSATION_LOCKED
    world.wait(0.001)
    assert world.turn("b", conversation="c").code is Code.ACCEPTED


def test_shared_turn_locks_nothing(world: World) -> None:
    world.start("t", conversation="c")
    assert world.turn("a", conversation="c").code is Code.ACCEPTED


def test_deleted_conversation_is_not_revived_by_a_turn_that_names_it(world: World) -> None:
    """Case A25."""
    world.turn("a", conversation="c")
    world.delete_conversation("c")
    assert world.turn("b", conversation="c").code is Code.CONVERSATION_GONE
    assert world.create_conversation("c").code is Code.ALIAS_GONE
    assert world.append_items("c", ["i"]).code is Code.CONVERSATION_GONE
    assert world.delete_conversation("c").code is Code.CONVERSATION_GONE


def test_created_conversation_has_its_first_items_as_head(world: World) -> None:
    outcome = world.create_conversation("c", items=["i"], content=world.content())
    assert (outcome.node, outcome.revision) == (1, 1)
    world.turn("a", conversation="c")
    assert world.history("a") == [2, 1]


def test_created_conversation_may_be_empty(world: World) -> None:
    assert world.create_conversation("c", metadata=world.content(number=7)).node == 0
    world.turn("a", conversation="c", expected_revision=1)
    assert world.history("a") == [2]
    assert present(present(world.conversation("c")).metadata).last_offset == 7


def test_conversation_is_created_once(world: World) -> None:
    world.create_conversation("c")
    assert world.create_conversation("c").code is Code.REVISION_CONFLICT
    assert world.create_conversation("c", native=True).code is Code.OWNER_CONFLICT


def test_contradictions_of_a_creation_are_invalid(world: World) -> None:
    assert world.create_conversation("c", native=True, metadata=world.content()).code is Code.INVALID
    assert world.create_conversation("c", native=True, content=world.content()).code is Code.INVALID
    assert world.create_conversation("c", items=["i"]).code is Code.INVALID


def test_replaced_metadata_is_reported_unneeded(world: World) -> None:
    world.create_conversation("c", metadata=world.content(number=7, size_bytes=30))
    assert world.principal().size_bytes == 30
    outcome = world.update_conversation("c", metadata=world.content(number=8, size_bytes=20), expected_revision=1)
    assert (outcome.code, outcome.revision) == (Code.ACCEPTED, 2)
    assert world.unneeded() == [7]
    assert world.principal().size_bytes == 20
    assert world.update_conversation("c", expected_revision=1).code is Code.REVISION_CONFLICT
    assert world.update_conversation("c").code is Code.ACCEPTED
    assert world.unneeded() == [7, 8]
    assert world.principal().size_bytes == 0


def test_items_and_metadata_of_a_native_conversation_are_its_owners(world: World) -> None:
    world.create_conversation("c", native=True)
    assert world.append_items("c", ["i"]).code is Code.OWNER_CONFLICT
    assert world.update_conversation("c").code is Code.OWNER_CONFLICT


def test_appended_items_compare_the_revision(world: World) -> None:
    world.create_conversation("c")
    assert world.append_items("c", ["i"], expected_revision=0).code is Code.REVISION_CONFLICT
    assert world.append_items("c", ["i"], expected_revision=1).revision == world.last_offset


# Items


def test_deleted_item_leaves_the_content_without_it(world: World) -> None:
    old = world.content(number=7, size_bytes=100)
    world.turn("a", conversation="c", items=["i", "j"], content=old)
    outcome = world.delete_item("c", "i", old=old, content=world.content(number=8, size_bytes=60))
    assert (outcome.code, outcome.revision) == (Code.ACCEPTED, 2)
    node = present(world.node_of("a"))
    assert present(node.content).last_offset == 8
    assert node.size_bytes == world.principal().size_bytes == 60
    assert world.unneeded() == [7]
    assert world.delete_item("c", "i", old=world.content(number=8)).code is Code.ALIAS_GONE
    assert present(world.conversation("c")).head == 1


def test_two_items_deleted_at_once_need_a_second_reading(world: World) -> None:
    """Case A25: both are gone in the end; the second writer sees a conflict first."""
    old = world.content(number=7)
    world.turn("a", conversation="c", items=["i", "j"], content=old)
    new = world.content(number=8, size_bytes=60)
    world.delete_item("c", "i", old=old, content=new)
    assert world.delete_item("c", "j", old=old).code is Code.ITEM_CONFLICT
    assert world.delete_item("c", "j", old=new, content=world.content(number=9, size_bytes=20)).code is Code.ACCEPTED
    assert world.unneeded() == [7, 8]


def test_item_of_another_conversation_is_unknown(world: World) -> None:
    old = world.content()
    world.turn("a", conversation="c", items=["i"], content=old)
    world.turn("b", conversation="d")
    assert world.delete_item("d", "i", old=old).code is Code.ITEM_UNKNOWN
    assert world.delete_item("e", "i", old=old).code is Code.CONVERSATION_UNKNOWN


def test_content_without_an_item_is_new_fresh_and_not_larger(world: World) -> None:
    old = world.content(number=7, size_bytes=50)
    world.turn("a", conversation="c", items=["i"], content=old)
    assert world.delete_item("c", "i", old=old, content=old).code is Code.INVALID
    assert world.delete_item("c", "i", old=old, content=world.content(size_bytes=51)).code is Code.INVALID
    stale = world.content(size_bytes=50, age_s=61)
    assert world.delete_item("c", "i", old=old, content=stale).code is Code.CONTENT_STALE
    assert world.delete_item("c", "i", old=old, content=world.content(size_bytes=50)).code is Code.ACCEPTED
