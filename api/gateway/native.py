"""A native turn: its state lives at the target, the ledger keeps who that is, and bytes pass through.

Rules it keeps: nothing of the answer is changed, stored or understood beyond its ID, status and item IDs; the last
event waits for the ledger; a stream that ends without one gets an explicit failure in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.responses import Response

from api.gateway import sse
from api.gateway.background import Follower, is_pending, record_of_owner
from api.gateway.config import RouteTarget
from api.gateway.delivery import Delivery
from api.gateway.dialects import DONE, TERMINALS
from api.gateway.errors import owner_refusal, upstream_refusal
from api.gateway.references import readable_by
from api.gateway.request import is_reference
from api.gateway.response import STATUSES, failed, item_ids_of
from api.gateway.running import Running
from api.gateway.upstream import UpstreamFailed, UpstreamStream
from ledger.continuation import Free
from ledger.errors import InvalidInput, LedgerError
from ledger.refusal import Refusal, refusal_of
from ledger.turn import Status
from ledger.verdict import Code

PATH = "/responses"
REST_TIMEOUT_S = 1.0
"""For what a target sends after its last event; the client has its answer by then."""
_encoder = msgspec.json.Encoder()


class Item(msgspec.Struct):
    """What is needed of an output item."""

    id: str | None = None


class Native(msgspec.Struct):
    """What is needed of a target's response object."""

    id: str
    status: str = "completed"
    store: bool | None = None
    output: list[Item] = []


class LifecycleEvent(msgspec.Struct):
    """What is needed of an event with the response in it."""

    response: Native
    sequence_number: int = 0


class AnyEvent(msgspec.Struct):
    """What is needed of any other event."""

    type: str = ""
    sequence_number: int = 0


_native = msgspec.json.Decoder(Native)
_lifecycle = msgspec.json.Decoder(LifecycleEvent)
_any = msgspec.json.Decoder(AnyEvent)


class NativeTurn:
    """One native turn at one target."""

    path = PATH

    def __init__(self, running: Running, entry: RouteTarget) -> None:
        self._running = running
        self._entry = entry
        self._owner = running.owner(entry, native=True)
        self._known: Native | None = None
        self._created: bytes = b""
        self._sequence_number = -1
        """Of the last event that was sent."""

    async def payload(self) -> bytes:
        """Return the body to send: the client's own bytes where nothing must change."""
        running, request = self._running, self._running.request
        changes: dict[str, Any] = {}
        if request.model != self._entry.model:
            changes["model"] = self._entry.model
        if running.gateway.ledger is None and request.store is None:
            # What could not be continued here is not kept at the target either.
            changes["store"] = False
        if isinstance(request.input, list):
            if isinstance(running.decision, Free) and not request.selectors:
                _refuse_lonely_outputs(request.input)
            target = running.gateway.routing.targets()[self._entry.target]
            readable = await readable_by(running.gateway, running.scope, request.input, target)
            if len(readable) != len(request.input):
                changes["input"] = readable
        return _encoder.encode({**request.body, **changes}) if changes else request.raw

    async def buffered(self, stream: UpstreamStream) -> Response:
        """Return the target's body once the ledger has its owner. Raises ``Refusal``."""
        running = self._running
        try:
            answer = await stream.read()
            native = _native.decode(answer.body)
        except UpstreamFailed as failure:
            running.gateway.run(running.give_up())
            raise self._failed(failure) from failure
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            running.gateway.run(running.give_up())
            raise _not_a_response() from error
        except asyncio.CancelledError:
            running.gateway.run(running.give_up())
            raise
        await self._settle(native)
        return Response(answer.body, answer.status, headers=dict(answer.headers), media_type=answer.media_type)

    async def streamed(self, stream: UpstreamStream, delivery: Delivery) -> None:
        """Pass the events on; the terminal last and only once the ledger has its owner."""
        running = self._running
        delivery.begin(stream.headers)
        try:
            has_ended = await self._read(stream, delivery)
        except (UpstreamFailed, sse.FrameTooLong, msgspec.DecodeError, UnicodeDecodeError) as error:
            await self._end(Status.FAILED)
            await self._send_failed(delivery, f"The model's server failed: {error}.")
        except Refusal as refusal:
            await self._send_failed(delivery, refusal.message)
        except asyncio.CancelledError:
            running.gateway.run(self._end(Status.CANCELLED))
            if not running.is_lost:
                raise
            await self._send_failed(delivery, "The response was ended by another request.")
        else:
            if not has_ended:
                await self._end(Status.FAILED)
                await self._send_failed(delivery, "The model's server ended its answer before the last event.")

    async def _read(self, stream: UpstreamStream, delivery: Delivery) -> bool:
        """Pass everything on, the terminal once its turn is settled; False: there was no terminal."""
        cutter = sse.FrameCutter()
        chunks = stream.chunks()
        has_ended = False
        async for chunk in chunks:
            for frame in cutter.feed(chunk):
                if has_ended:
                    await _pass_closing(frame, delivery)
                else:
                    has_ended = await self._take(frame, delivery)
            if has_ended:
                await _pass_rest(chunks, cutter, delivery)
                return True
        rest = cutter.rest()
        return rest is not None and await self._take(rest, delivery)

    async def _take(self, frame: sse.Frame, delivery: Delivery) -> bool:
        """Pass a frame on; return whether it is the terminal, which waits for its turn to be settled."""
        if not frame.data or frame.data == DONE:
            await delivery.send(frame.raw)
            return False
        event = _any.decode(frame.data)
        kind = event.type or frame.event
        is_terminal = kind == "error" or kind in TERMINALS
        if kind == "error":
            await self._end(Status.FAILED)
        elif is_terminal:
            await self._settle(_lifecycle.decode(frame.data).response)
        elif self._known is None and kind in ("response.created", "response.queued"):
            self._known, self._created = _lifecycle.decode(frame.data).response, frame.data
            if self._running.request.background:
                await self._announce(self._known)
        await delivery.send(frame.raw)
        self._sequence_number = max(self._sequence_number, event.sequence_number)
        return is_terminal

    async def _settle(self, native: Native) -> None:
        """Make the owner durable. Raises ``Refusal``."""
        running = self._running
        if native.store is False:
            # Nothing can name it later, so a key or a lock ends with it as with a turn that failed.
            await running.give_up()
            running.stored = False
        if is_pending(native.status):
            await self._announce(native)
            return
        try:
            await running.settle(
                status=STATUSES.get(native.status, Status.COMPLETED),
                response_id=native.id,
                owner=self._owner,
                item_ids=item_ids_of([{"id": item.id} for item in native.output]),
            )
        except Refusal as refusal:
            # Of a background response somebody else may have seen and stored the end first.
            if not (running.is_followed and refusal.reason == Code.TURN_ENDED.word):
                raise

    async def _announce(self, native: Native) -> None:
        """Let every replica know whose the background response is, and follow it to its end. Raises ``Refusal``."""
        running = self._running
        if not running.stored or running.is_followed:
            return
        try:
            await Follower(running, native.id, self._owner, record_of_owner(self._owner, running.request)).start()
        except LedgerError as error:
            running.gateway.run(running.give_up())
            if isinstance(error, InvalidInput):
                raise _not_a_response() from error
            raise refusal_of(error) from error

    async def _end(self, status: Status) -> None:
        """Store a turn that did not complete, where its ID is known. A background response goes on without us."""
        running = self._running
        if running.is_followed or running.is_settling:
            return
        if self._known is None or self._known.store is False:
            await running.give_up()
            return
        await running.settle_ended(status=status, response_id=self._known.id, owner=self._owner, content=None)

    async def _send_failed(self, delivery: Delivery, message: str) -> None:
        """Send an explicit failure as the last event: the target's own response object, failed."""
        running = self._running
        number = self._sequence_number + 1
        if not self._created:
            event: dict[str, Any] = {"type": "error", "code": "server_error", "message": message, "param": None}
        else:
            response = msgspec.json.decode(self._created)["response"]
            event = {"type": "response.failed", "response": failed(response, message)}
        await delivery.send(sse.encode({**event, "sequence_number": number}))
        await running.release()

    def _failed(self, failure: UpstreamFailed) -> Refusal:
        return upstream_refusal(failure) if self._running.pinned is None else owner_refusal(failure)


async def _pass_rest(chunks: AsyncIterator[bytes], cutter: sse.FrameCutter, delivery: Delivery) -> None:
    """Pass on what follows the terminal. Read to its end, the connection can be used again."""
    with contextlib.suppress(TimeoutError, UpstreamFailed, sse.FrameTooLong):
        async with asyncio.timeout(REST_TIMEOUT_S):
            async for chunk in chunks:
                for frame in cutter.feed(chunk):
                    await _pass_closing(frame, delivery)
            if (rest := cutter.rest()) is not None:
                await _pass_closing(rest, delivery)


async def _pass_closing(frame: sse.Frame, delivery: Delivery) -> None:
    """Pass on a closing line or a comment, and no event: one after the terminal could say something else than it."""
    if not frame.data or frame.data == DONE:
        await delivery.send(frame.raw)


def _refuse_lonely_outputs(items: list[dict[str, Any]]) -> None:
    """Refuse a tool's output whose call can be nowhere: the request brings none and names nothing that could."""
    if any(is_reference(item) for item in items):
        return
    # A list: what a client gives in the place of an ID may have no hash.
    calls = [item.get("call_id") for item in items if str(item.get("type", "")).endswith("_call")]
    for index, item in enumerate(items):
        if str(item.get("type", "")).endswith("_call_output") and item.get("call_id") not in calls:
            message = f"No tool call with the call_id of input[{index}] comes before its output."
            raise Refusal(400, message, code="tool_call_not_found", param="input", reason="call_unknown")


def _not_a_response() -> Refusal:
    message = "The model's server answered something that is not a response; the turn is not stored."
    return Refusal(502, message, code="upstream_failed", reason="upstream_malformed")
