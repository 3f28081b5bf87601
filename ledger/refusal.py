"""Refusals as clients of the Responses API know them: what a router answers instead of a wrong success.

The one table from the ledger's errors and verdicts to that API. Status, ``code`` and ``param`` are those that clients
already branch on (``previous_response_not_found`` makes them send their history again); ``reason`` says in one word
what the API has no code for. An outage of the ledger never gets a code that says that something does not exist.
"""

from __future__ import annotations

from typing import Any

from ledger.answer import Verdict
from ledger.errors import (
    CallerError,
    InvalidInput,
    LedgerError,
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
from ledger.verdict import Code

INVALID_REQUEST, SERVER_ERROR = "invalid_request_error", "server_error"
PREVIOUS, CONVERSATION = "previous_response_id", "conversation"


class Refusal(CallerError):
    """A request that is answered with an error of the API: ``body`` is its JSON, ``status`` its HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        reason: str | None = None,
        type: str | None = None,
        is_final: bool = False,
    ) -> None:
        """``reason`` is one word for a program; ``is_final``: a retry cannot help although the status suggests one."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.reason = reason
        self.type = type or (INVALID_REQUEST if status < 500 else SERVER_ERROR)
        self.is_final = is_final

    def body(self) -> dict[str, Any]:
        """Return the JSON body: the API's four fields, and ``reason`` where there is one."""
        error: dict[str, Any] = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        if self.reason is not None:
            error["reason"] = self.reason
        return {"error": error}

    def headers(self) -> dict[str, str]:
        """Return the headers: when to come back, and for the official SDKs whether to try again by themselves."""
        headers = {}
        if self.is_final:
            headers["x-should-retry"] = "false"
        elif self.status == 503:
            headers["retry-after"] = "1"
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


def not_found(kind_param: str, reason: str) -> Refusal:
    """Return what a continuation of an ID that does not live is answered: ``reason`` is ``unknown``, ``expired``,
    ``deleted`` or ``evicted``."""
    if kind_param == PREVIOUS:
        return Refusal(
            400,
            f"Previous response cannot be continued: it is {reason}. Send the history with the request instead.",
            code="previous_response_not_found",
            param=PREVIOUS,
            reason=reason,
        )
    return Refusal(
        404,
        f"The conversation cannot be used: it is {reason}. Create one, or send the history with the request.",
        code="conversation_not_found",
        param=CONVERSATION,
        reason=reason,
    )


def refusal_of(error: LedgerError) -> Refusal:
    """Return the API's error of an error that the ledger raised."""
    match error:
        case Refusal():
            return error
        case TooLarge():
            return Refusal(413, str(error), code="request_too_large", param=error.field, reason="too_large")
        case InvalidInput():
            return Refusal(400, str(error), code="invalid_value", param=error.field)
        case NotAuthenticated():
            message = f"Incorrect API key provided: {error}."
            return Refusal(401, message, code="invalid_api_key")
        case NotPermitted():
            return Refusal(403, str(error), code="not_permitted")
        case NativeHistory():
            return Refusal(409, str(error), code="native_history")
        case NotHeld():
            message = f"Another replica has the state of this user: {error}."
            return Refusal(421, message, code="not_held", reason="not_held", is_final=True)
        case Unavailable():
            return _ledger_unavailable(error.reason)
        case Unknown():
            return _ledger_unavailable("unknown_outcome")
        case StoreFailed():
            return _ledger_unavailable("storage")
        case RetryableError():
            return _ledger_unavailable("unavailable")
        case CallerError():
            return Refusal(400, str(error), code="invalid_request")
        case _:
            return Refusal(500, "The ledger found a state that it must not serve from.", code="defect", is_final=True)


def refusal_of_verdict(verdict: Verdict) -> Refusal | None:
    """Return the API's error of a commit that the log refused, None for one that has its effect."""
    if verdict.accepted:
        return None
    # A duplicate of a refusal is that refusal.
    code = verdict.first if verdict.code is Code.DUPLICATE and verdict.first is not None else verdict.code
    match code:
        case Code.PARENT_UNKNOWN:
            return not_found(PREVIOUS, "unknown")
        case Code.PARENT_GONE:
            return not_found(PREVIOUS, "gone")
        case Code.PARENT_UNFINISHED:
            return unfinished("unfinished")
        case Code.PARENT_NOT_PORTABLE:
            message = "The previous response lives at its target; only that one can continue it."
            return Refusal(409, message, code="native_history", param=PREVIOUS, reason=code.word, is_final=True)
        case Code.CONVERSATION_UNKNOWN:
            return not_found(CONVERSATION, "unknown")
        case Code.CONVERSATION_GONE:
            return not_found(CONVERSATION, "gone")
        case Code.CONVERSATION_LOCKED:
            return Refusal(
                400,
                "Another request is in progress on this conversation; send this one when it has ended.",
                code="conversation_locked",
                param=CONVERSATION,
                reason="conversation_locked",
            )
        case Code.IDEMPOTENCY_CONFLICT:
            message = "The Idempotency-Key belongs to a different request; use a new key for this one."
            return Refusal(409, message, code="idempotency_conflict", reason="idempotency_conflict", is_final=True)
        case Code.KEY_IN_PROGRESS:
            message = "Another request with this Idempotency-Key is in progress; ask again later."
            return Refusal(409, message, code="idempotency_in_progress", reason="idempotency_in_progress")
        case Code.LIMIT_EXCEEDED:
            message = f"The turn does not fit: it would exceed {verdict.reason} of the ledger's policy."
            return Refusal(413, message, code="request_too_large", reason=verdict.reason)
        case Code.PRINCIPAL_ERASED:
            message = "Everything of this user was erased after the request had begun; nothing of it is kept."
            return Refusal(409, message, code="principal_erased", reason="principal_erased", is_final=True)
        case Code.TURN_ENDED | Code.LEASE_EXPIRED:
            message = "The turn was ended by another request, or its replica lost its lease; nothing of it is kept."
            return Refusal(409, message, code="turn_ended", reason=code.word)
        case Code.RESPONSE_EXISTS | Code.OWNER_CONFLICT:
            message = "The target answered with an ID that belongs to another response or conversation."
            return Refusal(502, message, code="id_conflict", reason=code.word)
        case Code.REVISION_CONFLICT | Code.ITEM_CONFLICT | Code.ALIAS_GONE:
            message = "It was changed by another request in the meantime; read it again."
            return Refusal(409, message, code="conflict", reason=code.word)
        case Code.RESPONSE_UNKNOWN:
            message = "No response with this ID exists."
            return Refusal(404, message, code="response_not_found", param="response_id", reason="unknown")
        case Code.ITEM_UNKNOWN:
            message = "The conversation does not have this item."
            return Refusal(404, message, code="item_not_found", param="item_id", reason="unknown")
        case _:
            message = "The ledger did not take the turn; nothing of it is kept."
            # A clock that is wrong by hours, or a defect of the router: the same request meets it again.
            is_final = code in (Code.TOO_LATE, Code.INVALID, Code.QUARANTINED)
            return Refusal(503, message, code="turn_not_stored", reason=code.word, is_final=is_final)


def require_accepted(verdict: Verdict) -> None:
    """Raise the ``Refusal`` of a commit that the log refused."""
    refusal = refusal_of_verdict(verdict)
    if refusal is not None:
        raise refusal


def unfinished(status: str) -> Refusal:
    """Return what a continuation of a response that has not completed is answered."""
    return Refusal(
        400,
        f"Previous response cannot be continued: it is {status}. Continue a completed or incomplete one.",
        code="previous_response_unfinished",
        param=PREVIOUS,
        reason=status,
    )


def _ledger_unavailable(reason: str) -> Refusal:
    message = f"The ledger cannot tell or store that now ({reason}); try again, or on another replica."
    return Refusal(503, message, code="ledger_unavailable", reason=reason)
