"""Whose a conversation is: of a tenant, and of the target that holds it."""

from __future__ import annotations

import httpx
import openai
import pytest

from api.gateway.service import Gateway
from ledger.ledger import Ledger
from tests.gateway.conversations.app import (
    Upstreams,
    error_of,
    gateway_over,
    sdk,
    take_native_turn,
    take_turn,
    texts,
    user,
)

# Of a tenant


REQUESTS = [
    ("GET", "/conversations/{conversation}", None),
    ("POST", "/conversations/{conversation}", {"metadata": {"a": "b"}}),
    ("DELETE", "/conversations/{conversation}", None),
    ("POST", "/conversations/{conversation}/items", {"items": [{"role": "user", "content": "b"}]}),
    ("GET", "/conversations/{conversation}/items", None),
    ("GET", "/conversations/{conversation}/items/{item}", None),
    ("DELETE", "/conversations/{conversation}/items/{item}", None),
    ("GET", "/responses/{response}/input_items", None),
]


@pytest.mark.parametrize("is_native", [False, True])
async def test_ids_of_another_tenant_are_answered_like_random_ones(
    gateway: Gateway, http: httpx.AsyncClient, upstreams: Upstreams, is_native: bool
) -> None:
    if is_native:
        await take_native_turn(gateway, "conv_a", "resp_1")
    else:
        await take_turn(gateway, 1, "conv_a")
    for method, path, body in REQUESTS:
        answers = []
        for names in (
            {"conversation": "conv_a", "item": "msg_in1", "response": "resp_1"},
            {"conversation": "conv_x", "item": "msg_x", "response": "resp_x"},
        ):
            request = http.build_request(method, path.format(**names), json=body)
            request.headers["authorization"] = "Bearer bob"
            answer = await http.send(request)
            answers.append((answer.status_code, answer.content))
        assert answers[0] == answers[1]
        assert answers[0][0] == 404
    assert upstreams.calls == []
    if not is_native:
        async with sdk(gateway) as client:
            assert await texts(client, "conv_a", order="asc") == ["question 1", "answer 1"]
            assert (await client.conversations.retrieve("conv_a")).metadata == {}


async def test_item_id_of_another_tenant_can_be_brought_without_notice(
    client: openai.AsyncOpenAI, gateway: Gateway
) -> None:
    await client.conversations.create(items=[user("a", type="message", id="msg_mine")])
    async with sdk(gateway, "bob") as bob:
        made = await bob.conversations.create(items=[user("b", type="message", id="msg_mine")])
        assert [item.id for item in (await bob.conversations.items.list(made.id)).data] == ["msg_mine"]


# Of a target


async def test_native_conversation_is_its_owners(
    gateway: Gateway, http: httpx.AsyncClient, upstreams: Upstreams
) -> None:
    await take_native_turn(gateway, "conv_p1")
    upstreams.body, upstreams.status = {"error": {"code": "from p1"}}, 418
    asked = [
        ("GET", "/conversations/conv_p1", b""),
        ("POST", "/conversations/conv_p1", b'{"metadata": {"a" :"b"}}'),
        ("POST", "/conversations/conv_p1/items?include%5B%5D=x", b'{"items": [], "new": 1}'),
        ("GET", "/conversations/conv_p1/items?limit=1000&other=a%20b", b""),
        ("GET", "/conversations/conv_p1/items/msg%3F1", b""),
        ("DELETE", "/conversations/conv_p1/items/msg_1", b""),
        ("DELETE", "/conversations/conv_p1", b""),
    ]
    for method, path, body in asked:
        headers = {"content-type": "application/json"} if body else {}
        answer = await http.request(method, path, content=body, headers=headers)
        assert (answer.status_code, answer.json()) == (418, upstreams.body)
    assert upstreams.calls == [(method, f"/v1{path}", body) for method, path, body in asked]


@pytest.mark.parametrize(("status", "is_kept"), [(200, False), (404, False), (500, True)])
async def test_native_conversation_goes_when_its_owner_has_deleted_it(
    gateway: Gateway, http: httpx.AsyncClient, upstreams: Upstreams, status: int, is_kept: bool
) -> None:
    await take_native_turn(gateway, "conv_p1")
    upstreams.status = status
    upstreams.body = {"id": "conv_p1", "object": "conversation.deleted", "deleted": True}
    answer = await http.delete("/conversations/conv_p1")
    assert (answer.status_code, answer.json()) == (status, upstreams.body)
    await http.get("/conversations/conv_p1")
    assert len(upstreams.calls) == (2 if is_kept else 1)


async def test_dot_segment_reaches_no_other_path_of_the_owner(
    gateway: Gateway, http: httpx.AsyncClient, upstreams: Upstreams
) -> None:
    await take_native_turn(gateway, "conv_p1")
    # Written with dots, the client itself would resolve it.
    answer = await http.delete("/conversations/conv_p1/items/%2E%2E")
    assert (answer.status_code, error_of(answer)["code"]) == (404, "item_not_found")
    assert upstreams.calls == []


async def test_owner_that_does_not_answer_is_said(ledger: Ledger) -> None:
    async with gateway_over(ledger) as gateway, sdk(gateway) as client:
        await take_native_turn(gateway, "conv_p1")
        with pytest.raises(openai.InternalServerError) as refused:
            await client.conversations.retrieve("conv_p1")
        assert (refused.value.status_code, refused.value.code) == (503, "owner_unavailable")
