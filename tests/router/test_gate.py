"""The gate: a success leaves only for a turn that the log holds, and a turn that was told to have failed stays away."""

from __future__ import annotations

import asyncio

import pytest

from ledger.answer import Answer, Found, Gone, Missing, Token, Verdict
from ledger.errors import NotPermitted, Unavailable, Unknown
from ledger.gate import Gate
from ledger.refusal import Refusal
from ledger.router import LedgerRouter, Router
from ledger.turn import Scope, Selector, SelectorKind, Turn
from ledger.verdict import Code
from tests.api.faults import LOST, REFUSED, ScriptedFaults, faulty_ledger
from tests.router.turns import SCOPE, native, portable

WAIT_S = 10.0
"""Above what anything here takes."""


def response(opaque_id: str) -> Selector:
    return Selector(scope=SCOPE, kind=SelectorKind.RESPONSE, id=opaque_id)


class Slow:
    """A router whose commit waits for ``go``, and says with ``begun`` that it does."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.load, self.abandon = router.load, router.abandon
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def commit(self, turn: Turn) -> Verdict:
        self.begun.set()
        await self.go.wait()
        return await self._router.commit(turn)


class Unreachable:
    """A service that takes commits and does not answer, and cannot be reached for a while afterwards."""

    def __init__(self, failures: int, failure: Exception) -> None:
        self.failures, self._failure = failures, failure
        self.asked: list[str] = []
        self.abandoned: list[str] = []
        self.has_taken = asyncio.Event()

    async def load(self, selector: Selector, *, history: bool = False, token: Token | None = None) -> Answer:
        raise Unavailable("service", "cannot be reached")

    async def commit(self, turn: Turn) -> Verdict:
        raise Unknown(turn.event_id, "the service did not answer")

    async def abandon(self, scope: Scope, event_id: str) -> Verdict | None:
        self.asked.append(event_id)
        if len(self.asked) <= self.failures:
            raise self._failure
        self.abandoned.append(event_id)
        self.has_taken.set()
        return None


async def test_settled_turn_is_found_by_the_time_it_has_settled(router: Router) -> None:
    gate = Gate(router)
    verdict = await gate.settle(native("r1"))
    assert verdict.code is Code.ACCEPTED
    assert isinstance(await router.load(response("r1")), Found)
    await gate.close()


async def test_same_turn_settles_again_without_a_second_effect(router: Router) -> None:
    gate, turn = Gate(router), portable("r1", "a")
    first = await gate.settle(turn)
    assert (await gate.settle(turn)).token == first.token


async def test_turn_that_the_log_refuses_does_not_settle(router: Router) -> None:
    gate = Gate(router)
    with pytest.raises(Refusal) as refused:
        await gate.settle(portable("r1", "a", previous_response_id="nobody's"))
    assert (refused.value.status, refused.value.code) == (400, "previous_response_not_found")
    assert isinstance(await router.load(response("r1")), Missing)


async def test_commit_that_wrote_nothing_is_refused_as_an_outage() -> None:
    faults = ScriptedFaults()
    async with faulty_ledger(faults) as ledger:
        gate, turn = Gate(LedgerRouter(ledger)), native("r1")
        faults.fates[ledger.committer.partition(SCOPE)].append(REFUSED)
        with pytest.raises(Refusal) as refused:
            await gate.settle(turn)
        assert (refused.value.status, refused.value.code) == (503, "ledger_unavailable")
        await gate.close()
        # It is not abandoned, so the same turn may still be settled.
        assert (await gate.settle(turn)).code is Code.ACCEPTED


async def test_commit_of_unknown_outcome_is_refused_and_abandoned() -> None:
    faults = ScriptedFaults()
    async with faulty_ledger(faults) as ledger:
        router = LedgerRouter(ledger)
        gate, turn = Gate(router), portable("r1", "a", conversation_id="c")
        faults.fates[ledger.committer.partition(SCOPE)].append(LOST)
        with pytest.raises(Refusal) as refused:
            await gate.settle(turn)
        assert (refused.value.status, refused.value.code, refused.value.reason) == (
            503,
            "ledger_unavailable",
            "unknown_outcome",
        )
        await gate.close()
        # The lost record lands after all: it has no effect any more.
        late = await router.commit(turn)
        assert not late.accepted
        assert isinstance(await router.load(response("r1")), Missing | Gone)
        conversation = Selector(scope=SCOPE, kind=SelectorKind.CONVERSATION, id="c")
        assert isinstance(await router.load(conversation), Missing)


async def test_caller_that_is_cancelled_does_not_stop_the_commit(router: Router) -> None:
    slow = Slow(router)
    gate = Gate(slow)
    settling = asyncio.create_task(gate.settle(native("r1")))
    await slow.begun.wait()
    settling.cancel()
    await asyncio.gather(settling, return_exceptions=True)
    assert settling.cancelled()
    closing = asyncio.create_task(gate.close())
    slow.go.set()
    await closing
    assert isinstance(await router.load(response("r1")), Found)


async def test_refusal_that_nobody_waits_for_any_more_is_no_unhandled_error(router: Router) -> None:
    slow = Slow(router)
    gate = Gate(slow)
    settling = asyncio.create_task(gate.settle(portable("r1", "a", previous_response_id="nobody's")))
    await slow.begun.wait()
    settling.cancel()
    await asyncio.gather(settling, return_exceptions=True)
    slow.go.set()
    await gate.close()


async def test_abandonment_is_repeated_until_the_service_takes_it() -> None:
    router = Unreachable(2, Unavailable("service", "cannot be reached"))
    gate, turn = Gate(router), native("r1")
    with pytest.raises(Refusal):
        await gate.settle(turn)
    async with asyncio.timeout(WAIT_S):
        await router.has_taken.wait()
    assert router.abandoned == [turn.event_id]
    assert router.asked == [turn.event_id] * 3
    await gate.close()


async def test_abandonment_that_is_refused_is_not_repeated() -> None:
    router = Unreachable(9, NotPermitted("the token lacks the role"))
    gate = Gate(router)
    with pytest.raises(Refusal):
        await gate.settle(native("r1"))
    await gate.close()
    assert len(router.asked) == 1


async def test_close_ends_although_no_service_takes_the_abandonment() -> None:
    router = Unreachable(1_000, Unavailable("service", "cannot be reached"))
    gate = Gate(router)
    with pytest.raises(Refusal):
        await gate.settle(native("r1"))
    async with asyncio.timeout(WAIT_S):
        await gate.close()
    assert router.asked
    assert router.abandoned == []


async def test_close_waits_for_the_abandonment_that_a_commit_under_way_leaves_behind() -> None:
    router = Unreachable(0, Unavailable("service", "cannot be reached"))
    gate, turn = Gate(router), native("r1")
    settling = asyncio.create_task(gate.settle(turn))
    # The commit is under way, its abandonment is not there yet.
    await asyncio.sleep(0)
    await gate.close()
    assert router.abandoned == [turn.event_id]
    with pytest.raises(Refusal):
        await settling
