"""What the service's answers say, as the ledger's own values and errors; for ``http``."""

from __future__ import annotations

from typing import TypeVar

import httpx
import msgspec

from ledger.answer import Answer, Verdict
from ledger.bodies import ErrorAnswer, ErrorBody, FoundBody, PolicyAnswer, VerdictBody
from ledger.errors import (
    FatalError,
    InvalidInput,
    LedgerError,
    NeedsEveryPartition,
    NotAuthenticated,
    NotHeld,
    NotPermitted,
    TooLarge,
    Unavailable,
    Unknown,
)
from ledger.policy import Policy
from ledger.query import NativeHistory
from ledger.wire import absence_of, found_of, verdict_of

T = TypeVar("T")

found = msgspec.json.Decoder(FoundBody)
_verdict = msgspec.json.Decoder(VerdictBody)
_policy = msgspec.json.Decoder(PolicyAnswer)
_error = msgspec.json.Decoder(ErrorAnswer)


def decoded(response: httpx.Response, decoder: msgspec.json.Decoder[T]) -> T:
    """Return the body of an answer. Raises ``Unavailable`` when something else than the ledger has answered."""
    try:
        return decoder.decode(response.content)
    except msgspec.DecodeError:
        raise _not_the_ledger(response) from None


def answer_in(response: httpx.Response) -> Answer:
    """Return what a read was answered; raises the error that it says."""
    if response.is_success:
        return found_of(decoded(response, found))
    body = decoded(response, _error).error
    absence = absence_of(body)
    if absence is None:
        raise error_of(response.status_code, body, None)
    return absence


def verdict_in(response: httpx.Response, event_id: str) -> Verdict:
    """Return the verdict on a change; raises the error that it says."""
    if response.status_code not in (200, 409):
        raise failure(response, event_id)
    return verdict_of(decoded(response, _verdict))


def policy_in(response: httpx.Response) -> tuple[Policy, int]:
    """Return the policy and its generation."""
    body = decoded(response, _policy)
    return msgspec.convert(list(body.policy.values()), Policy), body.generation


def failure(response: httpx.Response, event_id: str | None) -> LedgerError:
    """Return the error that an answer says; ``event_id`` is given for a change."""
    try:
        body = _error.decode(response.content)
    except msgspec.DecodeError:
        # A proxy's answer says nothing about what the service did.
        if event_id is not None and response.status_code >= 500:
            return Unknown(event_id, f"HTTP {response.status_code} from something that is not the ledger")
        return _not_the_ledger(response)
    return error_of(response.status_code, body.error, event_id)


def error_of(status: int, body: ErrorBody, event_id: str | None) -> LedgerError:
    """Return the error that a body says; ``event_id`` is given for a change."""
    match body.code:
        case "invalid_input" | "too_large":
            field = body.field or "body"
            refused = TooLarge if body.code == "too_large" else InvalidInput
            return refused(field, body.message.removeprefix(f"{field}: "))
        case "not_authenticated":
            return NotAuthenticated(body.message)
        case "not_permitted":
            return NotPermitted(body.message)
        case "native_history":
            return NativeHistory(body.message)
        case "not_held":
            return NotHeld(body.partition or 0, body.message.partition(": ")[2])
        case "needs_every_partition":
            return NeedsEveryPartition(body.message)
        case "unavailable":
            reason = body.reason or "service"
            return Unavailable(reason, body.message.removeprefix(f"unavailable ({reason}): "))
        case "unknown":
            return Unknown(body.event_id or event_id or "", "the service had no verdict before its deadline")
        case _ if status >= 500 and event_id is not None:
            return Unknown(event_id, body.message)
        case _ if status >= 500:
            return FatalError(body.message)
        case _:
            return LedgerError(f"HTTP {status}: {body.message}")


def unreachable(error: httpx.TransportError) -> Unavailable:
    """Return what it means that a read got no answer, or a change was not sent."""
    return Unavailable("service", f"the ledger service cannot be reached ({type(error).__name__})")


def _not_the_ledger(response: httpx.Response) -> Unavailable:
    return Unavailable("service", f"HTTP {response.status_code} from something that is not the ledger")
