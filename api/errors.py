"""The one table from the ledger's errors to HTTP, and the answers made from it."""

from __future__ import annotations

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ledger.bodies import ErrorAnswer, ErrorBody
from ledger.errors import (
    CallerError,
    FatalError,
    InvalidInput,
    LedgerError,
    NeedsEveryPartition,
    NotAuthenticated,
    NotHeld,
    NotPermitted,
    RetryableError,
    StoreFailed,
    TooLarge,
    Unavailable,
    Unknown,
)
from ledger.query import NativeHistory

RETRY_AFTER_S = 1
"""Named with every 503: a partition's leader moves within seconds, and a view that lags catches up in less."""

NOT_SERVED = "turnledger-not-served"
"""Header of an answer of a process that changed nothing for the request, so that another replica may be asked:
``starting``, ``not_held`` or ``unavailable``, and ``other_ledger`` of ``api.ledger_name``."""
STARTING, NOT_HELD, UNAVAILABLE = "starting", "not_held", "unavailable"

TABLE: dict[type[LedgerError], tuple[int, str]] = {
    TooLarge: (413, "too_large"),
    InvalidInput: (400, "invalid_input"),
    NotAuthenticated: (401, "not_authenticated"),
    NotPermitted: (403, "not_permitted"),
    NativeHistory: (409, "native_history"),
    NotHeld: (421, NOT_HELD),
    NeedsEveryPartition: (421, "needs_every_partition"),
    CallerError: (400, "invalid_request"),
    Unavailable: (503, UNAVAILABLE),
    Unknown: (504, "unknown"),
    RetryableError: (503, "unavailable"),
    StoreFailed: (503, "unavailable"),
    FatalError: (500, "defect"),
    LedgerError: (500, "defect"),
}
"""Status and code of each class; one that is not named has those of its nearest ancestor."""

_encoder = msgspec.json.Encoder()


def status_and_body(error: LedgerError, field_prefix: str = "") -> tuple[int, ErrorBody]:
    """Return status and body of an error; ``field_prefix`` says where in a list the field is."""
    status, code = next(TABLE[ancestor] for ancestor in type(error).__mro__ if ancestor in TABLE)
    field, reason, event_id, partition, message = None, None, None, None, str(error)
    match error:
        case InvalidInput():
            field = f"{field_prefix}{error.field}"
            message = f"{field}: {error.reason}"
        case Unavailable():
            reason = error.reason
        case Unknown():
            # Forwarded without one, nobody knows it.
            event_id = error.event_id or None
        case NotHeld():
            partition = error.partition
        case StoreFailed():
            # The driver's text may quote the key that it failed on.
            reason, message = "storage", "the view's storage refused a read or a write"
        case FatalError():
            message = "the service found a state that it must not serve from; its log says which"
    return status, ErrorBody(
        code=code,
        message=message,
        field=field,
        reason=reason,
        event_id=event_id,
        partition=partition,
        advice=error.advice,
    )


def error_answer(status: int, body: ErrorBody) -> Response:
    """Return the answer that says ``body``."""
    headers = {}
    if status == 503:
        headers["retry-after"] = str(RETRY_AFTER_S)
    # What a disk refused is left out: that may be the reading of what was written.
    if body.code == NOT_HELD or (body.code == UNAVAILABLE and body.reason not in (None, "storage")):
        headers[NOT_SERVED] = body.code
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    content = _encoder.encode(ErrorAnswer(error=body))
    return Response(content, status, headers=headers, media_type="application/json")


async def http_error_answer(_: Request, error: Exception) -> Response:
    """Answer what the router of requests refuses by itself: an unknown path, a method that a path does not have."""
    assert isinstance(error, HTTPException), "registered for this class"
    code = {404: "no_such_route", 405: "method_not_allowed"}.get(error.status_code, "refused")
    answer = error_answer(error.status_code, ErrorBody(code=code, message=error.detail))
    answer.headers.update(error.headers or {})
    return answer


async def defect_answer(_: Request, __: Exception) -> Response:
    """Answer an exception that nobody expected, without repeating what it says."""
    return error_answer(500, ErrorBody(code="defect", message="the service failed; its log says where"))
