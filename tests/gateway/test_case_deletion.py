"""Case A25: what was deleted is gone on every replica, says so, and does not come back."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI

from tests.gateway.asking import Asked, ask, eventually, send_raw
from tests.gateway.world import World, native_or_portable

NOBODY = {"p1": 0, "p2": 0, "c": 0}


async def refused_here(world: World, client: AsyncOpenAI, **follow: Any) -> Asked | None:
    """Return the gateway's own refusal; None: the owner was asked, as it may for a moment, and has deleted it too."""
    world.forget()
    refused = await ask(client, **follow)
    assert (refused.status, refused.code) == (400, "previous_response_not_found")
    assert refused.reason is not None or follow["model"] == "auto"
    return refused if refused.reason is not None else None


@native_or_portable
async def test_deleted_response_is_gone_everywhere_with_its_reason(
    world: World, streamed: bool, model: str, target: str
) -> None:
    response = await ask(world.client(1), streamed=streamed, model=model, input="alpha")
    path = f"/responses/{response.id}"
    status, body = await send_raw(world.client(2), "DELETE", path)
    assert status == 200
    assert msgspec.json.decode(body) == {"id": response.id, "object": "response", "deleted": True}
    world.forget()
    for client in (world.client(1), world.client(2)):
        for method, below in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
            status, body = await send_raw(client, method, f"{path}{below}")
            error = msgspec.json.decode(body)["error"]
            assert (status, error["code"], error["reason"]) == (404, "response_not_found", "deleted"), (method, below)
    assert sum(len(loopback.recorded()) for loopback in (world.p1, world.p2, world.c)) == 0
    for client in (world.client(1), world.client(2)):
        follow = {"streamed": streamed, "model": model, "input": "beta", "previous_response_id": response.id}
        refused = await eventually(partial(refused_here, world, client, **follow))
        assert (refused.status, refused.code, refused.reason) == (400, "previous_response_not_found", "deleted")
        assert world.called() == NOBODY


@native_or_portable
async def test_what_was_continued_from_a_deleted_response_keeps_its_history(
    world: World, streamed: bool, model: str, target: str
) -> None:
    parent = await ask(world.client(1), streamed=streamed, model=model, input="alpha")
    child = await ask(world.client(2), streamed=streamed, model=model, input="beta", previous_response_id=parent.id)
    await world.client(2).responses.delete(parent.id)
    following = await ask(world.client(1), streamed=streamed, model=model, input="gamma", previous_response_id=child.id)
    assert following.text == f"{target} heard: alpha | beta | gamma"


@pytest.mark.parametrize("model", ["auto", "chat"])
async def test_deleted_conversation_is_not_begun_anew_by_a_later_turn(world: World, streamed: bool, model: str) -> None:
    first = await ask(world.client(1), streamed=streamed, model=model, input="alpha", conversation="conv_a")
    status, body = await send_raw(world.client(2), "DELETE", "/conversations/conv_a")
    assert status == 200
    assert msgspec.json.decode(body) == {"id": "conv_a", "object": "conversation.deleted", "deleted": True}
    world.forget()
    for client in (world.client(1), world.client(2)):
        for store in (True, False):
            refused = await ask(
                client, streamed=streamed, model=model, input="beta", conversation="conv_a", store=store
            )
            assert (refused.status, refused.code, refused.reason) == (404, "conversation_not_found", "deleted")
        status, body = await send_raw(client, "GET", "/conversations/conv_a/items")
        assert (status, msgspec.json.decode(body)["error"]["reason"]) == (404, "deleted")
    assert world.called() == NOBODY
    # Its responses are not it.
    following = await ask(world.client(2), streamed=streamed, model=model, input="beta", previous_response_id=first.id)
    assert following.text.endswith("heard: alpha | beta")


@pytest.mark.parametrize("is_new", [True, False], ids=["first-turn", "later-turn"])
async def test_turn_that_was_under_way_does_not_bring_its_conversation_back(
    world: World, streamed: bool, is_new: bool
) -> None:
    made = await world.client(1).conversations.create(items=[] if is_new else [{"role": "user", "content": "before"}])
    turn = asyncio.create_task(
        ask(world.client(1), streamed=streamed, model="chat", input="!delay(300) alpha", conversation=made.id)
    )
    await eventually(world.some_call)
    await world.client(2).conversations.delete(made.id)
    await turn
    for client in (world.client(1), world.client(2)):
        refused = await ask(client, streamed=streamed, model="chat", input="beta", conversation=made.id)
        assert (refused.status, refused.code, refused.reason) == (404, "conversation_not_found", "deleted")
        assert (await send_raw(client, "GET", f"/conversations/{made.id}"))[0] == 404


async def test_two_items_of_one_turn_deleted_at_once_on_two_replicas_are_both_gone(
    world: World, streamed: bool
) -> None:
    given = [{"role": "user", "content": word} for word in ("alpha", "beta", "gamma")]
    await ask(world.client(1), streamed=streamed, model="chat", input=given, conversation="conv_a")
    listed = [item async for item in world.client(1).conversations.items.list("conv_a", order="asc")]
    doomed = [str(item.id) for item in listed[:2]]
    deleted = await asyncio.gather(
        *(
            world.client(replica).conversations.items.delete(item_id, conversation_id="conv_a")
            for replica, item_id in enumerate(doomed, 1)
        )
    )
    assert [conversation.id for conversation in deleted] == ["conv_a", "conv_a"]
    for client in (world.client(1), world.client(2)):
        left = [str(item.id) async for item in client.conversations.items.list("conv_a", order="asc")]
        assert left == [str(item.id) for item in listed[2:]]
        for item_id in doomed:
            status, body = await send_raw(client, "GET", f"/conversations/conv_a/items/{item_id}")
            assert (status, msgspec.json.decode(body)["error"]["reason"]) == (404, "deleted")
    world.forget()
    following = await ask(world.client(2), streamed=streamed, model="chat", input="delta", conversation="conv_a")
    assert following.text == "c heard: gamma | delta"
    assert "alpha" not in str(world.c.recorded()[0].body["messages"][0])


async def test_same_item_deleted_at_once_on_two_replicas_is_deleted_once(world: World) -> None:
    await ask(world.client(1), streamed=False, model="chat", input="alpha", conversation="conv_a")
    (_, first) = [str(item.id) async for item in world.client(1).conversations.items.list("conv_a")]
    answers = await asyncio.gather(
        *(send_raw(world.client(replica), "DELETE", f"/conversations/conv_a/items/{first}") for replica in (1, 2))
    )
    assert sorted(status for status, _ in answers) == [200, 404]
