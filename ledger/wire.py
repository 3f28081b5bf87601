"""Between the JSON bodies of the service (``bodies``) and the ledger's own values, in both directions."""

from __future__ import annotations

from typing import Any

from ledger.answer import Answer, Entry, Found, Gone, History, Missing, Token, Verdict
from ledger.bodies import (
    ContentBody,
    EntryBody,
    ErrorBody,
    FoundBody,
    HistoryBody,
    OwnerBody,
    StartBody,
    TurnBody,
    VerdictBody,
)
from ledger.commit import TurnStart
from ledger.errors import InvalidInput
from ledger.turn import Content, Offset, Owner, Revision, Scope, SelectorKind, Status, Turn
from ledger.verdict import Code


def kind_of(word: str) -> SelectorKind:
    """Return the selector kind that ``word`` spells. Raises ``InvalidInput``."""
    try:
        return _KINDS[word]
    except KeyError:
        raise InvalidInput("kind", f"must be {', '.join(_KINDS)}") from None


def status_of(word: str) -> Status:
    """Return the status that ``word`` spells. Raises ``InvalidInput``."""
    try:
        return _STATUSES[word]
    except KeyError:
        raise InvalidInput("status", f"must be {', '.join(_STATUSES)}") from None


_KINDS = {kind.name.lower(): kind for kind in SelectorKind}
_STATUSES = {status.name.lower(): status for status in Status}
_CODES = {code.word: code for code in Code}


def turn_of(body: TurnBody, scope: Scope, event_id: str, now_ms: int) -> Turn:
    """Return the turn that a body describes. Raises ``InvalidInput`` or ``TooLarge`` naming the field."""
    content = body.content
    return Turn(
        scope=scope,
        event_id=event_id,
        response_id=body.response_id,
        owner=owner_of(body.owner),
        status=status_of(body.status),
        conversation_id=body.conversation_id,
        previous_response_id=body.previous_response_id,
        item_ids=tuple(body.item_ids),
        content=None
        if content is None
        else Content(input=content.input, output=content.output, metadata=content.metadata, record=content.record),
        record=bytes.fromhex(body.record),
        begun_at_ms=now_ms if body.begun_at_ms is None else body.begun_at_ms,
        expected_revision=revision_of(body.expected_revision),
        read_revision=revision_of(body.read_revision),
        idempotency_key=body.idempotency_key,
        request_digest=bytes.fromhex(body.request_digest),
        turn_id=body.turn_id,
    )


def turn_body(turn: Turn) -> TurnBody:
    """Return the body of a turn."""
    content = turn.content
    return TurnBody(
        principal=turn.scope.principal,
        route=turn.scope.route,
        event_id=turn.event_id,
        response_id=turn.response_id,
        owner=owner_body(turn.owner),
        status=turn.status.name.lower(),
        conversation_id=turn.conversation_id,
        previous_response_id=turn.previous_response_id,
        item_ids=list(turn.item_ids),
        content=None
        if content is None
        else ContentBody(input=content.input, output=content.output, metadata=content.metadata, record=content.record),
        record=turn.record.hex(),
        begun_at_ms=turn.begun_at_ms,
        expected_revision=turn.expected_revision,
        read_revision=turn.read_revision,
        idempotency_key=turn.idempotency_key,
        request_digest=turn.request_digest.hex(),
        turn_id=turn.turn_id,
    )


def start_of(body: StartBody, scope: Scope, event_id: str, now_ms: int) -> TurnStart:
    """Return the start that a body describes. Raises ``InvalidInput`` or ``TooLarge`` naming the field."""
    return TurnStart(
        scope=scope,
        event_id=event_id,
        turn_id=body.turn_id,
        begun_at_ms=now_ms if body.begun_at_ms is None else body.begun_at_ms,
        lease_ms=body.lease_ms,
        response_id=body.response_id,
        conversation_id=body.conversation_id,
        exclusive=body.exclusive,
        idempotency_key=body.idempotency_key,
        request_digest=bytes.fromhex(body.request_digest),
        queued=body.queued,
        record=bytes.fromhex(body.record),
    )


def start_body(start: TurnStart) -> StartBody:
    """Return the body of a start."""
    return StartBody(
        principal=start.scope.principal,
        route=start.scope.route,
        event_id=start.event_id,
        turn_id=start.turn_id,
        lease_ms=start.lease_ms,
        begun_at_ms=start.begun_at_ms,
        response_id=start.response_id,
        conversation_id=start.conversation_id,
        exclusive=start.exclusive,
        idempotency_key=start.idempotency_key,
        request_digest=start.request_digest.hex(),
        queued=start.queued,
        record=start.record.hex(),
    )


def owner_of(body: OwnerBody) -> Owner:
    """Return the owner that a body describes. Raises ``InvalidInput`` or ``TooLarge`` naming the field."""
    return Owner(native=body.native, target=body.target, digest=bytes.fromhex(body.digest))


def owner_body(owner: Owner) -> OwnerBody:
    """Return the body of an owner."""
    return OwnerBody(native=owner.native, target=owner.target, digest=owner.digest.hex())


def revision_of(value: int | None) -> Revision | None:
    """Return a revision that may be absent."""
    return None if value is None else Revision(value)


def verdict_body(verdict: Verdict, event_id: str) -> VerdictBody:
    """Return the body of the verdict on ``event_id``."""
    return VerdictBody(
        event_id=event_id,
        verdict=verdict.code.word,
        token=str(verdict.token),
        accepted=verdict.accepted,
        first_verdict=None if verdict.first is None else verdict.first.word,
        revision=verdict.revision,
        reason=verdict.reason,
        response_id=verdict.response_id,
    )


def verdict_of(body: VerdictBody) -> Verdict:
    """Return the verdict that a body describes."""
    return Verdict(
        code=_CODES[body.verdict],
        token=Token.parse(body.token),
        first=None if body.first_verdict is None else _CODES[body.first_verdict],
        revision=Revision(body.revision),
        reason=body.reason,
        response_id=body.response_id,
    )


def found_body(found: Found, metadata: dict[str, Any] | None = None) -> FoundBody:
    """Return the body of an ID that was found, with its history if it was loaded."""
    history = found.history
    return FoundBody(
        kind=found.kind.name.lower(),
        owner=owner_body(found.owner),
        status=found.status.name.lower(),
        node=found.node,
        lineage=found.lineage.hex(),
        created_at_ms=found.created_at_ms,
        expires_at_ms=found.expires_at_ms,
        revision=found.revision,
        record=found.record.hex(),
        response_id=found.response_id,
        conversation_id=found.conversation_id,
        turn_id_digest=None if found.turn_id_digest is None else found.turn_id_digest.hex(),
        metadata=metadata,
        history=None
        if history is None
        else HistoryBody(entries=[_entry_body(entry) for entry in history.entries], revision=history.revision),
    )


def _entry_body(entry: Entry) -> EntryBody:
    return EntryBody(
        node=entry.node,
        status=entry.status.name.lower(),
        accepted_at_ms=entry.accepted_at_ms,
        response_id=entry.response_id,
        input=entry.input,
        output=entry.output,
        metadata=entry.metadata,
        record=entry.record,
    )


def found_of(body: FoundBody) -> Found:
    """Return what a body says was found; references to contents stay behind in the service."""
    history = body.history
    return Found(
        kind=kind_of(body.kind),
        owner=owner_of(body.owner),
        status=status_of(body.status),
        node=Offset(body.node),
        lineage=bytes.fromhex(body.lineage),
        created_at_ms=body.created_at_ms,
        expires_at_ms=body.expires_at_ms,
        revision=Revision(body.revision),
        record=bytes.fromhex(body.record),
        response_id=body.response_id,
        conversation_id=body.conversation_id,
        turn_id_digest=None if body.turn_id_digest is None else bytes.fromhex(body.turn_id_digest),
        history=None
        if history is None
        else History(entries=tuple(map(_entry_of, history.entries)), revision=Revision(history.revision)),
    )


def _entry_of(body: EntryBody) -> Entry:
    return Entry(
        node=Offset(body.node),
        status=status_of(body.status),
        accepted_at_ms=body.accepted_at_ms,
        response_id=body.response_id,
        content=None,
        input=body.input,
        output=body.output,
        metadata=body.metadata,
        record=body.record,
    )


def absence_body(answer: Missing | Gone) -> ErrorBody:
    """Return the body of an ID that is not there."""
    kind = answer.kind.name.lower()
    if isinstance(answer, Missing):
        return ErrorBody(code="missing", message=f"no such {kind} is known here", kind=kind)
    return ErrorBody(
        code="gone", message=f"the {kind} is gone: {answer.reason}", kind=kind, reason=answer.reason, at_ms=answer.at_ms
    )


def absence_of(body: ErrorBody) -> Answer | None:
    """Return ``Missing`` or ``Gone`` if that is what an error body says."""
    if body.kind is None or body.code not in ("missing", "gone"):
        return None
    kind = kind_of(body.kind)
    return (
        Missing(kind=kind)
        if body.code == "missing"
        else Gone(kind=kind, reason=body.reason or "", at_ms=body.at_ms or 0)
    )
