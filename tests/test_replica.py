"""What a process says when its own view has failed: the reason, at once, and never an answer."""

from __future__ import annotations

import pytest

from ledger.adapters.memory import MemoryContents, MemoryContentStore, MemoryLog, MemoryTopic, MemoryViewStore
from ledger.alias import AliasKey
from ledger.errors import RetryableError, Unavailable
from ledger.ledger import Ledger, wall_clock_ms
from ledger.log import Record
from ledger.policy import Policy
from ledger.turn import Owner, Scope, Selector, SelectorKind, Turn
from ledger.verdict import Code, Outcome

SCOPE = Scope(namespace="n", route="r", principal="p")
RESPONSE = Selector(scope=SCOPE, kind=SelectorKind.RESPONSE, id="resp_1")


def turn(response_id: str) -> Turn:
    return Turn(
        scope=SCOPE,
        event_id=response_id,
        response_id=response_id,
        owner=Owner(native=True, target="provider-a"),
        begun_at_ms=wall_clock_ms(),
    )


def fails_at_turns(_: Record, outcome: Outcome) -> None:
    """An observer with a defect: it takes the tail's task with it."""
    assert outcome.code is not Code.ACCEPTED or outcome.event_id is None, "a defect of the observer"


async def test_view_that_met_a_defect_says_so_instead_of_lagging() -> None:
    ledger = Ledger(
        MemoryLog(MemoryTopic(1, log_id="log"), now_ms=wall_clock_ms),
        MemoryContentStore(MemoryContents(), now_ms=wall_clock_ms),
        MemoryViewStore(),
        AliasKey(b"k" * 32),
        on_outcome=fails_at_turns,
    )
    await ledger.start(format_policy=Policy())
    try:
        await ledger.committer.commit(turn("resp_1"))
        with pytest.raises(RetryableError):
            await ledger.committer.commit(turn("resp_2"), timeout_s=1.0)
        with pytest.raises(Unavailable) as refused:
            await ledger.reader.load(RESPONSE)
        assert refused.value.reason == "defect"
        assert "defect" in ledger.not_ready_reason()
    finally:
        await ledger.close()
