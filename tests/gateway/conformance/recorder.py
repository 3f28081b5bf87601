"""What went over the wire: every request of the official client with the answer it got, to the byte."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass, field

import httpx2

playing: ContextVar[str] = ContextVar("playing")
"""Name of the play that asks."""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request and its answer."""

    play: str
    method: str
    path: str
    request: bytes
    status: int
    media_type: str
    body: bytearray = field(default_factory=bytearray)


class _Copied(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, copy: bytearray) -> None:
        self._stream = stream
        self._copy = copy

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._copy.extend(chunk)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class Recorder(httpx2.AsyncHTTPTransport):
    """A transport that keeps a copy of what it carries."""

    def __init__(self) -> None:
        super().__init__(verify=False)
        self.exchanges: list[Exchange] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        exchange = Exchange(
            play=playing.get(),
            method=request.method,
            path=request.url.path,
            request=request.content,
            status=response.status_code,
            media_type=response.headers.get("content-type", "").partition(";")[0],
        )
        self.exchanges.append(exchange)
        assert isinstance(response.stream, httpx2.AsyncByteStream), "an asynchronous transport answers with one"
        response.stream = _Copied(response.stream, exchange.body)
        return response
