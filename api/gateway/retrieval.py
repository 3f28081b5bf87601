"""Responses by their ID, on any replica: read, deleted, cancelled.

A native one is asked of its owner, and its answer passed on; a portable one is put together from the ledger. The IDs of
others are answered like IDs that never existed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl, quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api.gateway import sse
from api.gateway.background import (
    OwnerRecord,
    RunRecord,
    is_pending,
    owner_of_record,
    pending_response,
    read_record,
    see_ended,
    turn_id_of,
)
from api.gateway.events import MalformedItem, checked_output, events_of
from api.gateway.forward import ask, owner_of, passed_on
from api.gateway.portable import is_own_record, response_of
from api.gateway.response import STATUSES
from api.gateway.service import Gateway, json_answer
from ledger.answer import Answer, Entry, Found, Gone
from ledger.errors import InvalidInput, LedgerError
from ledger.refusal import Refusal, refusal_of, require_accepted
from ledger.turn import Owner, Scope, Selector, SelectorKind, Status, Turn
from ledger.verdict import Code

POLL_S = 0.1
"""Between two looks at a response whose stream is asked for before it has ended."""
WAIT_S_MAX = 600.0
"""How long such a stream waits."""
KEEP_ALIVE_S = 10.0
"""Between two comments on a stream that waits, so that nothing between client and gateway takes it for dead."""
DIGITS_MAX = 15
"""Of a sequence number: more than any stream has events."""
PARAM = "response_id"


async def retrieve(gateway: Gateway, request: Request) -> Response:
    """Return a response, or its events again with ``stream=true``."""
    scope = gateway.scope(request)
    selector = response_selector(request, scope)
    is_streamed, after = _stream_query(request)
    found, entry = await find_response(gateway, selector)
    owner = _native_owner(found)
    if owner is not None:
        return await _from_owner(gateway, request, scope, found, owner)
    response = stored_response(found, entry, selector.id)
    if not is_streamed:
        return json_answer(response)
    events = _events(gateway, selector, response, after)
    return StreamingResponse(events, media_type=sse.MEDIA_TYPE, headers={"cache-control": "no-store"})


async def delete(gateway: Gateway, request: Request) -> Response:
    """Delete a response, at its owner too; what was continued from it keeps its history."""
    selector = response_selector(request, gateway.scope(request))
    found, _ = await find_response(gateway, selector)
    owner = _native_owner(found)
    if owner is not None:
        answer = await ask(gateway, request, owner_of(gateway, owner), response_path(selector.id))
        if answer.status >= 400 and answer.status != 404:
            return passed_on(answer)
    conversations = gateway.state().conversations
    verdict = await gateway.metrics.commit(conversations.delete_response(selector, event_id=secrets.token_hex(16)))
    if verdict.code in (Code.RESPONSE_UNKNOWN, Code.ALIAS_GONE):
        raise no_response("deleted" if verdict.code is Code.ALIAS_GONE else "unknown")
    require_accepted(verdict)
    return json_answer({"id": selector.id, "object": "response", "deleted": True})


async def cancel(gateway: Gateway, request: Request) -> Response:
    """Cancel a background response, whichever replica runs it."""
    scope = gateway.scope(request)
    selector = response_selector(request, scope)
    found, entry = await find_response(gateway, selector)
    owner = _native_owner(found)
    if owner is not None:
        return await _from_owner(gateway, request, scope, found, owner, path=f"{response_path(selector.id)}/cancel")
    response = stored_response(found, entry, selector.id)
    if not response.get("background"):
        message = "Only a response that was created with background set to true can be cancelled."
        raise Refusal(400, message, code="not_cancellable", param=PARAM, reason="not_background")
    if is_pending(str(response["status"])):
        await _cancel_turn(gateway, scope, found, selector.id)
        found, entry = await find_response(gateway, selector)
        response = stored_response(found, entry, selector.id)
    return json_answer(response)


async def fetch(gateway: Gateway, request: Request, scope: Scope, response_id: str) -> Response | dict[str, Any]:
    """Return a response for another attempt of the request that made it: its object, or a target's refusal."""
    selector = Selector(scope=scope, kind=SelectorKind.RESPONSE, id=response_id)
    found, entry = await find_response(gateway, selector)
    if not found.owner.native:
        return stored_response(found, entry, response_id)
    target = owner_of(gateway, found.owner)
    answer = await ask(gateway, request, target, response_path(response_id), method="GET", query="")
    if answer.status != 200:
        return passed_on(answer)
    body = answer.json_object()
    if body is None or not _is_ended_response(body):
        message = "The target that holds the response answered something that is not an ended response; try again."
        raise Refusal(502, message, code="upstream_failed", reason="upstream_malformed")
    return body


def stored_response(found: Found, entry: Entry | None, response_id: str) -> dict[str, Any]:
    """Return the response object of a portable response, as far as the ledger has it."""
    if entry is not None and is_own_record(entry.record):
        return response_of(entry)
    record = read_record(found)
    run = record if isinstance(record, RunRecord) else RunRecord(model="unknown")
    return pending_response(found, response_id, run, found.status.name.lower())


def no_response(reason: str) -> Refusal:
    """Return what a path is answered whose response does not live."""
    message = f"The response is {reason}." if reason != "unknown" else "No response with this ID exists."
    return Refusal(404, message, code="response_not_found", param=PARAM, reason=reason)


def living_response(answer: Answer) -> Found:
    """Return what was found. Raises the ``Refusal`` of what was not."""
    match answer:
        case Found():
            return answer
        case Gone():
            raise no_response(answer.reason)
        case _:
            raise no_response("unknown")


async def find_response(gateway: Gateway, selector: Selector) -> tuple[Found, Entry | None]:
    """Return a response that a path names and what its own turn adds. Raises ``Refusal`` 404 for one that does not
    live."""
    answer, entry = await gateway.metrics.lookup_entry(selector.kind, gateway.state().reader.entry(selector))
    return living_response(answer), entry


def _native_owner(found: Found) -> Owner | None:
    """Return who holds a response; None: the ledger does."""
    if found.owner.native:
        return found.owner
    record = read_record(found)
    return owner_of_record(record) if isinstance(record, OwnerRecord) else None


async def _from_owner(
    gateway: Gateway, request: Request, scope: Scope, found: Found, owner: Owner, path: str | None = None
) -> Response:
    target = owner_of(gateway, owner)
    answer = await ask(gateway, request, target, path or response_path(request.path_params[PARAM]))
    record = read_record(found)
    if isinstance(record, OwnerRecord) and not found.owner.native and answer.status == 200:
        body = answer.json_object()
        if body is not None:
            await see_ended(gateway, scope, found, record, body)
    return passed_on(answer)


async def _cancel_turn(gateway: Gateway, scope: Scope, found: Found, response_id: str) -> None:
    turn = Turn(
        scope=scope,
        event_id=secrets.token_hex(16),
        response_id=response_id,
        owner=found.owner,
        status=Status.CANCELLED,
        begun_at_ms=found.created_at_ms,
        record=found.record,
        turn_id=turn_id_of(response_id),
    )
    verdict = await gateway.metrics.commit(gateway.state().committer.commit(turn))
    # It may have ended by itself in the meantime: then that is what the client gets to see.
    if verdict.code not in (Code.TURN_ENDED, Code.LEASE_EXPIRED, Code.RESPONSE_EXISTS):
        require_accepted(verdict)


async def _events(gateway: Gateway, selector: Selector, response: dict[str, Any], after: int) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    deadline_s, alive_s = loop.time() + WAIT_S_MAX, loop.time()
    while is_pending(str(response["status"])) and loop.time() < deadline_s:
        if loop.time() - alive_s >= KEEP_ALIVE_S:
            alive_s = loop.time()
            yield b": waiting\n\n"
        await asyncio.sleep(POLL_S)
        try:
            found, entry = await find_response(gateway, selector)
        except LedgerError as error:
            # Deleted meanwhile, or the ledger cannot tell; the status of the answer has gone out.
            refusal = refusal_of(error)
            yield _error_frame(refusal.code, refusal.message, after)
            return
        response = stored_response(found, entry, selector.id)
    if is_pending(str(response["status"])):
        yield _error_frame("timeout", "The response has not ended yet; ask again.", after)
        return
    for event in events_of(response):
        if event["sequence_number"] > after:
            yield sse.encode(event)


def _error_frame(code: str | None, message: str, after: int) -> bytes:
    event = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": after + 1}
    return sse.encode(event)


def _is_ended_response(body: dict[str, Any]) -> bool:
    """Return whether a target's answer is a response that events can be made of."""
    if body.get("status") not in STATUSES or not isinstance(body.get("output"), list):
        return False
    try:
        for item in body["output"]:
            checked_output(item)
    except MalformedItem:
        return False
    return True


def response_selector(request: Request, scope: Scope) -> Selector:
    """Return the scoped key of the response that a path names."""
    return Selector(scope=scope, kind=SelectorKind.RESPONSE, id=request.path_params[PARAM])


def response_path(response_id: str) -> str:
    """Return a response's path at its owner."""
    return f"/responses/{quote(response_id, safe='')}"


def _stream_query(request: Request) -> tuple[bool, int]:
    """Return whether the events are asked for, and after which one. Raises ``InvalidInput``."""
    values = dict(parse_qsl(request.url.query, keep_blank_values=True))
    streamed = values.get("stream", "false").lower()
    if streamed not in ("true", "false"):
        raise InvalidInput("stream", "must be true or false")
    after = values.get("starting_after")
    if after is None:
        return streamed == "true", -1
    if not (after.isascii() and after.isdecimal()) or len(after) > DIGITS_MAX:
        raise InvalidInput("starting_after", "must be the sequence_number of an event")
    return streamed == "true", int(after)
