"""A gateway over a real ledger with the routes of conversations, asked in process; its one target records."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import httpx2
import openai
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
from api.gateway.errors import refusal_answer, refusal_from
from api.gateway.metrics import GatewayMetrics
from api.gateway.routing import Routing
from api.gateway.service import Gateway
from api.gateway.upstream import Upstream
from api.metrics import Metrics
from ledger.continuation import LEDGER_TARGET, target_digest
from ledger.errors import LedgerError
from ledger.ledger import Ledger, wall_clock_ms
from ledger.turn import Content, Owner, Scope, Turn
from tests.gateway.serving import listening

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


@asynccontextmanager
async def serving(upstreams: Upstreams) -> AsyncIterator[str]:
    """Run the target; give its base URL."""
    methods = ["GET", "POST", "DELETE"]
    app = Starlette(routes=[Route("/{path:path}", upstreams.answer, methods=methods)])
    async with listening(app) as url:
        yield f"{url}/v1"


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


def sdk(gateway: Gateway, principal: str = "alice") -> openai.AsyncOpenAI:
    # httpx2 is what the SDK brings along and calls itself.
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app_of(gateway)))
    return openai.AsyncOpenAI(api_key=principal, base_url=BASE_URL, http_client=http, max_retries=0)


def raw_http(gateway: Gateway, principal: str = "alice") -> httpx.AsyncClient:
    """What the SDK would not send."""
    headers = {"authorization": f"Bearer {principal}"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app_of(gateway)), base_url=BASE_URL, headers=headers)


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
        owner=Owner(native=True, target="p1", digest=target_digest(base_url, format="responses")),
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
