"""The gateway's answers that are not successes, in the shape of the API."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from api.errors import NOT_HELD, NOT_SERVED
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


def refusal_from(error: LedgerError | UpstreamFailed) -> Refusal:
    """Return the API's error of what the ledger or a target raised."""
    return upstream_refusal(error) if isinstance(error, UpstreamFailed) else refusal_of(error)


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
