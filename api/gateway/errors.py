"""The gateway's answers that are not successes, in the shape of the API."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from api.errors import NOT_HELD, NOT_SERVED
from api.forwarding import HolderBroke
from api.gateway.upstream import UpstreamAnswer, UpstreamFailed
from ledger.errors import LedgerError
from ledger.refusal import Refusal, refusal_of

_encoder = msgspec.json.Encoder()
_STATUS = {"unreachable": 502, "broken": 502, "timeout": 504}


class TargetRefused(Exception):
    """A target refused the request; its answer is passed on."""

    def __init__(self, answer: UpstreamAnswer) -> None:
        super().__init__(f"the target answered {answer.status}")
        self.answer = answer


def target_refusal_answer(refused: TargetRefused) -> Response:
    """Return a target's refusal as it came, or in the shape of the API when it has none of its own."""
    answer = refused.answer
    if answer.media_type == "application/json" and _has_api_shape(answer):
        return Response(answer.body, answer.status, headers=dict(answer.headers), media_type=answer.media_type)
    message = f"The model's server refused the request with HTTP status {answer.status}."
    refusal = Refusal(answer.status, message, code="upstream_refused", reason="upstream_refused")
    return Response(
        _encoder.encode(refusal.body()), answer.status, headers=dict(answer.headers), media_type="application/json"
    )


def _has_api_shape(answer: UpstreamAnswer) -> bool:
    error = (answer.json_object() or {}).get("error")
    return isinstance(error, dict) and isinstance(error.get("message"), str)


def refusal_answer(refusal: Refusal) -> Response:
    """Return the answer that says ``refusal``."""
    headers = refusal.headers()
    if refusal.code == NOT_HELD:
        headers[NOT_SERVED] = NOT_HELD
    return Response(_encoder.encode(refusal.body()), refusal.status, headers=headers, media_type="application/json")


def refusal_from(error: LedgerError | UpstreamFailed, *, has_key: bool = False) -> Refusal:
    """Return the API's error of what the ledger, a target or a holder raised; ``has_key``: a retry finds the first."""
    match error:
        case UpstreamFailed():
            return upstream_refusal(error)
        case HolderBroke():
            return holder_refusal(has_key=has_key)
        case _:
            return refusal_of(error)


def holder_refusal(*, has_key: bool) -> Refusal:
    """Return what a client is answered whose change was sent to a holder that did not answer.

    Without a key that makes it the same request, a retry is another change with an event ID of its own.
    """
    message = "The replica that has the state of this user did not answer; it may have been carried out. "
    message += "Try again with the same Idempotency-Key." if has_key else "Look before you send it again."
    return Refusal(504, message, code="outcome_unknown", reason="holder_broke", is_final=not has_key)


def upstream_refusal(failure: UpstreamFailed) -> Refusal:
    """Return what a client is answered whose request was routed by policy and whose target failed."""
    return Refusal(
        _STATUS[failure.reason],
        f"The model's server failed: {failure}. The turn is not stored; try again.",
        code="upstream_failed",
        reason=f"upstream_{failure.reason}",
    )


def owner_refusal(failure: UpstreamFailed) -> Refusal:
    """Return what a client is answered whose request only this target could answer."""
    return Refusal(
        503,
        f"The target that holds this state does not answer: {failure}. No other target can continue it; try again.",
        code="owner_unavailable",
        reason=f"owner_{failure.reason}",
    )
