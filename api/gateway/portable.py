"""A portable turn: its history goes to the target, its items go into the ledger, and any target can go on from there.

Rules it keeps: the turn stores only its own items; the response and its events are made here, under an ID of the
gateway; the terminal leaves only after the turn is durable, and whatever else happens ends in an explicit failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from api.gateway import sse
from api.gateway.chat_answer import Answered, ChatAnswerBroken
from api.gateway.config import RouteTarget
from api.gateway.delivery import Delivery
from api.gateway.dialects import DONE, Asked, ResponsesDialect, StreamReader, dialect_of, is_bare_reasoning
from api.gateway.errors import upstream_refusal
from api.gateway.ids import new_id
from api.gateway.items import canonical_items, require_calls
from api.gateway.references import has_encrypted, readable_by, resolved
from api.gateway.response import STATUSES, failed, item_ids_of, response_object
from api.gateway.running import Running
from api.gateway.service import MIB, json_answer
from api.gateway.upstream import UpstreamFailed, UpstreamStream
from ledger.answer import Entry
from ledger.commit import content_document
from ledger.content import CONTENT_BYTES_MAX, document_bytes
from ledger.continuation import Portable
from ledger.errors import InvalidInput
from ledger.refusal import Refusal
from ledger.turn import Content, Status

CLOSING_MESSAGE = "The gateway was stopped before the response had completed."


class PortableTurn:
    """One portable turn at one target."""

    def __init__(self, running: Running, entry: RouteTarget, items: Sequence[dict[str, Any]]) -> None:
        """``items``: this turn's own input, as ``own_items`` gives it."""
        self._running = running
        self._entry = entry
        self._items = list(items)
        self._target = running.gateway.routing.targets()[entry.target]
        self._dialect = dialect_of(running.gateway.config.targets[entry.target])
        self.path = self._dialect.path
        self._taker = (running.scope.principal, entry.target)
        self._keeps_bare_reasoning = self._taker not in running.gateway.refuses_bare_reasoning
        self._sequence_number = 0
        self._output_so_far: list[dict[str, Any]] = []

    async def payload(self) -> bytes:
        """Return what is sent. Raises ``Refusal``: the format cannot say it, or the replay is above its budget."""
        running = self._running
        history = running.decision.history.entries if isinstance(running.decision, Portable) else ()
        asked = Asked(
            request=running.request,
            # An earlier turn may have been given what yet another target had encrypted.
            history=[
                replace(entry, input=await self._readable(entry.input)) if has_encrypted(entry.input) else entry
                for entry in history
            ],
            items=await self._readable(self._items),
            keeps_bare_reasoning=self._keeps_bare_reasoning,
        )
        payload = self._dialect.payload(asked, self._entry.model, self._target)
        bytes_max = running.gateway.config.limits.replay_mib_max * MIB
        if len(payload) > bytes_max:
            message = f"The request with its history has {len(payload)} bytes; at most {bytes_max} are sent to a model."
            raise Refusal(413, message, code="request_too_large", param="input", reason="replay_bytes_max")
        return payload

    def can_say_less(self, status: int) -> bool:
        """Return whether a request that the target refused with ``status`` may be taken without bare reasoning.

        It was refused, so nothing ran; from now on ``payload`` leaves that out.
        """
        if (
            status not in (400, 404)
            or not self._keeps_bare_reasoning
            or not isinstance(self._dialect, ResponsesDialect)
        ):
            return False
        running = self._running
        history = running.decision.history.items() if isinstance(running.decision, Portable) else []
        self._keeps_bare_reasoning = not any(is_bare_reasoning(item) for item in (*history, *self._items))
        return not self._keeps_bare_reasoning

    def was_taken(self) -> None:
        """Remember what the target takes, for the turns after this one."""
        if not self._keeps_bare_reasoning:
            self._running.gateway.refuses_bare_reasoning.add(self._taker)

    async def _readable(self, items: Sequence[Any]) -> list[Any]:
        return await readable_by(self._running.gateway, self._running.scope, items, self._target)

    async def buffered(self, stream: UpstreamStream) -> Response:
        """Return the response once its turn is durable. Raises ``Refusal``."""
        try:
            answered = self._dialect.read((await stream.read()).body)
        except UpstreamFailed as failure:
            await self._end(Status.FAILED, str(failure))
            raise upstream_refusal(failure) from failure
        except ChatAnswerBroken as broken:
            await self._end(Status.FAILED, broken.message)
            raise _broken(broken) from broken
        except asyncio.CancelledError:
            self.cut_off()
            raise
        response = self._response(answered)
        await self._settle(response)
        return json_answer(response)

    async def streamed(self, stream: UpstreamStream, delivery: Delivery) -> None:
        """Send the events of the response, the terminal last and only once the turn is durable."""
        running = self._running
        reader = self._dialect.reader()
        started = self._object("in_progress")
        delivery.begin(stream.headers)
        await self._emit(delivery, {"type": "response.created", "response": started})
        await self._emit(delivery, {"type": "response.in_progress", "response": started})
        try:
            response = await self._read(stream, reader, delivery)
            await self._settle(response)
        except (UpstreamFailed, ChatAnswerBroken, sse.FrameTooLong) as error:
            self._output_so_far = reader.partial()
            message = f"The model's server failed: {error}."
            await self._end(Status.FAILED, message)
            response = failed(self._object("failed", output=self._output_so_far), message)
        except Refusal as refusal:
            response = failed(self._object("failed"), refusal.message)
        except asyncio.CancelledError:
            self._output_so_far = reader.partial()
            self.cut_off()
            if not running.is_lost:
                raise
            response = failed(self._object("failed"), "The response was ended by another request.")
        await self._emit(delivery, {"type": f"response.{response['status']}", "response": response})

    async def fail(self, message: str) -> None:
        """Store a background turn that no target answered."""
        await self._end(Status.FAILED, message)

    def cut_off(self) -> None:
        """Store a turn whose client has left, or whose process ends; another's end of it stands."""
        running = self._running
        if running.is_settling:
            return
        if running.is_lost:
            running.gateway.run(running.release())
        elif running.gateway.is_closing.is_set():
            running.gateway.run(self._end(Status.FAILED, CLOSING_MESSAGE))
        else:
            running.gateway.run(self._end(Status.CANCELLED, ""))

    def queued(self) -> dict[str, Any]:
        """Return the response of a background turn that has not begun."""
        return self._object("queued")

    async def _read(self, stream: UpstreamStream, reader: StreamReader, delivery: Delivery) -> dict[str, Any]:
        cutter = sse.FrameCutter()
        async for chunk in stream.chunks():
            for frame in cutter.feed(chunk):
                for event in reader.feed(frame):
                    await self._emit(delivery, event)
        rest = cutter.rest()
        for event in reader.feed(rest) if rest is not None and rest.data != DONE else ():
            await self._emit(delivery, event)
        events, answered = reader.finish()
        for event in events:
            await self._emit(delivery, event)
        return self._response(answered)

    async def _emit(self, delivery: Delivery, event: dict[str, Any]) -> None:
        await delivery.send(sse.encode({**event, "sequence_number": self._sequence_number}))
        self._sequence_number += 1

    async def _settle(self, response: dict[str, Any]) -> None:
        """Make the turn durable. Raises ``Refusal``; then it is stored as failed, once that is possible."""
        running = self._running
        await running.settle(
            status=STATUSES[response["status"]],
            response_id=response["id"],
            owner=running.owner(self._entry, native=False),
            content=self._content(response),
            item_ids=item_ids_of([*self._items, *response["output"]]),
        )

    async def _end(self, status: Status, message: str) -> None:
        """Store a turn that did not complete, with what there is of it."""
        running = self._running
        response = self._object(status.name.lower(), output=self._output_so_far)
        if status is Status.FAILED:
            response = failed(response, message)
        await running.settle_ended(
            status=status,
            response_id=running.response_id,
            owner=running.owner(self._entry, native=False),
            content=self._content(response),
        )

    def _content(self, response: dict[str, Any]) -> Content:
        return Content(
            input=self._items,
            output=response["output"],
            metadata=dict(self._running.request.metadata),
            record=record_of(response, self._entry.target, self._target.digest),
        )

    def _response(self, answered: Answered) -> dict[str, Any]:
        running = self._running
        return self._object(
            answered.status,
            model=answered.model,
            output=answered.output,
            usage=answered.usage,
            error=answered.error,
            incomplete_details=answered.incomplete_details,
            completed_at=running.gateway.now_ms() // 1000,
            service_tier=answered.service_tier,
        )

    def _object(self, status: str, *, model: str = "", **fields: Any) -> dict[str, Any]:
        running = self._running
        return response_object(
            running.request,
            running.response_id,
            created_at=running.created_at,
            model=model or self._entry.model,
            status=status,
            stored=running.stored,
            **fields,
        )


def own_items(running: Running) -> list[dict[str, Any]]:
    """Return the canonical input items of a portable turn. Raises ``Refusal`` for what is wrong with them.

    A tool's output must have its call in the history or before it, and a call its output: no model takes less.
    """
    given = running.request.input
    if given is None:
        raise Refusal(400, "input: is required", code="missing_required_parameter", param="input")
    items = canonical_items(given if isinstance(given, str) else resolved(given, running.references), new_id)
    _check_fits(running, items)
    history = running.decision.history.items() if isinstance(running.decision, Portable) else []
    require_calls([*history, *items])
    return items


def _check_fits(running: Running, items: list[dict[str, Any]]) -> None:
    """Refuse input that the ledger could never take, before the model runs."""
    if not running.stored or running.gateway.ledger is None:
        return
    request = running.request
    echo = response_object(request, running.response_id, created_at=running.created_at, model="", status="in_progress")
    content = Content(input=items, metadata=dict(request.metadata), record={"response": echo})
    try:
        size_bytes, policy = len(document_bytes(content_document(content))), running.gateway.ledger.policy()
    except InvalidInput as error:
        # Such as an integer of more than 64 bits, or what is nested more deeply than any parser reads.
        message = f"The request has something that cannot be stored: {error.reason}."
        raise Refusal(400, message, code="invalid_value", param="input") from None
    bounds = {
        "content_bytes_max": CONTENT_BYTES_MAX,
        "lineage_bytes_max": policy.lineage_bytes_max,
        "principal_bytes_max": policy.principal_bytes_max,
    }
    for name, bytes_max in bounds.items():
        if size_bytes > bytes_max:
            message = f"The request has {size_bytes} bytes; the ledger takes at most {bytes_max} ({name})."
            raise Refusal(413, message, code="request_too_large", param="input", reason=name)


def record_of(response: dict[str, Any], target: str, digest: bytes) -> dict[str, Any]:
    """Return what is stored of a response besides its items: ``response_of`` puts it together again."""
    kept = {name: value for name, value in response.items() if name != "output"}
    return {"response": kept, "target": target, "digest": digest.hex()}


def is_own_record(record: Any) -> bool:
    """Return whether ``record_of`` made it; another router of the same ledger may store what it likes."""
    response = record.get("response") if isinstance(record, dict) else None
    return isinstance(response, dict) and response.get("status") in STATUSES


def response_of(entry: Entry) -> dict[str, Any]:
    """Return the response object of a stored portable turn of this gateway."""
    return {**entry.record["response"], "output": entry.output}


def _broken(broken: ChatAnswerBroken) -> Refusal:
    message = f"The model's server answered something that cannot be passed on: {broken.message}"
    return Refusal(502, message, code="upstream_failed", reason=f"upstream_{broken.reason.removeprefix('upstream_')}")
