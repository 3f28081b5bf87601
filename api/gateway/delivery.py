"""An answer on its way to one client: its frames, and what happens when the client leaves.

A turn runs as a task of its own and hands its frames over here; so a client that leaves ends its turn in order, and a
background turn outlives its client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.gateway.sse import MEDIA_TYPE
from api.leaving import left

FRAMES_MAX = 64
"""Frames that wait for a slow client; then the target waits too."""


class Delivery:
    """Frames of one streamed answer, from the turn to the client."""

    def __init__(self) -> None:
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue(FRAMES_MAX)
        self._left = asyncio.Event()
        self._has_ended = False
        self.began: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        """Headers of the answer, once there is one to send."""

    def begin(self, headers: Mapping[str, str]) -> None:
        """Let the answer begin; from now on errors are frames."""
        if not self.began.done():
            self.began.set_result(headers)

    def refuse(self, error: Exception) -> None:
        """Let the request fail with ``error``; only before the answer has begun."""
        if not self.began.done():
            self.began.set_exception(error)
            # Nobody may be left to take it.
            self.began.exception()

    async def send(self, frame: bytes) -> None:
        """Hand over a frame; nothing happens when the client has left."""
        if self._left.is_set():
            return
        if self._frames.full():
            # Whichever comes first: room, or nobody to make any.
            putting = asyncio.ensure_future(self._frames.put(frame))
            leaving = asyncio.ensure_future(self._left.wait())
            try:
                await asyncio.wait((putting, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                putting.cancel()
                leaving.cancel()
            return
        self._frames.put_nowait(frame)

    async def end(self) -> None:
        """Say that no frame follows."""
        if self._left.is_set():
            return
        await self._frames.put(None)

    def leave(self) -> None:
        """Say that nobody reads any more."""
        self._left.set()
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                self._frames.get_nowait()

    async def next(self) -> bytes | None:
        """Return the frames that wait, at least one, as one piece; None at the end.

        A burst is written at once: each write is a system call.
        """
        pieces: list[bytes] = []
        while not self._has_ended and not (pieces and self._frames.empty()):
            frame = await self._frames.get()
            if frame is None:
                self._has_ended = True
            else:
                pieces.append(frame)
        return b"".join(pieces) if pieces else None


class EventStream(Response):
    """The ASGI side of a delivery."""

    def __init__(self, delivery: Delivery, headers: Mapping[str, str], on_left: Callable[[], object]) -> None:
        """``on_left`` is called when the client leaves before the end."""
        super().__init__(None, 200, headers={"cache-control": "no-store", **headers}, media_type=MEDIA_TYPE)
        # The length is not known; a stream has none.
        del self.headers["content-length"]
        self._delivery = delivery
        self._on_left = on_left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(left(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not sending.done() or sending.exception() is not None:
                self._delivery.leave()
                self._on_left()
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while True:
            frame = await self._delivery.next()
            await send({"type": "http.response.body", "body": frame or b"", "more_body": frame is not None})
            if frame is None:
                return
