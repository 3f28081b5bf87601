"""One request and its answer on the wire: whole or streamed, late, cut off, or left by the client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from cli.loopback.recorder import Recorded
from ledger.refusal import Refusal

KEPT_HEADERS = (b"content-type", b"idempotency-key")

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class ClientLeft(Exception):
    """The client closed the connection before it had the whole answer."""


class ConnectionDropped(Exception):
    """The upstream closed the connection, as it was told to."""


class Exchange:
    """One request, read whole, and the way back to its client."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, raw: bytes) -> None:
        headers = dict(scope["headers"])
        self.authorization: str = headers.get(b"authorization", b"").decode("latin-1")
        self.path_params: Mapping[str, str] = scope.get("path_params", {})
        self.recorded = Recorded(
            method=scope["method"],
            path=scope["path"],
            query=dict(parse_qsl(scope["query_string"].decode("latin-1"))),
            raw=raw,
            headers={name.decode(): headers[name].decode("latin-1") for name in KEPT_HEADERS if name in headers},
        )
        if self.authorization:
            self.recorded.headers["authorization"] = self.authorization.partition(" ")[0]
        self._receive = receive
        self._send = send
        self._leaving: asyncio.Task[None] | None = None

    @classmethod
    async def read(cls, scope: Scope, receive: Receive, send: Send) -> Exchange:
        """Read a request to its end. Raises ``ClientLeft``."""
        chunks = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            chunks.append(message.get("body", b""))
            if not message.get("more_body", False):
                return cls(scope, receive, send, b"".join(chunks))

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters of the address."""
        return self.recorded.query

    def request(self) -> dict[str, Any]:
        """Return the JSON object of the body; an empty body is an empty one. Raises ``Refusal``."""
        if not self.recorded.raw:
            return {}
        try:
            value = _decode(self.recorded.raw)
        except msgspec.DecodeError:
            value = None
        if not isinstance(value, dict):
            raise Refusal(400, "We could not parse the JSON body of your request: it must be an object.")
        return value

    async def answer(self, body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Answer JSON, whole."""
        content = encode(body)
        self.recorded.status = status
        fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        fields += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        await self._send({"type": "http.response.start", "status": status, "headers": fields})
        await self._send({"type": "http.response.body", "body": content})

    async def begin_stream(self) -> None:
        """Send the headers of a stream of events."""
        self.recorded.status = 200
        fields = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await self._send({"type": "http.response.start", "status": 200, "headers": fields})
        self._watch()

    async def send(self, frame: bytes) -> None:
        """Send one event. Raises ``ClientLeft``."""
        if self._leaving is not None and self._leaving.done():
            raise ClientLeft
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})

    async def end_stream(self) -> None:
        """End a stream in order."""
        await self._send({"type": "http.response.body", "body": b""})

    async def wait(self, waited_s: float | None) -> None:
        """Wait that long, or for ever. Raises ``ClientLeft`` as soon as the client leaves."""
        if (await asyncio.wait((self._watch(),), timeout=waited_s))[0]:
            raise ClientLeft

    async def wait_for(self, change: asyncio.Future[None]) -> None:
        """Wait until ``change`` has happened. Raises ``ClientLeft`` as soon as the client leaves."""
        leaving = self._watch()
        done, _ = await asyncio.wait((leaving, change), return_when=asyncio.FIRST_COMPLETED)
        if leaving in done:
            raise ClientLeft

    async def drop(self) -> None:
        """Close the connection; what was sent before still arrives. Raises ``ConnectionDropped``."""
        # ASGI has no message for it. What uvicorn gives as ``send`` is a method of its request cycle.
        cycle: Any = getattr(self._send, "__self__")  # noqa: B009  # a Send has no such attribute for the type checker
        cycle.transport.close()
        await self._watch()
        raise ConnectionDropped

    def close(self, *, left: bool) -> None:
        """Note that the exchange has ended."""
        self.recorded.left = left
        self.recorded.ended = True
        if self._leaving is not None:
            self._leaving.cancel()

    def _watch(self) -> asyncio.Task[None]:
        """Return the task that ends when the client leaves; only who waits pays for one."""
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._left())
        return self._leaving

    async def _left(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
