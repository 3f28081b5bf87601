"""Routes for probes and Prometheus. They need no token: nothing in them concerns a caller."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api.metrics import CONTENT_TYPE
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
    reason = service.ledger.not_ready_reason()
    return answer(Ready(ready=not reason, reason=reason), 503 if reason else 200)


async def metrics(service: Service, _: Request) -> Response:
    """Answer the metrics in Prometheus' text format."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)
