"""Routes for probes and Prometheus. They need no token: nothing in them concerns a caller."""

from __future__ import annotations

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.metrics import CONTENT_TYPE, Metrics
from api.service import Service, answer
from ledger.holding import partitions_text
from ledger.ledger import Ledger


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """The process runs."""

    live: bool = True


class Ready(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the process may get traffic, and why not."""

    ready: bool
    reason: str = ""
    partitions: str = ""
    """Those that are held, such as ``0-7,12``, where these are not all."""


async def live(_: Service, __: Request) -> Response:
    """Answer that the process runs."""
    return answer(Live())


async def ready(service: Service, _: Request) -> Response:
    """Answer whether the process may get traffic; 503 with the reason when not."""
    return answer_ready(readiness(service.ledger))


async def metrics(service: Service, _: Request) -> Response:
    """Answer the metrics in Prometheus' text format."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)


def readiness(ledger: Ledger) -> Ready:
    """Return whether a process with this ledger may get traffic, and for which partitions."""
    reason, replica = ledger.not_ready_reason(), ledger.replica
    partitions = partitions_text(replica.held) if replica.is_partial else ""
    return Ready(ready=not reason, reason=reason, partitions=partitions)


def health_app(ledger: Ledger | None, counted: Metrics) -> Starlette:
    """Return these routes alone, for a process that does not serve the ledger, or has none."""

    async def live_alone(_: Request) -> Response:
        return answer(Live())

    async def ready_alone(_: Request) -> Response:
        return answer_ready(Ready(ready=True) if ledger is None else readiness(ledger))

    async def metrics_alone(_: Request) -> Response:
        return Response(counted.text(), media_type=CONTENT_TYPE)

    return Starlette(
        routes=[
            Route("/health/live", live_alone),
            Route("/health/ready", ready_alone),
            Route("/metrics", metrics_alone),
        ]
    )


def answer_ready(state: Ready) -> Response:
    """Return 200 or 503 with the reason."""
    return answer(state, 200 if state.ready else 503)
