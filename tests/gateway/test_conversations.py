"""Conversations and their items, asked with the official SDK; every body is checked against the SDK's types."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import pytest
import uvicorn
from openai.types.conversations import (
    Conversation,
    ConversationDeletedResource,
    ConversationItem,
    ConversationItemList,
)
from openai.types.responses import ResponseItemList
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from api.gateway import conversations, input_items
from api.gateway.config import (
    ConversationPolicy,
    GatewayConfig,
    KeyConfig,
    LimitsConfig,
    StateBackend,
    StateConfig,
    TargetConfig,
    TargetFormat,
)
from api.gateway.conversations import ITEMS_AT_ONCE_MAX
from api.gateway.errors import refusal_answer, refusal_from
from api.gateway.metrics import GatewayMetrics
from api.gateway.routing import Routing
from api.gateway.service import Gateway
from api.gateway.upstream import Upstream
from api.metrics import Metrics
from ledger.commit import TurnStart
from ledger.composition import open_embedded
from ledger.continuation import LEDGER_TARGET, target_digest
from ledger.errors import LedgerError
from ledger.ledger import Ledger, wall_clock_ms
from ledger.policy import Policy
from ledger.turn import Content, Owner, Scope, Selector, SelectorKind, Status, Turn
from tests.api.faults import LOST, ScriptedFaults, faulty_ledger

BASE_URL = "http://127.0.0.1/v1"
Handler = Callable[[Gateway, Request], Awaitable[Response]]
CONVERSATION, ITEMS = "/v1/conversations/{conversation_id}", "/v1/conversations/{conversation_id}/items"
ROUTES: list[tuple[str, str, Handler, Any]] = [
    ("POST", "/v1/conversations", conversations.create_conversation, Conversation),
    ("GET", CONVERSATION, conversations.get_conversation, Conversation),
    ("POST", CONVERSATION, conversations.update_conversation, Conversation),
    ("DELETE", CONVERSATION, conversations.delete_conversation, ConversationDeletedResource),
    ("POST", ITEMS, conversations.create_items, ConversationItemList),
    ("GET", ITEMS, conversations.list_items, ConversationItemList),
    ("GET", ITEMS + "/{item_id}", conversations.get_item, ConversationItem),
    ("DELETE", ITEMS + "/{item_id}", conversations.delete_item, Conversation),
    ("GET", "/v1/responses/{response_id}/input_items", input_items.list_input_items, ResponseItemList),
]


def app_of(gateway: Gateway) -> Starlette:
    """The routes under test; each success is checked as the type that the SDK reads it as."""

    def endpoint(handle: Handler, shape: Any) -> Callable[[Request], Awaitable[Response]]:
        adapter = TypeAdapter[Any](shape)

        async def answer(request: Request) -> Response:
            try:
                response = await handle(gateway, request)
            except LedgerError as error:
                return refusal_answer(refusal_from(error))
            if response.status_code == 200:
                adapter.validate_json(bytes(response.body), strict=True)
            return response

        return answer

    return Starlette(
        routes=[Route(path, endpoint(handle, shape), methods=[method]) for method, path, handle, shape in ROUTES]
    )


@dataclass
class Upstreams:
    """What the one target answers, and what it was asked."""

    status: int = 200
    body: Any = None
    calls: list[tuple[str, str, bytes]] = field(default_factory=list)

    async def answer(self, request: Request) -> Response:
        query = f"?{request.url.query}" if request.url.query else ""
        raw_path: bytes = request.scope["raw_path"]
        self.calls.append((request.method, raw_path.decode() + query, await request.body()))
        return JSONResponse(self.body, self.status)


@pytest.fixture
async def upstream_url(upstreams: Upstreams) -> AsyncIterator[str]:
    methods = ["GET", "POST", "DELETE"]
    app = Starlette(routes=[Route("/{path:path}", upstreams.answer, methods=methods)])
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve([listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        server.should_exit = True
        await serving


@pytest.fixture
def upstreams() -> Upstreams:
    return Upstreams()


def config_of(base_url: str) -> GatewayConfig:
    target = TargetConfig(
        name="p1", base_url=base_url, api_key="p1-secret", format=TargetFormat.RESPONSES, models=("m",)
    )
    return GatewayConfig(
        targets={"p1": target},
        routes={},
        keys=tuple(
            KeyConfig(sha256=hashlib.sha256(principal.encode()).digest(), principal=principal)
            for principal in ("alice", "bob")
        ),
        conversations=ConversationPolicy.LAST_WRITE,
        state=StateConfig(
            backend=StateBackend.EMBEDDED, budget_mib=None, records_max=None, ttl_s=None, is_sliding=None
        ),
        limits=LimitsConfig(body_mib_max=1, replay_mib_max=1, lease_s=30, idempotency_wait_s=1),
    )


@asynccontextmanager
async def gateway_over(ledger: Ledger | None, base_url: str = "http://127.0.0.1:9/v1") -> AsyncIterator[Gateway]:
    config = config_of(base_url)
    gateway = Gateway(
        config=config,
        ledger=ledger,
        routing=Routing(config, now_s=time.monotonic),
        upstream=Upstream(config.targets),
        metrics=GatewayMetrics(Metrics()),
    )
    await gateway.start()
    yield gateway
    await gateway.close()


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    async with await open_embedded(tmp_path / "ledger") as opened:
        yield opened


@pytest.fixture
async def gateway(ledger: Ledger, upstream_url: str) -> AsyncIterator[Gateway]:
    async with gateway_over(ledger, upstream_url) as opened:
        yield opened


def sdk(gateway: Gateway, principal: str = "alice") -> openai.AsyncOpenAI:
    # httpx2 is what the SDK brings along and calls itself.
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app_of(gateway)))
    return openai.AsyncOpenAI(api_key=principal, base_url=BASE_URL, http_client=http, max_retries=0)


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk(gateway) as opened:
        yield opened


@pytest.fixture
async def http(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """What the SDK would not send."""
    transport = httpx.ASGITransport(app_of(gateway))
    headers = {"authorization": "Bearer alice"}
    async with httpx.AsyncClient(transport=transport, base_url=BASE_URL, headers=headers) as opened:
        yield opened


def user(text: str, **fields: Any) -> Any:
    return {"role": "user", "content": text, **fields}


def stored(item_id: str, text: str, role: str = "user") -> dict[str, Any]:
    part: dict[str, Any] = {"type": "input_text", "text": text}
    if role == "assistant":
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": item_id, "type": "message", "role": role, "status": "completed", "content": [part]}


def scope_of(gateway: Gateway, principal: str = "alice") -> Scope:
    return Scope(namespace=gateway.config.namespace, route=gateway.config.route, principal=principal)


async def take_turn(gateway: Gateway, number: int, conversation_id: str | None = None, **fields: Any) -> None:
    """Store a turn of a target without state, as the gateway does."""
    content = Content(
        input=[stored(f"msg_in{number}", f"question {number}")],
        output=[stored(f"msg_out{number}", f"answer {number}", "assistant")],
    )
    turn = Turn(
        scope=scope_of(gateway),
        event_id=f"turn{number}",
        response_id=f"resp_{number}",
        owner=Owner(native=False, target=LEDGER_TARGET),
        conversation_id=conversation_id,
        item_ids=(f"msg_in{number}", f"msg_out{number}"),
        content=content,
        begun_at_ms=wall_clock_ms(),
        **fields,
    )
    assert (await gateway.state().committer.commit(turn)).accepted


async def take_native_turn(gateway: Gateway, conversation_id: str | None, response_id: str = "resp_native") -> None:
    base_url = gateway.config.targets["p1"].base_url
    turn = Turn(
        scope=scope_of(gateway),
        event_id=f"event of {response_id}",
        response_id=response_id,
        owner=Owner(native=True, target="p1", digest=target_digest(base_url)),
        conversation_id=conversation_id,
        begun_at_ms=wall_clock_ms(),
    )
    assert (await gateway.state().committer.commit(turn)).accepted


async def texts(client: openai.AsyncOpenAI, conversation_id: str, **query: Any) -> list[str]:
    """Return the text of every item, page by page."""
    listing = client.conversations.items.list(conversation_id, **query)
    return [item.to_dict()["content"][0]["text"] async for item in listing]  # type: ignore[index]


def id_of(item: ConversationItem) -> str:
    assert item.id is not None
    return item.id


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    return error


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


# Tenants


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


# Native conversations


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


# Input items


async def test_input_items_are_those_of_the_turn_alone(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    await take_turn(gateway, 1)
    await take_turn(gateway, 2, previous_response_id="resp_1")
    listed = await client.responses.input_items.list("resp_2", limit=1, include=["message.input_image.image_url"])
    assert ([item.id for item in listed.data], listed.has_more) == (["msg_in2"], False)


async def test_input_items_of_a_native_response_are_asked_of_its_owner(
    gateway: Gateway, http: httpx.AsyncClient, upstreams: Upstreams
) -> None:
    await take_native_turn(gateway, None)
    upstreams.body = list_body = {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}
    answer = await http.get("/responses/resp_native/input_items?limit=3&after=msg_1")
    assert answer.json() == list_body
    assert upstreams.calls == [("GET", "/v1/responses/resp_native/input_items?limit=3&after=msg_1", b"")]


async def test_response_that_has_not_ended_has_no_input_items_yet(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    start = TurnStart(
        scope=scope_of(gateway),
        event_id="start",
        turn_id="turn",
        begun_at_ms=wall_clock_ms(),
        lease_ms=60_000,
        response_id="resp_1",
    )
    assert (await gateway.state().committer.begin(start)).accepted
    assert (await client.responses.input_items.list("resp_1")).data == []


async def test_input_items_of_a_deleted_response_are_gone(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    await take_turn(gateway, 1)
    selector = Selector(scope=scope_of(gateway), kind=SelectorKind.RESPONSE, id="resp_1")
    assert (await gateway.state().conversations.delete_response(selector, event_id="delete")).accepted
    with pytest.raises(openai.NotFoundError) as refused:
        await client.responses.input_items.list("resp_1")
    assert (refused.value.code, refused.value.param) == ("response_not_found", "response_id")
    assert refused.value.body["reason"] == "deleted"  # type: ignore[index]


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
