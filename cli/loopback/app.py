"""The upstream as an ASGI application: the API under ``/v1/``, what it was asked, and its switches.

``GET /recorded`` lists the requests to ``/v1/``, ``DELETE /recorded`` forgets them. ``POST /control`` takes
``{"down": true}``, with which every call answers 503, and ``{"delay_ms": n}``, a delay before every answer; what is not
named stays as it is.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from cli.loopback.chat import Chat
from cli.loopback.conversations import Conversations
from cli.loopback.exchange import ClientLeft, ConnectionDropped, Exchange, encode
from cli.loopback.formats import Format
from cli.loopback.instance import Instance
from cli.loopback.items import Item
from cli.loopback.recorder import Recorder
from cli.loopback.responses import Responses
from ledger.refusal import Refusal

Handle = Callable[[Exchange], Awaitable[None]]


class Control(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The switches of an upstream."""

    down: bool = False
    delay_ms: int = 0


class LoopbackApp:
    """One upstream. Its state lives as long as the object."""

    def __init__(
        self,
        name: str,
        *,
        format: Format = Format.BOTH,
        api_key: str | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """``api_key``: the only one that is let in; None: everybody is. ``now_s``: seconds since 1970."""
        self.recorder = Recorder()
        self.control = Control()
        self._authorization = None if api_key is None else f"Bearer {api_key}"
        instance = Instance(name, now_s)
        known: dict[str, Item] = {}
        conversations = Conversations(instance, known)
        self._responses = Responses(instance, conversations, known)
        routes: list[Route] = []
        if format is not Format.RESPONSES:
            routes += self._routes({"/chat/completions": {"POST": Chat(instance).create}})
        if format is not Format.CHAT_COMPLETIONS:
            routes += self._routes(_stateful(self._responses, conversations))
        routes += [
            Route("/recorded", self._recorded, methods=["GET", "DELETE"]),
            Route("/control", self._switch, methods=["POST"]),
        ]
        self._router = Router(routes, redirect_slashes=False, default=_Endpoint(self, {}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._router(scope, receive, send)

    def close(self) -> None:
        """Stop what goes on in the background."""
        self._responses.close()

    async def admit(self, exchange: Exchange) -> None:
        """Let a call in. Raises ``Refusal``."""
        if self.control.down:
            raise Refusal(503, "The loopback upstream is down.")
        if self._authorization is not None and exchange.authorization != self._authorization:
            raise Refusal(401, "Incorrect API key provided.", code="invalid_api_key")
        if self.control.delay_ms:
            await exchange.wait(self.control.delay_ms / 1000)

    def _routes(self, paths: Mapping[str, Mapping[str, Handle]]) -> list[Route]:
        return [Route(f"/v1{path}", _Endpoint(self, handles), name=path) for path, handles in paths.items()]

    async def _recorded(self, request: Request) -> Response:
        if request.method == "DELETE":
            self.recorder.clear()
            return Response(status_code=204)
        return _json([recorded.listed() for recorded in self.recorder.requests])

    async def _switch(self, request: Request) -> Response:
        try:
            given: dict[str, Any] = msgspec.json.decode(await request.body(), type=dict[str, Any])
            self.control = msgspec.convert({**msgspec.structs.asdict(self.control), **given}, Control)
        except msgspec.MsgspecError as error:
            return _json(Refusal(400, str(error)).body(), 400)
        return _json(self.control)


def _stateful(responses: Responses, conversations: Conversations) -> dict[str, dict[str, Handle]]:
    one, items = "/conversations/{conversation_id}", "/conversations/{conversation_id}/items"
    return {
        "/responses": {"POST": responses.create},
        "/responses/{response_id}": {"GET": responses.retrieve, "DELETE": responses.delete},
        "/responses/{response_id}/cancel": {"POST": responses.cancel},
        "/responses/{response_id}/input_items": {"GET": responses.input_items},
        "/conversations": {"POST": conversations.create},
        one: {"GET": conversations.retrieve, "POST": conversations.update, "DELETE": conversations.delete},
        items: {"GET": conversations.list_items, "POST": conversations.create_items},
        f"{items}/{{item_id}}": {"GET": conversations.retrieve_item, "DELETE": conversations.delete_item},
    }


class _Endpoint:
    """One path: reads a request, records it, and answers it."""

    def __init__(self, app: LoopbackApp, handles: Mapping[str, Handle]) -> None:
        self._app = app
        self._handles = handles

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            exchange = await Exchange.read(scope, receive, send)
        except ClientLeft:
            return
        if scope["path"].startswith("/v1/"):
            self._app.recorder.add(exchange.recorded)
        left = False
        try:
            await self._answer(exchange)
        except ClientLeft:
            left = True
        except ConnectionDropped:
            pass
        finally:
            exchange.close(left=left)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._app.admit(exchange)
            await self._handle(exchange)(exchange)
        except Refusal as refusal:
            await exchange.answer(refusal.body(), refusal.status, refusal.headers())

    def _handle(self, exchange: Exchange) -> Handle:
        method, path = exchange.recorded.method, exchange.recorded.path
        handle = self._handles.get(method)
        if handle is None:
            raise Refusal(405 if self._handles else 404, f"Invalid URL ({method} {path})")
        return handle


def _json(body: Any, status: int = 200) -> Response:
    return Response(encode(body), status, media_type="application/json")
