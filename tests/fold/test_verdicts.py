"""Every verdict has a shortest story that ends in it."""

from collections.abc import Callable

import pytest

from ledger.turn import Status
from ledger.verdict import Code, Outcome
from tests.fold.given import World


def accepted(world: World) -> Outcome:
    return world.turn("a")


def duplicate(world: World) -> Outcome:
    world.turn("a")
    return world.again(world.last_offset)


def response_exists(world: World) -> Outcome:
    world.turn("a")
    return world.turn("a")


def owner_conflict(world: World) -> Outcome:
    world.turn("a", native=True, target="p1")
    return world.turn("a", native=True, target="p2")


def revision_conflict(world: World) -> Outcome:
    world.turn("a", conversation="c")
    return world.turn("b", conversation="c", expected_revision=0)


def idempotency_conflict(world: World) -> Outcome:
    world.turn("a", key="k", request="one")
    return world.turn("b", key="k", request="another")


def key_in_progress(world: World) -> Outcome:
    world.start("t", key="k")
    return world.turn("b", key="k")


def too_late(world: World) -> Outcome:
    return world.turn("a", not_after_ms=world.now_ms - 1)


def alias_gone(world: World) -> Outcome:
    world.turn("a")
    world.delete("a")
    return world.turn("a")


def parent_unknown(world: World) -> Outcome:
    return world.turn("b", parent="a")


def parent_not_portable(world: World) -> Outcome:
    world.turn("a", native=True)
    return world.turn("b", parent="a")


def parent_gone(world: World) -> Outcome:
    world.turn("a")
    world.delete("a")
    world.wait(10)
    return world.turn("b", parent="a")


def parent_unfinished(world: World) -> Outcome:
    world.turn("a", status=Status.FAILED)
    return world.turn("b", parent="a")


def conversation_unknown(world: World) -> Outcome:
    return world.append_items("c", ["i"])


def conversation_gone(world: World) -> Outcome:
    world.turn("a", conversation="c")
    world.delete_conversation("c")
    return world.turn("b", conversation="c")


def conversation_locked(world: World) -> Outcome:
    world.start("t", conversation="c", exclusive=True)
    return world.turn("a", conversation="c")


def lease_expired(world: World) -> Outcome:
    world.start("t", lease_s=5)
    world.wait(5)
    return world.turn("a", turn_id="t")


def turn_unknown(world: World) -> Outcome:
    return world.turn("a", turn_id="t")


def turn_ended(world: World) -> Outcome:
    world.start("t")
    world.turn("a", turn_id="t")
    return world.turn("b", turn_id="t")


def abandoned(world: World) -> Outcome:
    """Never the verdict of a record itself: it is the first verdict of the blocked turn."""
    world.abandon("e")
    outcome = world.turn("a", event_id="e")
    assert outcome.first is not None
    return Outcome(code=outcome.first)


def kept(world: World) -> Outcome:
    world.turn("a", event_id="e")
    world.turn("b", parent="a")
    return world.abandon("e")


def limit_exceeded(world: World) -> Outcome:
    world.change_policy(lineage_turns_max=1)
    world.turn("a")
    return world.turn("b", parent="a")


def principal_erased(world: World) -> Outcome:
    world.erase()
    return world.turn("a", begun_at_ms=world.now_ms - 1)


def content_stale(world: World) -> Outcome:
    return world.turn("a", content=world.content(age_s=60.001))


def response_unknown(world: World) -> Outcome:
    return world.delete("a")


def item_unknown(world: World) -> Outcome:
    world.turn("a", conversation="c")
    return world.delete_item("c", "i", old=world.content(number=1))


def item_conflict(world: World) -> Outcome:
    world.turn("a", conversation="c", items=["i"], content=world.content(number=1))
    return world.delete_item("c", "i", old=world.content(number=2))


def stale_generation(world: World) -> Outcome:
    world.change_policy(generation=1)
    return world.change_policy(generation=1)


def invalid(world: World) -> Outcome:
    return world.turn("a", parent="b", conversation="c")


def quarantined(world: World) -> Outcome:
    return world.append_bytes(b"not an event")


STORIES: list[Callable[[World], Outcome]] = [
    accepted,
    duplicate,
    response_exists,
    owner_conflict,
    revision_conflict,
    idempotency_conflict,
    key_in_progress,
    too_late,
    alias_gone,
    parent_unknown,
    parent_not_portable,
    parent_gone,
    parent_unfinished,
    conversation_unknown,
    conversation_gone,
    conversation_locked,
    lease_expired,
    turn_unknown,
    turn_ended,
    abandoned,
    kept,
    limit_exceeded,
    principal_erased,
    content_stale,
    response_unknown,
    item_unknown,
    item_conflict,
    stale_generation,
    invalid,
    quarantined,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_story_ends_in_its_verdict(story: Callable[[World], Outcome], world: World) -> None:
    assert story(world).code.word == story.__name__


def test_every_verdict_has_a_story() -> None:
    assert [story.__name__ for story in STORIES] == [code.word for code in Code]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_refused_event_leaves_only_the_memory_of_its_id(story: Callable[[World], Outcome], world: World) -> None:
    """The last record of a story, if refused, changes no row but the position and the event's own."""
    before = World()
    outcome = story(world)
    for record in world.records[1:-1]:
        before.append_bytes(record.value, key=record.key, appended_at_ms=record.appended_at_ms)
    if outcome.code in (Code.ACCEPTED, Code.ABANDONED):
        return
    old, new = before.stored(), world.stored()
    changed = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    assert {key[:1] for key in changed} <= {b"m", b"e", b"q", b"z"}
