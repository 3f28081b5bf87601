"""Background responses, as every replica sees them.

A native one runs at its target. The ledger learns at once whose it is (the started turn's record names the target),
so every replica can ask its owner; whoever sees it ended first writes its end. A portable one runs in this process,
under a lease that is renewed while it runs: when the replica dies, the lease ends and every other one answers
``failed``.

Both ends are safe to write twice and by anybody: the turn's ID follows from the response's, and the first end wins.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
import structlog

from api.gateway.request import CreateRequest
from api.gateway.response import STATUSES, item_ids_of
from api.gateway.service import Gateway
from api.gateway.upstream import UpstreamFailed
from ledger.answer import Found
from ledger.commit import TurnStart
from ledger.errors import LedgerError
from ledger.refusal import require_accepted
from ledger.turn import ITEMS_MAX, RECORD_BYTES_MAX, Owner, Scope, Status, Turn

if TYPE_CHECKING:
    from api.gateway.running import Running

logger = structlog.get_logger("api.gateway.background")

NATIVE_LEASE_MS = 3_600_000
"""A native background response needs no lease to run; this is how long a replica has to see its end. The policy's
``lease_max_ms`` bounds it."""
FOLLOW_INTERVAL_S, FOLLOW_INTERVAL_MAX_S, FOLLOW_FACTOR = 0.25, 5.0, 1.5
"""Between two questions to the owner: short at first, since many end within a second, then rarer."""


class OwnerRecord(msgspec.Struct, frozen=True, kw_only=True, tag="native"):
    """Whose a native background response is."""

    target: str
    digest: str
    keyed: bool
    """An idempotency key waits for its end, which only the replica that has the key can bind."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, tag="portable", omit_defaults=True):
    """What a portable background response shows before it has ended."""

    model: str
    conversation_id: str | None = None
    previous_response_id: str | None = None


Record = OwnerRecord | RunRecord
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


def record_of_owner(owner: Owner, request: CreateRequest) -> bytes:
    """Return the record of a native background response."""
    record = OwnerRecord(target=owner.target, digest=owner.digest.hex(), keyed=request.idempotency_key is not None)
    return _encoder.encode(record)


def record_of_run(request: CreateRequest, model: str) -> bytes:
    """Return the record of a portable background response; what does not fit is left out."""
    selectors = request.selectors
    full = RunRecord(
        model=model,
        conversation_id=selectors.conversation_id,
        previous_response_id=selectors.previous_response_id,
    )
    record = _encoder.encode(full)
    return record if len(record) <= RECORD_BYTES_MAX else _encoder.encode(RunRecord(model=model))


def read_record(found: Found) -> Record | None:
    """Return what the ledger has of a response that was started; None for any other."""
    if not found.record:
        return None
    try:
        return _decoder.decode(found.record)
    except msgspec.DecodeError:
        # Another router's record, of the same ledger.
        return None


def owner_of_record(record: OwnerRecord) -> Owner:
    """Return the owner that a record names."""
    return Owner(native=True, target=record.target, digest=bytes.fromhex(record.digest))


def turn_id_of(response_id: str) -> str:
    """Return the name of a background response's turn, the same on every replica."""
    return f"background/{response_id}"[:512]


def is_pending(status: str) -> bool:
    """Return whether a response has not ended."""
    return status in ("queued", "in_progress")


def pending_response(found: Found, response_id: str, record: RunRecord, status: str) -> dict[str, Any]:
    """Return the response object of a background response of which the ledger has no content (yet)."""
    failed = {"code": "server_error", "message": "The replica that ran the response ended before it did."}
    conversation_id = record.conversation_id or found.conversation_id
    return {
        "id": response_id,
        "object": "response",
        "created_at": found.created_at_ms // 1000,
        "status": status,
        "background": True,
        "completed_at": None,
        "error": failed if status == "failed" else None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": record.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": record.previous_response_id,
        "conversation": None if conversation_id is None else {"id": conversation_id},
        "store": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
    }


class Follower:
    """Follows one native background response from this replica."""

    def __init__(self, running: Running, response_id: str, owner: Owner, record: bytes) -> None:
        self._running = running
        self._response_id = response_id
        self._owner = owner
        # A turn that was started for its key or its conversation is the same turn, and may name its response now.
        self._start = (
            TurnStart(
                scope=running.scope,
                event_id=secrets.token_hex(16),
                turn_id=turn_id_of(response_id),
                begun_at_ms=running.begun_at_ms,
                lease_ms=NATIVE_LEASE_MS,
                response_id=response_id,
                record=record,
            )
            if running.started is None
            else running.started.naming(response_id, record)
        )

    async def start(self) -> None:
        """Announce the response, then follow it in the background. Raises ``Refusal`` and ``LedgerError``."""
        running = self._running
        require_accepted(await running.gateway.metrics.commit(running.gateway.state().committer.begin(self._start)))
        running.is_followed = True
        if running.started is None:
            running.announced_turn_id = self._start.turn_id
        else:
            # Its end may be stored by whoever sees it first, which takes nothing from its own client.
            running.started.on_lost = None
        running.gateway.run(self._follow())

    async def _follow(self) -> None:
        gateway, interval_s = self._running.gateway, FOLLOW_INTERVAL_S
        while not await _closing_within(gateway, interval_s):
            interval_s = min(interval_s * FOLLOW_FACTOR, FOLLOW_INTERVAL_MAX_S)
            if self._running.is_settled:
                break
            body = await _ask(gateway, self._owner, self._response_id)
            if body is not None and not is_pending(str(body.get("status"))):
                await self._settle(body)
                return
        await self._running.release()

    async def _settle(self, body: dict[str, Any]) -> None:
        request = self._running.request
        has_key = request.idempotency_key is not None
        turn = _ended_turn(self._running.scope, self._response_id, self._owner, body, self._running.begun_at_ms)
        named = replace(
            turn,
            turn_id=self._start.turn_id,
            conversation_id=request.selectors.conversation_id,
            previous_response_id=request.selectors.previous_response_id,
            idempotency_key=request.idempotency_key if has_key and turn.status.continuable else None,
            request_digest=request.digest() if has_key and turn.status.continuable else b"",
        )
        await _commit(self._running.gateway, named)
        await self._running.release()


async def see_ended(gateway: Gateway, scope: Scope, found: Found, record: OwnerRecord, body: dict[str, Any]) -> None:
    """Write the end of a native background response that its owner says has ended, from whichever replica saw it."""
    if record.keyed or found.response_id is None or is_pending(str(body.get("status"))):
        return
    owner = owner_of_record(record)
    await _commit(gateway, _ended_turn(scope, found.response_id, owner, body, found.created_at_ms))


def _ended_turn(scope: Scope, response_id: str, owner: Owner, body: dict[str, Any], begun_at_ms: int) -> Turn:
    status = STATUSES.get(str(body.get("status")), Status.FAILED)
    return Turn(
        scope=scope,
        event_id=secrets.token_hex(16),
        response_id=response_id,
        owner=owner,
        status=status,
        item_ids=tuple(item_ids_of(body.get("output")))[:ITEMS_MAX],
        begun_at_ms=begun_at_ms,
        turn_id=turn_id_of(response_id),
    )


async def _commit(gateway: Gateway, turn: Turn) -> None:
    try:
        verdict = await gateway.metrics.commit(gateway.state().committer.commit(turn))
    except LedgerError as error:
        logger.warning("background_end_not_stored", message=str(error))
        return
    if not verdict.accepted:
        # Another replica saw it first, or it was deleted.
        logger.info("background_end_refused", verdict=verdict.code.word)


async def _ask(gateway: Gateway, owner: Owner, response_id: str) -> dict[str, Any] | None:
    """Return what the owner says about a response, None when it does not say."""
    try:
        answer = await gateway.upstream.send(owner.target, "GET", f"/responses/{quote(response_id, safe='')}")
    except UpstreamFailed:
        return None
    body = answer.json_object()
    if body is None:
        return None
    if answer.status == 404:
        return {"status": "failed", "output": []}
    return body if answer.status == 200 else None


async def _closing_within(gateway: Gateway, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await gateway.is_closing.wait()
    except TimeoutError:
        return False
    return True
