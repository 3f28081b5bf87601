"""Where a request may go: nowhere looked up, free, pinned, portable, or refused in words that clients know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ledger.answer import Answer, Token
from ledger.continuation import (
    LEDGER_TARGET,
    Decision,
    Free,
    Pinned,
    Portable,
    Selectors,
    Target,
    decide,
    detect_selectors,
    selector_of,
    target_digest,
)
from ledger.errors import InvalidInput, TooLarge, Unavailable
from ledger.refusal import Refusal, refusal_of
from ledger.router import LedgerRouter, Router
from ledger.turn import ID_BYTES_MAX, Scope, Selector, SelectorKind, Status
from tests.api.faults import ScriptedFaults, faulty_ledger
from tests.router.turns import ALPHA, BETA, SCOPE, TARGETS, native, portable


class Counted:
    """A router that remembers what it was asked."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.commit, self.abandon = router.commit, router.abandon
        self.asked: list[bool] = []
        """Of each look-up, whether it was for a history."""

    async def load(self, selector: Selector, *, history: bool = False, token: Token | None = None) -> Answer:
        self.asked.append(history)
        return await self._router.load(selector, history=history, token=token)


async def decided(
    router: Router, body: Mapping[str, Any], targets: Mapping[str, Target] = TARGETS, scope: Scope = SCOPE, **rest: Any
) -> Decision:
    return await decide(router, scope, detect_selectors(body), targets, **rest)


async def refused(
    router: Router, body: Mapping[str, Any], targets: Mapping[str, Target] = TARGETS, scope: Scope = SCOPE, **rest: Any
) -> Refusal:
    with pytest.raises(Refusal) as raised:
        await decided(router, body, targets, scope, **rest)
    return raised.value


def said(refusal: Refusal) -> tuple[int, str | None, str | None, str | None]:
    return refusal.status, refusal.code, refusal.param, refusal.reason


# What a request names


@pytest.mark.parametrize(
    ("body", "selectors"),
    [
        ({}, Selectors()),
        ({"previous_response_id": None, "conversation": None}, Selectors()),
        ({"previous_response_id": "r"}, Selectors(previous_response_id="r")),
        ({"conversation": "c"}, Selectors(conversation_id="c")),
        ({"conversation": {"id": "c", "more": 1}}, Selectors(conversation_id="c")),
        ({"previous_response_id": "r" * ID_BYTES_MAX}, Selectors(previous_response_id="r" * ID_BYTES_MAX)),
    ],
)
def test_selectors_are_what_the_body_names(body: dict[str, Any], selectors: Selectors) -> None:
    assert detect_selectors(body) == selectors
    assert bool(selectors) == (selector_of(SCOPE, selectors) is not None)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"previous_response_id": 1}, "previous_response_id"),
        ({"previous_response_id": ""}, "previous_response_id"),
        ({"previous_response_id": "a\0"}, "previous_response_id"),
        ({"conversation": ["c"]}, "conversation"),
        ({"conversation": {}}, "conversation.id"),
        ({"conversation": {"id": None}}, "conversation.id"),
        ({"previous_response_id": "r", "conversation": "c"}, "previous_response_id"),
    ],
)
def test_selector_of_a_wrong_kind_is_refused_by_its_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        detect_selectors(body)
    assert (raised.value.field, refusal_of(raised.value).status) == (field, 400)


def test_selector_above_its_bound_is_too_large() -> None:
    with pytest.raises(TooLarge):
        detect_selectors({"previous_response_id": "r" * (ID_BYTES_MAX + 1)})


def test_scoped_key_is_of_the_scope_and_nothing_else() -> None:
    selector = selector_of(SCOPE, Selectors(conversation_id="c"))
    assert selector == Selector(scope=SCOPE, kind=SelectorKind.CONVERSATION, id="c")


def test_digest_of_a_target_is_its_endpoint_and_account() -> None:
    digest = target_digest("https://a.example/v1", "team")
    assert digest == target_digest("https://a.example/v1/", "team")
    assert len({digest, target_digest("https://a.example/v1"), target_digest("https://b.example/v1", "team")}) == 3
    assert target_digest("ab", "c") != target_digest("a", "bc")


# Where it may go


async def test_request_without_selectors_is_free_and_asks_nothing(router: Router) -> None:
    counted = Counted(router)
    assert await decided(counted, {"input": "hi"}) == Free()
    assert counted.asked == []


async def test_native_response_is_pinned_to_its_owner_by_one_look_up_without_history(router: Router) -> None:
    await router.commit(native("r1", BETA))
    counted = Counted(router)
    decision = await decided(counted, {"previous_response_id": "r1"})
    assert isinstance(decision, Pinned)
    assert (decision.target, decision.found.response_id) == (BETA, "r1")
    assert counted.asked == [False]


async def test_native_conversation_is_pinned_to_its_owner(router: Router) -> None:
    await router.commit(native("r1", BETA, conversation_id="c"))
    decision = await decided(router, {"conversation": "c"})
    assert isinstance(decision, Pinned)
    assert decision.target == BETA


@pytest.mark.parametrize(
    ("body", "hint"), [({"previous_response_id": "r2"}, "beta"), ({"conversation": {"id": "c"}}, "alpha")]
)
async def test_portable_state_may_go_anywhere_with_its_whole_history(
    router: Router, body: dict[str, Any], hint: str
) -> None:
    await router.commit(portable("r1", "a", conversation_id="c"))
    await router.commit(portable("r2", "b", BETA, conversation_id="c"))
    decision = await decided(router, body)
    assert isinstance(decision, Portable)
    assert [item["text"] for item in decision.history.items()] == ["a", "A", "b", "B"]
    assert decision.hint == hint


async def test_incomplete_response_can_be_continued(router: Router) -> None:
    await router.commit(portable("r1", "a", status=Status.INCOMPLETE))
    assert isinstance(await decided(router, {"previous_response_id": "r1"}), Portable)


async def test_unknown_conversation_is_a_new_one(router: Router) -> None:
    assert await decided(router, {"conversation": "c"}) == Free(new_conversation_id="c")


# What is refused


async def test_unknown_response_is_refused_before_anything_is_routed(router: Router) -> None:
    refusal = await refused(router, {"previous_response_id": "nobody's"})
    assert said(refusal) == (400, "previous_response_not_found", "previous_response_id", "unknown")


async def test_unknown_response_may_go_on_where_the_route_says_so(router: Router) -> None:
    assert await decided(router, {"previous_response_id": "nobody's"}, forwards_unknown=True) == Free()


async def test_gone_response_is_refused_even_where_unknown_ones_go_on(router: Router) -> None:
    turn = native("r1")
    await router.commit(turn)
    await router.abandon(SCOPE, turn.event_id)
    refusal = await refused(router, {"previous_response_id": "r1"}, forwards_unknown=True)
    assert said(refusal) == (400, "previous_response_not_found", "previous_response_id", "deleted")


async def test_response_of_another_principal_is_refused_like_one_that_never_existed() -> None:
    async with faulty_ledger(ScriptedFaults()) as ledger:
        router = LedgerRouter(ledger)
        await router.commit(native("r1"))
        other = replace(SCOPE, principal="somebody else")
        foreign, random = [
            await refused(router, {"previous_response_id": name}, scope=other) for name in ("r1", "random")
        ]
        assert foreign.body() == random.body()
        assert await decided(router, {"conversation": "c"}, scope=other) == Free(new_conversation_id="c")


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED])
async def test_response_that_did_not_complete_is_refused_with_its_status(router: Router, status: Status) -> None:
    await router.commit(portable("r1", "a", status=status))
    refusal = await refused(router, {"previous_response_id": "r1"})
    word = status.name.lower()
    assert said(refusal) == (400, "previous_response_unfinished", "previous_response_id", word)


async def test_owner_that_was_removed_is_said_and_no_other_target_is_named(router: Router) -> None:
    await router.commit(native("r1", BETA))
    refusal = await refused(router, {"previous_response_id": "r1"}, {"alpha": ALPHA})
    assert said(refusal) == (503, "owner_unavailable", None, "owner_removed")
    assert refusal.headers() == {"x-should-retry": "false"}


async def test_owner_that_changed_under_its_name_is_said(router: Router) -> None:
    await router.commit(native("r1", BETA))
    moved = Target(name="beta", digest=target_digest("https://elsewhere.example/v1"))
    refusal = await refused(router, {"previous_response_id": "r1"}, {"alpha": ALPHA, "beta": moved})
    assert said(refusal) == (409, "owner_changed", None, "owner_changed")


async def test_owner_that_is_down_may_be_asked_again_later(router: Router) -> None:
    await router.commit(native("r1", BETA))
    refusal = await refused(router, {"previous_response_id": "r1"}, {"beta": replace(BETA, down="maintenance")})
    assert said(refusal) == (503, "owner_unavailable", None, "owner_down")
    assert refusal.headers() == {"retry-after": "1"}
    assert "maintenance" in refusal.message


async def test_portable_state_does_not_depend_on_the_target_that_served_it(router: Router) -> None:
    await router.commit(portable("r1", "a", BETA))
    decision = await decided(router, {"previous_response_id": "r1"}, {"alpha": ALPHA})
    assert isinstance(decision, Portable)


async def test_ledger_that_cannot_tell_is_never_an_unknown_response() -> None:
    faults = ScriptedFaults()
    async with faulty_ledger(faults) as ledger:
        router = LedgerRouter(ledger)
        verdict = await router.commit(native("r1"))
        faults.leaderless.add(verdict.token.partition)
        for body in ({"previous_response_id": "random"}, {"conversation": "random"}):
            with pytest.raises(Unavailable) as raised:
                await decided(router, body, forwards_unknown=True)
            refusal = refusal_of(raised.value)
            assert (refusal.status, refusal.code) == (503, "ledger_unavailable")


def test_target_of_what_nothing_has_served_is_no_name_that_a_target_may_have() -> None:
    assert LEDGER_TARGET not in TARGETS
