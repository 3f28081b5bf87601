"""The client: the ledger's own errors again, and what is known when the way there fails."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from api.app import create_app
from api.auth import Access
from ledger.adapters.http import LedgerClient
from ledger.answer import Found, Gone, Missing, Verdict
from ledger.commit import TurnStart
from ledger.errors import InvalidInput, LedgerError, NotAuthenticated, NotPermitted, TooLarge, Unavailable, Unknown
from ledger.ledger import Ledger, wall_clock_ms
from ledger.policy import DAY_MS
from ledger.turn import Content, Owner, Revision, Scope, Selector, SelectorKind, Status, Turn
from ledger.verdict import Code
from tests.api.faults import LOST, REFUSED, ScriptedFaults, faulty_ledger

LOCAL = Scope(namespace="default", route="default", principal="local")
TURN = Turn(
    scope=LOCAL,
    event_id="e1",
    response_id="r/1",
    owner=Owner(native=True, target="a", digest=b"\1\xff"),
    begun_at_ms=wall_clock_ms(),
)
RESPONSE = Selector(scope=LOCAL, kind=SelectorKind.RESPONSE, id="r/1")
CONVERSATION = Selector(scope=LOCAL, kind=SelectorKind.CONVERSATION, id="c")


def refusing(error: Exception) -> LedgerClient:
    def handle(_: httpx.Request) -> httpx.Response:
        raise error

    return LedgerClient(transport=httpx.MockTransport(handle))


def answering(status: int, text: str) -> LedgerClient:
    return LedgerClient(transport=httpx.MockTransport(lambda _: httpx.Response(status, text=text)))


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("refused"), httpx.ConnectTimeout("slow"), httpx.PoolTimeout("full")]
)
async def test_commit_that_was_not_sent_is_unavailable(error: Exception) -> None:
    async with refusing(error) as client:
        with pytest.raises(Unavailable) as raised:
            await client.publish(TURN)
    assert raised.value.reason == "service"


@pytest.mark.parametrize(
    "error", [httpx.ReadTimeout("slow"), httpx.ReadError("reset"), httpx.RemoteProtocolError("cut")]
)
async def test_commit_that_was_sent_and_not_answered_is_unknown(error: Exception) -> None:
    async with refusing(error) as client:
        with pytest.raises(Unknown) as raised:
            await client.publish(TURN)
        assert raised.value.event_id == "e1"
        results = await client.publish_batch([TURN, replace(TURN, event_id="e2")])
        assert [getattr(result, "event_id", None) for result in results] == ["e1", "e2"]
        with pytest.raises(Unavailable):
            await client.load(RESPONSE)


async def test_nobody_listening_is_unavailable() -> None:
    async with LedgerClient("http://127.0.0.1:1") as client:
        with pytest.raises(Unavailable):
            await client.publish(TURN)
        with pytest.raises(Unavailable):
            await client.not_ready_reason()


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_proxy_error_leaves_a_commit_unknown_and_a_read_unavailable(status: int) -> None:
    async with answering(status, "<html>bad gateway</html>") as client:
        with pytest.raises(Unknown):
            await client.publish(TURN)
        with pytest.raises(Unavailable):
            await client.load(RESPONSE)


@pytest.mark.parametrize("status", [200, 404, 410])
async def test_answer_of_something_else_is_never_missing(status: int) -> None:
    async with answering(status, "hello") as client:
        with pytest.raises(Unavailable):
            await client.load(RESPONSE)
    async with answering(status, '{"error":{"code":"no_such_route","message":"Not Found"}}') as client:
        with pytest.raises(LedgerError):
            await client.load(RESPONSE)


async def test_service_tells_not_written_from_uncertain() -> None:
    faults = ScriptedFaults()
    async with faulty_ledger(faults) as ledger:
        app = create_app(ledger, Access.local())
        async with LedgerClient(transport=httpx.ASGITransport(app)) as client:
            partition = ledger.committer.partition(LOCAL)
            faults.fates[partition] = [REFUSED]
            with pytest.raises(Unavailable) as refused:
                await client.publish(TURN)
            assert str(refused.value) == "unavailable (broker): the append was refused"
            faults.fates[partition] = [LOST]
            with pytest.raises(Unknown) as lost:
                await client.publish(TURN)
            assert lost.value.event_id == "e1"
            faults.fates[partition] = [REFUSED]
            assert await client.abandon(LOCAL, "e1") is None


async def test_errors_keep_class_and_field(client: LedgerClient, ledger: Ledger) -> None:
    await client.publish(TURN)
    foreign = replace(RESPONSE, scope=replace(LOCAL, principal="other"))
    with pytest.raises(NotPermitted):
        await client.load(foreign)
    with pytest.raises(InvalidInput) as wrong:
        await client.change_policy({"active_ttl": 1})
    assert (wrong.value.field, wrong.value.reason) == ("active_ttl", "is not a known field")
    results = await client.load_many([RESPONSE, replace(RESPONSE, id="r2"), foreign])
    assert [type(result) for result in results] == [Found, Missing, NotPermitted]
    guarded = create_app(ledger, Access({}))
    async with LedgerClient(token="x", transport=httpx.ASGITransport(guarded)) as stranger:
        with pytest.raises(NotAuthenticated):
            await stranger.publish(TURN)


async def test_batch_returns_verdicts_and_errors_in_order(client: LedgerClient) -> None:
    turns = [replace(TURN, event_id=f"e{number}", response_id=f"r{number}") for number in range(3)]
    turns.append(replace(turns[0], event_id="again"))
    turns.append(replace(TURN, scope=replace(LOCAL, principal="other")))
    results = await client.publish_batch(turns)
    codes = [result.code for result in results if isinstance(result, Verdict)]
    assert codes == [Code.ACCEPTED] * 3 + [Code.RESPONSE_EXISTS]
    assert isinstance(results[4], NotPermitted)


async def test_content_that_json_cannot_say_is_refused_before_it_is_sent() -> None:
    async with answering(500, "") as client:
        for value in (object(), "\ud800", 2**70, {1: 2}):
            turn = replace(TURN, owner=Owner(native=False, target="x"), content=Content(input=[value]))
            with pytest.raises(InvalidInput):
                await client.publish(turn)


async def test_every_operation_goes_through(client: LedgerClient) -> None:
    start = TurnStart(
        scope=LOCAL,
        event_id="s",
        turn_id="t",
        begun_at_ms=wall_clock_ms(),
        lease_ms=60_000,
        response_id="r/1",
        queued=True,
    )
    assert (await client.start(start)).accepted
    queued = await client.load(RESPONSE)
    assert isinstance(queued, Found)
    assert queued.status is Status.QUEUED
    verdict = await client.publish(replace(TURN, turn_id="t", record=b"\0\1"))
    assert verdict.accepted
    found = await client.load(RESPONSE, strong=True, token=verdict.token)
    assert isinstance(found, Found)
    assert (found.owner, found.record, found.node) == (TURN.owner, b"\0\1", verdict.token.offset)
    created = await client.create_conversation(CONVERSATION, metadata={"a": 1}, items=[{"id": "m1"}], item_ids=("m1",))
    updated = await client.update_conversation(CONVERSATION, metadata={"b": 2}, expected_revision=created.revision)
    appended = await client.append_items(CONVERSATION, items=[{"id": "m2"}], expected_revision=updated.revision)
    answer, metadata = await client.conversation(CONVERSATION)
    assert isinstance(answer, Found)
    assert (answer.revision, metadata) == (appended.revision, {"b": 2})
    item = replace(CONVERSATION, kind=SelectorKind.ITEM, id="m1")
    assert (await client.delete_item(CONVERSATION, item)).accepted
    history = await client.history(CONVERSATION)
    assert isinstance(history, Found)
    assert history.history is not None
    assert history.history.items() == [{"id": "m2"}]
    refused = await client.update_conversation(CONVERSATION, metadata={}, expected_revision=Revision(1))
    assert refused.code is Code.REVISION_CONFLICT
    assert (await client.delete_conversation(CONVERSATION, cascade=True)).accepted
    assert (await client.delete_response(RESPONSE)).accepted
    assert isinstance(await client.load(RESPONSE), Gone)
    assert (await client.conversation(CONVERSATION))[1] == {}
    events = [event["type"] async for event in client.replay(selector=RESPONSE)]
    assert events == ["TurnStarted", "TurnCompleted", "ResponseDeleted"]
    assert (await client.erase(LOCAL)).accepted
    policy, generation = await client.change_policy({"active_ttl_ms": 7 * DAY_MS, "sliding": True})
    assert (policy.active_ttl_ms, policy.sliding) == (7 * DAY_MS, True)
    assert await client.policy() == (policy, generation)
    assert await client.not_ready_reason() == ""
    assert "turnledger_position" in await client.metrics()
    assert (await client.abandon(LOCAL, "never-seen")) is not None
    with pytest.raises(TooLarge):
        await client.delete_response(RESPONSE, event_id="x" * 513)
