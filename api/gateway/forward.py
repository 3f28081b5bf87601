"""Requests about state that a target holds: sent to its owner as they are, and its answer passed on to the byte."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from api.gateway.errors import owner_refusal
from api.gateway.service import Gateway
from api.gateway.upstream import UpstreamAnswer, UpstreamFailed, forwarded_headers
from ledger.continuation import Target, owner_target
from ledger.turn import Owner


def owner_of(gateway: Gateway, owner: Owner) -> Target:
    """Return the target that owns native state. Raises ``Refusal`` when it is not there, or changed."""
    return owner_target(owner, gateway.routing.targets())


async def ask(
    gateway: Gateway,
    request: Request,
    target: Target,
    path: str,
    *,
    method: str | None = None,
    body: bytes | None = None,
    query: str | None = None,
) -> UpstreamAnswer:
    """Send what a client asked to the owner. Raises ``Refusal`` when the owner does not answer."""
    try:
        answer = await gateway.upstream.send(
            target.name,
            method or request.method,
            path,
            body=body,
            query=request.url.query if query is None else query,
            headers=forwarded_headers(request.headers),
        )
    except UpstreamFailed as failure:
        gateway.metrics.called(target.name, failure.reason)
        raise owner_refusal(failure) from failure
    gateway.metrics.called(target.name, "answered" if answer.status < 400 else "refused")
    return answer


def passed_on(answer: UpstreamAnswer) -> Response:
    """Return a target's answer as the client gets it."""
    return Response(answer.body, answer.status, headers=dict(answer.headers), media_type=answer.media_type)
