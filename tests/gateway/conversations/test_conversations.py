"""Conversations and their items, asked with the official SDK; every body is checked against the SDK's types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from api.gateway.conversations import ITEMS_AT_ONCE_MAX
from api.gateway.service import Gateway
from ledger.composition import open_embedded
from ledger.ledger import Ledger, wall_clock_ms
from ledger.policy import Policy
from ledger.turn import SelectorKind, Status
from tests.api.faults import LOST, ScriptedFaults, faulty_ledger
from tests.gateway.conversations.app import (
    error_of,
    gateway_over,
    id_of,
    scope_of,
    sdk,
    take_turn,
    texts,
    user,
)


@pytest.fixture
async def gateway(ledger: Ledger) -> AsyncIterator[Gateway]:
    async with gateway_over(ledger) as opened:
        yield opened


# A conversation


async def test_conversation_is_made_read_changed_and_deleted(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create(metadata={"topic": "a"})
    assert made.id.startswith("conv_")
    assert made.metadata == {"topic": "a"}
    assert await client.conversations.retrieve(made.id) == made
    changed = await client.conversations.update(made.id, metadata={"topic": "b", "more": "c"})
    assert (changed.created_at, changed.metadata) == (made.created_at, {"topic": "b", "more": "c"})
    assert await client.conversations.retrieve(made.id) == changed
    gone = await client.conversations.delete(made.id)
    assert gone.to_dict() == {"id": made.id, "object": "conversation.deleted", "deleted": True}


async def test_conversation_without_anything_is_empty(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create()
    assert made.metadata == {}
    assert await texts(client, made.id) == []
    assert (await client.conversations.update(made.id, metadata=None)).metadata == {}


async def test_conversation_counts_its_age_in_seconds_of_the_ledger(
    client: openai.AsyncOpenAI, gateway: Gateway
) -> None:
    made = await client.conversations.create()
    found = await gateway.look_up(scope_of(gateway), SelectorKind.CONVERSATION, made.id)
    assert made.created_at == getattr(found, "created_at_ms") // 1000  # noqa: B009  # Any answer but Found fails here.


async def test_deleted_conversation_stays_deleted_and_says_so(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    made = await client.conversations.create(items=[user("a")])
    item_id = (await client.conversations.items.list(made.id)).data[0].id
    await client.conversations.delete(made.id)
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/items"),
        ("GET", f"/items/{item_id}"),
        ("DELETE", f"/items/{item_id}"),
    ):
        answer = await http.request(method, f"/conversations/{made.id}{path}")
        assert answer.status_code == 404
        assert (error_of(answer)["code"], error_of(answer)["reason"]) == ("conversation_not_found", "deleted")


async def test_responses_outlive_their_deleted_conversation(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    made = await client.conversations.create()
    await take_turn(gateway, 1, made.id)
    await client.conversations.delete(made.id)
    assert [item.id for item in (await client.responses.input_items.list("resp_1")).data] == ["msg_in1"]


async def test_expired_conversation_says_so(tmp_path: Path) -> None:
    now_ms = wall_clock_ms()
    async with (
        await open_embedded(tmp_path / "l", policy=Policy(active_ttl_ms=60_000), now_ms=lambda: now_ms) as ledger,
        gateway_over(ledger) as gateway,
        sdk(gateway) as client,
    ):
        made = await client.conversations.create()
        now_ms += 61_000
        with pytest.raises(openai.NotFoundError) as refused:
            await client.conversations.retrieve(made.id)
    assert refused.value.body["reason"] == "expired"  # type: ignore[index]


# Its items


async def test_items_are_listed_newest_first_over_turns_and_additions(
    client: openai.AsyncOpenAI, gateway: Gateway
) -> None:
    made = await client.conversations.create(items=[user("first"), user("second")])
    await take_turn(gateway, 1, made.id)
    await client.conversations.items.create(made.id, items=[user("last")])
    in_order = ["first", "second", "question 1", "answer 1", "last"]
    assert await texts(client, made.id) == in_order[::-1]
    assert await texts(client, made.id, order="asc", limit=2) == in_order


async def test_turn_of_a_branch_is_no_part_of_the_conversation(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    await take_turn(gateway, 1, "conv_a")
    await take_turn(gateway, 2, previous_response_id="resp_1")
    assert await texts(client, "conv_a", order="asc") == ["question 1", "answer 1"]
    for call in (client.conversations.items.retrieve, client.conversations.items.delete):
        with pytest.raises(openai.NotFoundError) as refused:
            await call("msg_in2", conversation_id="conv_a")
        assert (refused.value.code, refused.value.param) == ("item_not_found", "item_id")


async def test_turn_that_failed_is_no_part_of_the_conversation(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    await take_turn(gateway, 1, "conv_a")
    await take_turn(gateway, 2, "conv_a", status=Status.FAILED)
    assert await texts(client, "conv_a", order="asc") == ["question 1", "answer 1"]


async def test_added_items_are_answered_as_they_are_stored(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create()
    added = await client.conversations.items.create(
        made.id, items=[user("a"), {"type": "function_call_output", "call_id": "call_1", "output": "b"}]
    )
    assert (added.has_more, added.first_id, added.last_id) == (False, added.data[0].id, added.data[1].id)
    listed = await client.conversations.items.list(made.id, order="asc")
    assert listed.data == added.data
    assert [await client.conversations.items.retrieve(id_of(item), conversation_id=made.id) for item in added.data] == (
        added.data
    )


async def test_item_keeps_the_id_that_its_client_gave(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[user("a", type="message", id="msg_mine")])
    item = await client.conversations.items.retrieve("msg_mine", conversation_id=made.id)
    assert item.to_dict()["content"][0]["text"] == "a"  # type: ignore[index]


async def test_item_with_the_id_of_another_gets_one_of_its_own(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[user("a", type="message", id="msg_mine")])
    copy = await client.conversations.create(items=[user("a", type="message", id="msg_mine")])
    again = (await client.conversations.items.create(made.id, items=[user("b", type="message", id="msg_mine")])).data[0]
    (copied,) = (await client.conversations.items.list(copy.id)).data
    assert len({"msg_mine", copied.id, again.id}) == 3
    await client.conversations.items.delete(id_of(copied), conversation_id=copy.id)
    await client.conversations.items.delete(id_of(again), conversation_id=made.id)
    assert (await texts(client, made.id), await texts(client, copy.id)) == (["a"], [])


async def test_deleted_item_is_gone_and_its_conversation_is_answered(
    client: openai.AsyncOpenAI, gateway: Gateway
) -> None:
    made = await client.conversations.create(metadata={"topic": "a"})
    await take_turn(gateway, 1, made.id)
    await take_turn(gateway, 2, made.id)
    assert await client.conversations.items.delete("msg_out1", conversation_id=made.id) == made
    assert await texts(client, made.id, order="asc") == ["question 1", "question 2", "answer 2"]
    for call in (client.conversations.items.retrieve, client.conversations.items.delete):
        with pytest.raises(openai.NotFoundError) as refused:
            await call("msg_out1", conversation_id=made.id)
        assert refused.value.code == "item_not_found"
        assert refused.value.body["reason"] == "deleted"  # type: ignore[index]


async def test_two_items_of_one_turn_deleted_at_once_are_both_gone(
    client: openai.AsyncOpenAI, gateway: Gateway
) -> None:
    await take_turn(gateway, 1, "conv_a")
    deletions = [
        client.conversations.items.delete(item_id, conversation_id="conv_a") for item_id in ("msg_in1", "msg_out1")
    ]
    await asyncio.gather(*deletions)
    assert await texts(client, "conv_a") == []


async def test_item_of_another_conversation_is_unknown_in_this_one(client: openai.AsyncOpenAI) -> None:
    here, there = await client.conversations.create(), await client.conversations.create(items=[user("a")])
    item_id = id_of((await client.conversations.items.list(there.id)).data[0])
    for call in (client.conversations.items.retrieve, client.conversations.items.delete):
        with pytest.raises(openai.NotFoundError) as refused:
            await call(item_id, conversation_id=here.id)
        assert refused.value.body["reason"] == "unknown"  # type: ignore[index]
    assert await texts(client, there.id) == ["a"]


# What is refused


@pytest.mark.parametrize("count", [ITEMS_AT_ONCE_MAX, ITEMS_AT_ONCE_MAX + 1])
@pytest.mark.parametrize("is_new", [True, False])
async def test_items_at_once_are_bounded(client: openai.AsyncOpenAI, count: int, is_new: bool) -> None:
    items = [user(str(number)) for number in range(count)]
    made = await client.conversations.create()

    async def add() -> str:
        if is_new:
            return (await client.conversations.create(items=items)).id
        await client.conversations.items.create(made.id, items=items)
        return made.id

    if count <= ITEMS_AT_ONCE_MAX:
        assert len(await texts(client, await add())) == count
        return
    with pytest.raises(openai.BadRequestError) as refused:
        await add()
    assert refused.value.param == "items"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": "a"}, "items"),
        ({"items": [1]}, "items[0]"),
        ({"items": [{"role": "user", "content": "a"}, {"role": "user"}]}, "items[1].content"),
        ({"items": [{"type": "item_reference", "id": "msg_1"}]}, "items[0]"),
        ({"items": [{"role": "user", "content": "a", "id": 1}]}, "items[0].id"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {}, "store": True}, "store"),
        ([], "body"),
    ],
)
async def test_wrong_field_of_a_new_conversation_is_refused_by_name(
    http: httpx.AsyncClient, body: Any, param: str
) -> None:
    answer = await http.post("/conversations", json=body)
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)
    assert "input" not in error_of(answer)["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {}, "metadata"),
        ("", {"metadata": {}, "items": []}, "items"),
        ("/items", {}, "items"),
        ("/items", {"items": []}, "items"),
        ("/items", {"items": None}, "items"),
        ("/items", {"items": [user("a")], "metadata": {}}, "metadata"),
        ("/items?limit=2", {"items": [user("a")]}, "limit"),
    ],
)
async def test_wrong_field_of_a_change_is_refused_by_name(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, path: str, body: Any, param: str
) -> None:
    made = await client.conversations.create()
    answer = await http.post(f"/conversations/{made.id}{path}", json=body)
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)
    assert await texts(client, made.id) == []


async def test_body_must_be_json_within_the_bound(http: httpx.AsyncClient) -> None:
    answer = await http.post("/conversations", content=b"{}")
    assert (answer.status_code, error_of(answer)["param"]) == (400, "content-type")
    answer = await http.post("/conversations", json={"items": [user("a" * 1024 * 1024)]})
    assert (answer.status_code, error_of(answer)["param"]) == (413, "body")


async def test_list_takes_what_the_sdk_may_send(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[user("a"), user("b")])
    include: Any = ["message.output_text.logprobs", "reasoning.encrypted_content"]
    listed = await client.conversations.items.list(made.id, include=include, limit=1, order="asc")
    assert listed.has_more
    item_id = id_of(listed.data[0])
    assert await texts(client, made.id, include=include, after=item_id, order="asc") == ["b"]
    item = await client.conversations.items.retrieve(item_id, conversation_id=made.id, include=include)
    assert item == listed.data[0]
    with pytest.raises(openai.BadRequestError, match="limit"):
        await client.conversations.items.list(made.id, limit=101)
    with pytest.raises(openai.NotFoundError, match="after"):
        await client.conversations.items.list(made.id, after="msg_other")


async def test_nothing_is_answered_without_a_key(gateway: Gateway) -> None:
    async with sdk(gateway, "mallory") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.conversations.create()


async def test_without_state_every_route_says_so() -> None:
    async with gateway_over(None) as gateway, sdk(gateway) as client:
        for call in (
            client.conversations.create(),
            client.conversations.retrieve("conv_a"),
            client.conversations.update("conv_a", metadata={}),
            client.conversations.delete("conv_a"),
            client.conversations.items.create("conv_a", items=[user("a")]),
            client.conversations.items.retrieve("msg_1", conversation_id="conv_a"),
            client.responses.input_items.list("resp_1"),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await call
            assert refused.value.code == "state_disabled"


# Outages


async def test_addition_whose_outcome_was_unknown_is_never_doubled_by_its_retry() -> None:
    faults = ScriptedFaults()
    async with faulty_ledger(faults) as ledger, gateway_over(ledger) as gateway, sdk(gateway) as client:
        made = await client.conversations.create()
        partition = gateway.state().reader.partition(scope_of(gateway))
        faults.fates[partition] = [LOST]
        with pytest.raises(openai.InternalServerError) as refused:
            await client.conversations.items.create(made.id, items=[user("a")])
        assert (refused.value.status_code, refused.value.code) == (503, "ledger_unavailable")
        assert await texts(client, made.id) == []
        await client.conversations.items.create(made.id, items=[user("a")])
        assert await texts(client, made.id) == ["a"]


async def test_outage_of_the_ledger_is_never_a_missing_conversation() -> None:
    faults = ScriptedFaults()
    async with faulty_ledger(faults) as ledger, gateway_over(ledger) as gateway, sdk(gateway) as client:
        faults.leaderless.add(gateway.state().reader.partition(scope_of(gateway)))
        for call in (
            client.conversations.retrieve("conv_a"),
            client.conversations.delete("conv_a"),
            client.conversations.items.create("conv_a", items=[user("a")]),
            client.responses.input_items.list("resp_1"),
        ):
            with pytest.raises(openai.InternalServerError) as refused:
                await call
            assert (refused.value.status_code, refused.value.code) == (503, "ledger_unavailable")
