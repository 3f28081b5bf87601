"""Routes for probes and Prometheus. They need no token: nothing in them concerns a caller."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.metrics import CONTENT_TYPE, Metrics
from api.service import Service, answer


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """The process runs."""

    live: bool = True


class Ready(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the process may get traffic, and why not."""

    ready: bool
    reason: str = ""


async def live(_: Service, __: Request) -> Response:
    """Answer that the process runs."""
    return answer(Live())


async def ready(service: Service, _: Request) -> Response:
    """Answer whether the process may get traffic; 503 with the reason when not."""
    return _ready(service.ledger.not_ready_reason())


async def metrics(service: Service, _: Request) -> Response:
    """Answer the metrics in Prometheus' text format."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)


def health_app(not_ready_reason: Callable[[], str], counted: Metrics) -> Starlette:
    """Return these routes alone, for a process that does not serve the ledger; an empty reason means ready."""

    async def live_alone(_: Request) -> Response:
        return answer(Live())

    async def ready_alone(_: Request) -> Response:
        return _ready(not_ready_reason())

    async def metrics_alone(_: Request) -> Response:
        return Response(counted.text(), media_type=CONTENT_TYPE)

    return Starlette(
        routes=[
            Route("/health/live", live_alone),
            Route("/health/ready", ready_alone),
            Route("/metrics", metrics_alone),
        ]
    )


def _ready(reason: str) -> Response:
    return answer(Ready(ready=not reason, reason=reason), 503 if reason else 200)
