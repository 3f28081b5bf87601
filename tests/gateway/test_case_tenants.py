"""Case A19: what belongs to another tenant is answered like what never existed, to the byte, and stays as it is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI

from tests.gateway.asking import ask, send_raw
from tests.gateway.world import World, native_or_portable

RANDOM = {"response": "resp_random", "conversation": "conv_random", "item": "msg_random"}
ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/responses/{response}", None),
    ("GET", "/responses/{response}?stream=true", None),
    ("DELETE", "/responses/{response}", None),
    ("POST", "/responses/{response}/cancel", None),
    ("GET", "/responses/{response}/input_items", None),
    ("GET", "/conversations/{conversation}", None),
    ("POST", "/conversations/{conversation}", {"metadata": {"mine": "now"}}),
    ("DELETE", "/conversations/{conversation}", None),
    ("GET", "/conversations/{conversation}/items", None),
    ("POST", "/conversations/{conversation}/items", {"items": [{"role": "user", "content": "intruder"}]}),
    ("GET", "/conversations/{conversation}/items/{item}", None),
    ("DELETE", "/conversations/{conversation}/items/{item}", None),
]
SESSION_HEADERS = (
    "x-session-id", "session-id", "session_id", "conversation_id", "x-conversation-id", "x-user-id", "x-tenant",
    "x-principal", "x-turnledger-principal", "x-forwarded-user", "x-client-request-id", "openai-organization",
    "openai-project", "x-api-key",
)  # fmt: skip


def paths(route: str, names: dict[str, str]) -> str:
    """Return the path of a route with these IDs."""
    return route.format(**names)


async def everything(client: AsyncOpenAI, names: dict[str, str]) -> list[tuple[int, bytes]]:
    """Return all that a tenant can read of its IDs."""
    return [
        await send_raw(client, method, paths(route, names))
        for method, route, _ in ROUTES
        if method == "GET" and "stream" not in route
    ]


@native_or_portable
async def test_routes_answer_for_a_foreign_id_as_for_a_random_one(world: World, model: str, target: str) -> None:
    alice, bob = world.client(1), world.client(2, world.bob)
    response = await ask(alice, streamed=False, model=model, input="alpha")
    await ask(alice, streamed=False, model="chat", input="beta", conversation="conv_alice")
    items = [item.id async for item in alice.conversations.items.list("conv_alice")]
    names = {"response": response.id, "conversation": "conv_alice", "item": str(items[0])}
    before = await everything(alice, names)
    assert [status for status, _ in before] == [200] * len(before)
    world.forget()
    for method, route, body in ROUTES:
        foreign = await send_raw(bob, method, paths(route, names), body)
        random = await send_raw(bob, method, paths(route, RANDOM), body)
        assert foreign == random, route
        assert foreign[0] == 404, route
    assert sum(len(loopback.recorded()) for loopback in (world.p1, world.p2, world.c)) == 0
    assert await everything(alice, names) == before


@native_or_portable
async def test_background_response_of_another_is_neither_seen_nor_cancelled(
    world: World, model: str, target: str
) -> None:
    alice, bob = world.client(1), world.client(2, world.bob)
    running = await ask(alice, streamed=False, model=model, input="!hang alpha", background=True)
    for method, below in (("GET", ""), ("POST", "/cancel"), ("DELETE", ""), ("GET", "/input_items")):
        foreign = await send_raw(bob, method, f"/responses/{running.id}{below}")
        assert foreign == await send_raw(bob, method, f"/responses/resp_random{below}"), below
        assert foreign[0] == 404
    assert (await alice.responses.retrieve(running.id)).status in ("queued", "in_progress")
    assert (await world.client(2).responses.cancel(running.id)).status == "cancelled"


@native_or_portable
async def test_continuing_a_foreign_response_is_refused_as_a_random_one(
    world: World, streamed: bool, model: str, target: str
) -> None:
    alice, bob = world.client(1), world.client(2, world.bob)
    response = await ask(alice, streamed=streamed, model=model, input="alpha")
    world.forget()
    for fields in ({}, {"store": False}, {"background": True}, {"user": "alice", "prompt_cache_key": "alice"}):
        request = {"model": model, "input": "beta", **fields}
        foreign = await ask(bob, streamed=streamed, previous_response_id=response.id, **request)
        random = await ask(bob, streamed=streamed, previous_response_id="resp_random", **request)
        assert foreign.raw == random.raw
        assert (foreign.status, random.status, foreign.code) == (400, 400, "previous_response_not_found")
    assert world.called() == {"p1": 0, "p2": 0, "c": 0}
    following = await ask(alice, streamed=streamed, model=model, input="beta", previous_response_id=response.id)
    assert following.text == f"{target} heard: alpha | beta"


@pytest.mark.parametrize(("model", "target"), [("auto", "p1"), ("chat", "c")])
async def test_one_conversation_id_of_two_tenants_is_two_conversations(
    world: World, streamed: bool, model: str, target: str
) -> None:
    alice, bob = world.client(1), world.client(1, world.bob)
    for word, so_far in (("alpha", ["alpha"]), ("beta", ["alpha", "beta"])):
        mine = await ask(alice, streamed=streamed, model=model, input=word, conversation="conv_same")
        theirs = await ask(bob, streamed=streamed, model=model, input=f"{word} of bob", conversation="conv_same")
        assert mine.text == f"{target} heard: {' | '.join(so_far)}"
        assert theirs.text == f"{target} heard: {' | '.join(f'{said} of bob' for said in so_far)}"
    # Its end is that of one of them.
    await world.client(2, world.bob).conversations.delete("conv_same")
    mine = await ask(world.client(2), streamed=streamed, model=model, input="gamma", conversation="conv_same")
    assert mine.text == f"{target} heard: alpha | beta | gamma"


async def test_naming_a_foreign_conversation_is_as_naming_a_random_one(world: World, streamed: bool) -> None:
    alice, bob = world.client(1), world.client(2, world.bob)
    await ask(alice, streamed=streamed, model="chat", input="alpha", conversation="conv_alice")
    before = await send_raw(alice, "GET", "/conversations/conv_alice/items")
    world.forget()
    answers = []
    for conversation_id in ("conv_alice", "conv_rando"):
        answered = await ask(bob, streamed=streamed, model="chat", input="beta", conversation=conversation_id)
        assert answered.response is not None
        body = answered.response.to_dict()
        assert body["conversation"] == {"id": conversation_id}
        answers.append((answered.text, answered.types, body.keys()))
    assert answers[0] == answers[1]
    assert answers[0][0] == "c heard: beta"
    first, second = (request.raw for request in world.c.recorded())
    assert first == second
    assert await send_raw(alice, "GET", "/conversations/conv_alice/items") == before


@native_or_portable
async def test_headers_of_a_client_change_nothing(world: World, streamed: bool, model: str, target: str) -> None:
    alice, bob = world.client(1), world.client(2, world.bob)
    response = await ask(alice, streamed=streamed, model=model, input="alpha")
    as_alice = dict.fromkeys(SESSION_HEADERS, world.alice) | {"cookie": f"session={world.alice}"}
    naming = dict.fromkeys(SESSION_HEADERS, response.id)
    for headers in (as_alice, naming):
        refused = await ask(
            bob, streamed=streamed, model=model, input="beta", previous_response_id=response.id, extra_headers=headers
        )
        assert (refused.status, refused.code) == (400, "previous_response_not_found")
        status, body = await send_raw(bob, "GET", f"/responses/{response.id}", None, **headers)
        assert (status, msgspec.json.decode(body)["error"]["reason"]) == (404, "unknown")
        # They are neither a selector nor a domain of state of their own.
        fresh = await ask(alice, streamed=streamed, model=model, input="beta", extra_headers=headers)
        assert fresh.text == f"{target} heard: beta"
        following = await ask(
            world.client(2),
            streamed=streamed,
            model=model,
            input="gamma",
            previous_response_id=fresh.id,
            extra_headers=dict.fromkeys(SESSION_HEADERS, "another"),
        )
        assert following.text == f"{target} heard: beta | gamma"
