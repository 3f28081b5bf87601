"""The gateway as an ASGI application: its routes, with and without ``/v1``, and every error in the shape of the API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import assert_never

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from api.gateway.config import GatewayConfig, TargetFormat
from api.gateway.errors import TargetRefused, refusal_answer, refusal_from, target_refusal_answer
from api.gateway.openapi import PATH, describe
from api.gateway.operations import OPERATIONS, Asks, Operation
from api.gateway.service import MIB, Gateway, json_answer
from api.gateway.upstream import UpstreamFailed
from api.ledger_name import of_ledger
from ledger.errors import LedgerError
from ledger.refusal import Refusal
from ledger.settings import LedgerSettings

logger = structlog.get_logger("api.gateway")

PREFIXES = ("/v1", "")
"""Some clients are configured with the version in their base URL, some without."""
OTHERS = ("/responses/compact", "/responses/input_tokens")
"""Operations of the API on responses that the gateway does not have."""
ROOTS = ("responses", "conversations", "models")
"""First parts of the gateway's paths; without ``/v1`` anything else is somebody else's."""


def create_gateway_app(gateway: Gateway) -> Starlette:
    """Return the application of a started gateway."""
    description = describe("turnledger gateway", version("turnledger"))

    async def described(_: Request) -> Response:
        return json_answer(description)

    return Starlette(
        routes=[
            Route(PATH, described, methods=["GET"]),
            *(
                Route(f"{prefix}{operation.path}", _endpoint(gateway, operation), methods=[operation.method])
                for prefix in PREFIXES
                for operation in OPERATIONS
            ),
        ],
        exception_handlers={HTTPException: _unrouted, Exception: of_ledger(gateway.ledger, _defect)},
    )


class WithGateway:
    """Both applications in one process: the gateway's paths go to the gateway, all others to ``beside``."""

    def __init__(self, gateway: ASGIApp, beside: ASGIApp) -> None:
        self._gateway = gateway
        self._beside = beside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = str(scope.get("path", "")).split("/", 2)[1:2]
        app = self._gateway if first and first[0] in ("v1", *ROOTS) else self._beside
        await app(scope, receive, send)


def answers_within_s(config: GatewayConfig, settings: LedgerSettings, asks: Asks) -> float:
    """Return what an operation may take before its first byte, by its deadlines.

    The ledger is read before and after, and a change puts contents twice and commits. Whether a target has what is
    asked for only the holder knows; with no target that can, nobody has.
    """
    ledger_s = 3 * settings.commit_timeout_s + 2 * settings.read_timeout_s
    targets = config.targets.values()
    match asks:
        case Asks.NOBODY:
            return ledger_s
        case Asks.OWNER:
            owners = [target for target in targets if target.format is TargetFormat.RESPONSES]
            return ledger_s + max((target.connect_timeout_s + target.idle_timeout_s for target in owners), default=0.0)
        case Asks.MODEL:
            # One that cannot be reached is followed by the next.
            connect_s = sum(target.connect_timeout_s for target in targets)
            idle_s = max(target.idle_timeout_s for target in targets)
            return ledger_s + connect_s + idle_s + config.limits.idempotency_wait_s
        case _:
            assert_never(asks)


def _endpoint(gateway: Gateway, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    name = operation.name
    settings = LedgerSettings() if gateway.ledger is None else gateway.ledger.settings
    bound_s = answers_within_s(gateway.config, settings, operation.asks)

    async def handle(request: Request) -> Response:
        if operation.needs_state:
            # Before anything is read, called or stored.
            gateway.require_held(request)
        return await operation.handle(gateway, request)

    async def endpoint(request: Request) -> Response:
        try:
            if gateway.forwarding is None:
                return await handle(request)
            return await gateway.forwarding.served(
                handle,
                request,
                body_bytes_max=gateway.config.limits.body_mib_max * MIB,
                answers_within_s=bound_s,
                reads_first=False,
            )
        except TargetRefused as refused:
            gateway.metrics.served("refused", "by_target")
            return target_refusal_answer(refused)
        except (LedgerError, UpstreamFailed) as error:
            has_key = operation.takes_key and "idempotency-key" in request.headers
            refusal = refusal_from(error, has_key=has_key)
            gateway.metrics.served("refused", refusal.code or "other")
            if refusal.status >= 500:
                logger.warning("request_failed", operation=name, status=refusal.status, reason=refusal.reason)
            return refusal_answer(refusal)

    return of_ledger(gateway.ledger, endpoint)


async def _unrouted(request: Request, error: Exception) -> Response:
    """Answer what has no route: a part of the API that the gateway does not have, or a method that a path has not."""
    assert isinstance(error, HTTPException), "registered for this class"
    # A path that reads as the ID of a response, but is the API's name of something else.
    is_elsewhere = request.method == "POST" and request.url.path.endswith(OTHERS)
    if error.status_code == 405 and not is_elsewhere:
        message = "This gateway does not support this method on this path."
        refusal = Refusal(405, message, code="method_not_allowed", reason="not_supported")
    else:
        message = "This gateway does not support this route; it serves responses, conversations and models."
        refusal = Refusal(404, message, code="not_supported", reason="not_supported")
    answer = refusal_answer(refusal)
    if refusal.status == error.status_code:
        answer.headers.update(error.headers or {})
    return answer


async def _defect(_: Request, __: Exception) -> Response:
    """Answer an exception that nobody expected, without repeating what it says."""
    message = "The gateway failed; its log says where."
    return refusal_answer(Refusal(500, message, code="defect", reason="defect"))
