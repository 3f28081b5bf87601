"""Case A15: a request that is sent again under its ``Idempotency-Key`` is answered from its first turn."""

from __future__ import annotations

import asyncio

from openai import AsyncOpenAI

from tests.gateway.asking import Asked, ask, checked_response, eventually, send_raw
from tests.gateway.world import World, native_or_portable

KEY = {"Idempotency-Key": "key-1"}


def total(world: World) -> int:
    """Return how many turns any model ran."""
    return sum(world.called().values())


async def once(client: AsyncOpenAI, *, streamed: bool, **request: object) -> Asked:
    return await ask(client, streamed=streamed, extra_headers=KEY, **request)


@native_or_portable
async def test_same_request_again_is_answered_from_its_turn(
    world: World, streamed: bool, model: str, target: str
) -> None:
    first = await once(world.client(1), streamed=streamed, model=model, input="alpha")
    again = await once(world.client(2), streamed=streamed, model=model, input="alpha")
    assert first.text == again.text == f"{target} heard: alpha"
    assert first.response == again.response
    # Sent again, a text comes in one piece.
    assert list(dict.fromkeys(first.types)) == list(dict.fromkeys(again.types))
    # A native body is not the ledger's: it is fetched from its owner, whoever asks.
    fetched = [request.path for request in world.p1.recorded() if request.method == "GET"]
    assert fetched == ([f"/v1/responses/{first.id}"] if target == "p1" else [])
    # Whether it is streamed is no part of the question.
    other = await once(world.client(2), streamed=not streamed, model=model, input="alpha")
    assert other.response == first.response
    assert world.called()[target] == total(world) == 1


@native_or_portable
async def test_same_request_on_both_replicas_at_once_is_one_turn(
    world: World, streamed: bool, model: str, target: str
) -> None:
    request = {"model": model, "input": "!delay(150) alpha"}
    answers = await asyncio.gather(
        *(once(world.client(replica), streamed=streamed, **request) for replica in (1, 2, 1, 2))
    )
    # Which replica came first chose the target.
    assert len({answer.id for answer in answers}) == 1
    assert len({answer.text for answer in answers}) == 1
    assert total(world) == 1


async def test_retried_turn_is_once_in_its_conversation(world: World, streamed: bool) -> None:
    request = {"model": "chat", "input": "!delay(100) alpha", "conversation": "conv_a"}
    await asyncio.gather(*(once(world.client(replica), streamed=streamed, **request) for replica in (1, 2)))
    await once(world.client(2), streamed=streamed, **request)
    items = [item.to_dict()["role"] async for item in world.client(2).conversations.items.list("conv_a")]
    assert items == ["assistant", "user"]
    following = await ask(world.client(1), streamed=streamed, model="chat", input="beta", conversation="conv_a")
    assert following.text == "c heard: alpha | beta"


@native_or_portable
async def test_different_request_under_the_same_key_is_refused(
    world: World, streamed: bool, model: str, target: str
) -> None:
    await once(world.client(1), streamed=streamed, model=model, input="alpha")
    changes: list[dict[str, object]] = [
        {"input": "beta"},
        {"temperature": 0.5},
        {"instructions": "shout"},
        {"model": "any"},
        {"conversation": "conv_a"},
    ]
    for change in changes:
        refused = await once(world.client(2), streamed=streamed, **{"model": model, "input": "alpha", **change})
        assert (refused.status, refused.code) == (409, "idempotency_conflict"), change
    assert total(world) == 1


async def test_key_belongs_to_its_tenant(world: World, streamed: bool) -> None:
    mine = await once(world.client(1), streamed=streamed, model="chat", input="alpha")
    theirs = await once(world.client(2, world.bob), streamed=streamed, model="chat", input="beta")
    assert theirs.text == "c heard: beta"
    assert theirs.id != mine.id


@native_or_portable
async def test_retry_runs_when_the_first_attempt_failed(world: World, streamed: bool, model: str, target: str) -> None:
    # A buffered answer that is cut off lets its target rest, which would move the next request.
    directives = ["!status(500)", "!fail", "!cut(1)"] if streamed else ["!status(500)", "!fail"]
    for directive in directives:
        world.forget()
        request = {"model": model, "input": f"{directive} alpha"}
        for _ in range(2):
            failed = await once(world.client(1), streamed=streamed, **request)
            assert failed.status >= 500 or (failed.response is not None and failed.response.status == "failed")
        assert total(world) == 2, directive
    # Its key is free for another request, too.
    answered = await once(world.client(2), streamed=streamed, model="chat", input="alpha")
    assert answered.text == "c heard: alpha"


@native_or_portable
async def test_retry_runs_when_the_client_had_left(world: World, streamed: bool, model: str, target: str) -> None:
    request = {"model": model, "input": "!hang alpha"}
    leaving = asyncio.create_task(once(world.client(1), streamed=streamed, **request))
    await eventually(world.some_call)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    # Its key is free once the end of the first attempt is stored.

    async def retried() -> Asked | None:
        answered = await once(world.client(2), streamed=streamed, model=model, input="alpha")
        return None if answered.status == 409 else answered

    answered = await eventually(retried)
    assert answered.text.endswith("heard: alpha")


async def test_response_that_was_deleted_does_not_answer_a_retry(world: World, streamed: bool) -> None:
    first = await once(world.client(1), streamed=streamed, model="chat", input="alpha")
    await world.client(2).responses.delete(first.id)
    again = await once(world.client(1), streamed=streamed, model="chat", input="alpha")
    assert (again.status, again.code, again.reason) == (409, "idempotency_conflict", "response_gone")
    assert total(world) == 1


async def test_retry_of_an_unstored_turn_is_refused_rather_than_run_twice(world: World, streamed: bool) -> None:
    refused = await once(world.client(1), streamed=streamed, model="auto", input="alpha", store=False)
    assert (refused.status, refused.error["param"]) == (400, "store")
    assert total(world) == 0


async def test_retry_with_its_fields_in_another_order_is_the_same_request(world: World) -> None:
    first = await once(world.client(1), streamed=False, model="chat", input="alpha", metadata={"a": "1", "b": "2"})
    status, body = await send_raw(
        world.client(2),
        "POST",
        "/responses",
        {"metadata": {"b": "2", "a": "1"}, "input": "alpha", "model": "chat"},
        **KEY,
    )
    assert (status, checked_response(body).id) == (200, first.id)
