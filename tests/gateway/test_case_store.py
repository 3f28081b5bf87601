"""Cases A16 and A17: what ``store`` means, and what is left of the gateway without a ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI

from tests.gateway.asking import Asked, ask, send_raw
from tests.gateway.world import Config, Replica, World, embedded_only, gateway_over, native_or_portable

NOT_FOUND = (400, "previous_response_not_found", "previous_response_id")
STORES = (None, True, False)
"""Not given, which is true; and either."""


def asked(store: bool | None) -> dict[str, Any]:
    """Return the field of a request, absent for None."""
    return {} if store is None else {"store": store}


def store_of(answered: Asked) -> Any:
    """Return what an answer says of itself."""
    assert answered.response is not None, answered.error
    return answered.response.to_dict()["store"]


async def texts(client: AsyncOpenAI, conversation_id: str) -> list[str]:
    """Return the texts of a conversation, oldest first."""
    listed = client.conversations.items.list(conversation_id, order="asc")
    return [item.to_dict()["content"][0]["text"] async for item in listed]  # type: ignore[index]


# A16


@native_or_portable
async def test_stored_response_can_be_followed_by_either_kind(
    world: World, streamed: bool, model: str, target: str
) -> None:
    first = await ask(world.client(1), streamed=streamed, model=model, input="alpha")
    assert store_of(first) is True
    for store in STORES:
        following = await ask(
            world.client(2), streamed=streamed, model=model, input="beta", previous_response_id=first.id, **asked(store)
        )
        assert following.text == f"{target} heard: alpha | beta"
        assert store_of(following) is (store is not False)
        last = await ask(
            world.client(1), streamed=streamed, model=model, input="gamma", previous_response_id=following.id
        )
        status, _ = await send_raw(world.client(2), "GET", f"/responses/{following.id}")
        if store is False:
            assert (last.status, last.code, last.error["param"]) == NOT_FOUND
            assert status == 404
        else:
            assert last.text == f"{target} heard: alpha | beta | gamma"
            assert status == 200


@native_or_portable
async def test_unstored_response_can_be_followed_by_neither_kind(
    world: World, streamed: bool, model: str, target: str
) -> None:
    first = await ask(world.client(1), streamed=streamed, model=model, input="alpha", store=False)
    assert first.text == f"{target} heard: alpha"
    assert store_of(first) is False
    world.forget()
    for store in STORES:
        refused = await ask(
            world.client(2), streamed=streamed, model=model, input="beta", previous_response_id=first.id, **asked(store)
        )
        assert (refused.status, refused.code, refused.error["param"], refused.reason) == (*NOT_FOUND, "unknown")
    assert world.called() == {"p1": 0, "p2": 0, "c": 0}


@pytest.mark.parametrize(("model", "target"), [("auto", "p1"), ("chat", "c")])
async def test_unstored_turn_in_a_conversation_hears_it_and_does_not_change_it(
    world: World, streamed: bool, model: str, target: str
) -> None:
    await ask(world.client(1), streamed=streamed, model=model, input="alpha", conversation="conv_a")
    unstored = await ask(
        world.client(2), streamed=streamed, model=model, input="beta", conversation="conv_a", store=False
    )
    assert unstored.text == f"{target} heard: alpha | beta"
    assert store_of(unstored) is False
    assert await texts(world.client(1), "conv_a") == ["alpha", f"{target} heard: alpha"]
    following = await ask(world.client(1), streamed=streamed, model=model, input="gamma", conversation="conv_a")
    assert following.text == f"{target} heard: alpha | gamma"


async def test_unstored_turn_makes_no_conversation(world: World, streamed: bool) -> None:
    await ask(world.client(1), streamed=streamed, model="chat", input="alpha", conversation="conv_a", store=False)
    assert (await send_raw(world.client(2), "GET", "/conversations/conv_a"))[0] == 404


@native_or_portable
async def test_unstored_turn_writes_nothing(world: World, streamed: bool, model: str, target: str) -> None:
    replica, client = world.replicas[0], world.client(1)
    parent = await ask(client, streamed=streamed, model=model, input="alpha")
    before = await replica.metric("turnledger_appends_total")
    await ask(client, streamed=streamed, model=model, input="beta", store=False)
    await ask(client, streamed=streamed, model=model, input="beta", previous_response_id=parent.id, store=False)
    await ask(client, streamed=streamed, model="chat", input="beta", conversation="conv_a", store=False)
    assert await replica.metric("turnledger_appends_total") == before
    await ask(client, streamed=streamed, model=model, input="beta")
    assert await replica.metric("turnledger_appends_total") == before + 1


# A17: the log has no part in it, so one world will do.


def without_state(config: Config) -> None:
    config["state"] = {"backend": "off"}


@pytest.fixture
async def stateless(world: World) -> AsyncIterator[Replica]:
    """A gateway without a ledger before the same upstreams."""
    async with gateway_over(None, world.config(without_state, name="stateless")) as replica:
        yield replica


NEEDS_STATE: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({"store": True}, {}, "store"),
    ({"previous_response_id": "resp_1"}, {}, "previous_response_id"),
    ({"previous_response_id": "resp_1", "store": False}, {}, "previous_response_id"),
    ({"conversation": "conv_a"}, {}, "conversation"),
    ({"conversation": {"id": "conv_a"}, "store": False}, {}, "conversation"),
    ({"background": True}, {}, "background"),
    ({}, {"Idempotency-Key": "key-1"}, "Idempotency-Key"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, {}, "input"),
    ({"input": [{"id": "msg_1"}], "store": False}, {}, "input"),
]


@embedded_only
@native_or_portable
async def test_without_a_ledger_what_needs_one_is_refused_and_no_model_runs(
    world: World, stateless: Replica, streamed: bool, model: str, target: str
) -> None:
    for fields, headers, param in NEEDS_STATE:
        request = {"model": model, "input": "alpha", **fields}
        refused = await ask(stateless.client(world.alice), streamed=streamed, extra_headers=headers, **request)
        assert (refused.status, refused.code, refused.error["param"]) == (400, "state_disabled", param), fields
        assert refused.reason == "state_off"
    assert world.called() == {"p1": 0, "p2": 0, "c": 0}


@embedded_only
async def test_without_a_ledger_every_route_of_stored_state_says_so(world: World, stateless: Replica) -> None:
    routes: list[tuple[str, str, Any]] = [
        ("GET", "/responses/resp_1", None),
        ("GET", "/responses/resp_1?stream=true", None),
        ("DELETE", "/responses/resp_1", None),
        ("POST", "/responses/resp_1/cancel", None),
        ("GET", "/responses/resp_1/input_items", None),
        ("POST", "/conversations", {}),
        ("GET", "/conversations/conv_a", None),
        ("GET", "/conversations/conv_a/items", None),
    ]
    for method, path, body in routes:
        status, answer = await send_raw(stateless.client(world.alice), method, path, body)
        assert (status, msgspec.json.decode(answer)["error"]["code"]) == (400, "state_disabled"), path
    assert world.called() == {"p1": 0, "p2": 0, "c": 0}


@embedded_only
@native_or_portable
async def test_without_a_ledger_an_answer_is_as_before_and_says_that_it_is_not_kept(
    world: World, stateless: Replica, streamed: bool, model: str, target: str
) -> None:
    history = [
        {"role": "user", "content": "alpha"},
        {"role": "assistant", "content": "heard alpha"},
        {"role": "user", "content": "beta"},
    ]
    for store in (None, False):
        world.forget()
        request = {"model": model, "input": history, "instructions": "be brief", **asked(store)}
        with_ledger = await ask(world.client(1), streamed=streamed, **{**request, "store": False})
        without = await ask(stateless.client(world.alice), streamed=streamed, **request)
        assert without.text == with_ledger.text == f"{target} heard: alpha | beta"
        assert without.types == with_ledger.types
        assert with_ledger.response is not None
        assert without.response is not None
        one, other = with_ledger.response.to_dict(), without.response.to_dict()
        for body in (one, other):
            for name in ("id", "created_at", "completed_at", "output", "usage"):
                body.pop(name, None)
        assert one == other
        assert other["store"] is False
        sent = [msgspec.json.decode(request.raw) for request in {"p1": world.p1, "c": world.c}[target].recorded()]
        assert sent[0] == sent[1]
