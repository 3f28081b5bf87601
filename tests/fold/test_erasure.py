"""Rule 6: everything of a principal before its erasure is gone at once."""

import pytest

from ledger.rows import Fate, Kind
from ledger.verdict import Code, ErasureOrdered
from tests.fold.given import World, present
from tests.fold.names import principal_digest
from tests.fold.recount import Table, check

QUEUE = pytest.mark.parametrize("ticked", [False, True], ids=["before the queue ran", "after the queue ran"])


def erased(world: World, *, ticked: bool) -> None:
    world.wait(1)
    assert world.erase().code is Code.ACCEPTED
    if ticked:
        world.settle()


@QUEUE
def test_every_alias_is_gone_at_once(world: World, ticked: bool) -> None:
    world.turn("a", conversation="c", items=["i"])
    world.turn("b", native=True)
    world.start("t", response="d")
    erased(world, ticked=ticked)
    for response in ("a", "b", "d"):
        assert world.delete(response).code is Code.ALIAS_GONE
        assert world.turn(response).code is Code.ALIAS_GONE
    assert world.turn("e", conversation="c").code is Code.CONVERSATION_GONE
    assert (world.principal().records, world.principal().size_bytes) == (0, 0)


@QUEUE
@pytest.mark.parametrize("ending", ["none", "deleted", "expired", "cascade"])
def test_erased_parent_has_no_grace_however_it_ended_before(world: World, ending: str, ticked: bool) -> None:
    world.turn("a", conversation="c")
    match ending:
        case "deleted":
            world.delete("a")
        case "expired":
            world.wait(100)
        case "cascade":
            world.delete_conversation("c", cascade=True)
        case _:
            pass
    if ticked:
        world.settle()
    erased(world, ticked=ticked)
    assert world.turn("b", parent="a").code is Code.PARENT_GONE
    assert world.turn("b", parent="a", native=True).code is Code.PARENT_GONE


@pytest.mark.parametrize(("early_ms", "code"), [(1, Code.PRINCIPAL_ERASED), (0, Code.ACCEPTED)])
def test_turn_that_began_before_the_erasure_is_refused_when_it_comes_late(
    world: World, early_ms: int, code: Code
) -> None:
    world.erase()
    began_ms = world.now_ms - early_ms
    world.wait(1)
    assert world.turn("a", begun_at_ms=began_ms).code is code
    assert world.start("t", begun_at_ms=began_ms).code is code
    assert world.create_conversation("c", begun_at_ms=began_ms).code is code


def test_late_changes_of_an_erased_conversation_are_refused(world: World) -> None:
    world.create_conversation("c")
    began_ms = world.now_ms
    erased(world, ticked=False)
    assert world.append_items("c", ["i"], begun_at_ms=began_ms).code is Code.PRINCIPAL_ERASED
    assert world.update_conversation("c", begun_at_ms=began_ms).code is Code.PRINCIPAL_ERASED
    assert world.append_items("c", ["i"]).code is Code.CONVERSATION_GONE


def test_contents_are_reported_unneeded_and_the_erasure_is_a_fact(world: World) -> None:
    world.turn("a", conversation="c")
    world.turn("b", parent="a")
    world.create_conversation("d", metadata=world.content(number=7))
    world.turn("alone")
    world.turn("b", principal="bob")
    erased(world, ticked=True)
    assert ErasureOrdered(principal_digest("alice"), 6) in world.facts
    assert sorted(world.unneeded()) == [1, 2, 4, 7]
    assert present(world.response("b", "bob")).fate == Fate.LIVING
    check(Table.of(world.stored()))


def test_tombstones_say_erased_and_end(world: World) -> None:
    world.turn("a", items=["i"])
    erased(world, ticked=True)
    assert present(world.response("a")).fate == present(world.item("i")).fate == Fate.ERASED
    world.tick_after(50)
    assert world.response("a") is None
    assert world.item("i") is None


@QUEUE
def test_alias_that_was_forgotten_before_the_erasure_stays_forgotten(world: World, ticked: bool) -> None:
    world.turn("a", conversation="c")
    world.wait(150)
    erased(world, ticked=ticked)
    assert world.turn("a", conversation="c", expected_revision=0).code is Code.ACCEPTED


def test_erasure_is_remembered_for_ever(world: World) -> None:
    world.erase()
    world.tick_after(86_400)
    left = Table.of(world.stored())
    assert {kind for kind, rows in (left.points | left.indexes).items() if rows} == {Kind.META, Kind.PRINCIPAL}
    assert world.turn("a", begun_at_ms=0).code is Code.PRINCIPAL_ERASED


def test_principal_begins_anew_after_its_erasure(world: World) -> None:
    world.turn("a")
    erased(world, ticked=False)
    world.turn("b")
    world.turn("d", parent="b")
    world.settle()
    assert world.history("d") == [4, 3]
    assert (world.principal().records, world.principal().size_bytes) == (2, 200)


def test_second_erasure_takes_what_came_since(world: World) -> None:
    world.turn("a")
    world.erase()
    world.turn("b")
    world.erase()
    world.settle()
    assert present(world.response("a")).fate == present(world.response("b")).fate == Fate.ERASED
    assert sorted(world.unneeded()) == [1, 3]


def test_erased_lineages_are_not_evicted_again(world: World) -> None:
    """They are still there until the queue has run, and no longer counted."""
    world.change_policy(principal_bytes_max=100, principal_records_max=1)
    world.turn("a")
    world.erase()
    world.turn("b")
    world.turn("c")
    assert (world.principal().records, world.principal().size_bytes) == (1, 100)
    check(Table.of(world.stored()))
