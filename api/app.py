"""The ledger service as an ASGI application, over a ledger that somebody else opened.

FastAPI gives the application, its documentation page and the place where the gateway is mounted. The routes are
Starlette's: a request is decoded once, strictly, by msgspec, and FastAPI's own handling of an endpoint would add to
every look-up more than the look-up itself takes.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from importlib.metadata import version

import structlog
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.auth import Access
from api.errors import defect_answer, error_answer, http_error_answer, status_and_body
from api.forwarding import Forwarding
from api.ledger_name import of_ledger
from api.metrics import Metrics
from api.openapi import describe
from api.operations import OPERATIONS, Operation
from api.requests import CONTENT_BODY_BYTES_MAX
from api.service import Service
from ledger.composition import scratch_view
from ledger.errors import LedgerError
from ledger.ledger import Ledger
from ledger.view import ViewStore

logger = structlog.get_logger("api")

TITLE = "turnledger"


def create_app(
    ledger: Ledger,
    access: Access,
    *,
    metrics: Metrics | None = None,
    forwarding: Forwarding | None = None,
    owns_ledger: bool = False,
    scratch: Callable[[], AbstractContextManager[ViewStore]] = scratch_view,
) -> FastAPI:
    """Return the service of a started ledger.

    ``metrics``: those whose ``folded`` the ledger was opened with. ``forwarding``: of a replica that holds some
    partitions. ``owns_ledger``: close the ledger when the application ends. ``scratch`` gives the rows that a replay
    folds into.
    """
    counted = metrics or Metrics()
    counted.watch(ledger)
    service = Service(ledger=ledger, access=access, metrics=counted, scratch=scratch, forwarding=forwarding)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        if owns_ledger:
            await ledger.close()

    app = FastAPI(
        title=TITLE,
        version=version("turnledger"),
        lifespan=lifespan,
        exception_handlers={HTTPException: http_error_answer, Exception: of_ledger(ledger, defect_answer)},
    )
    app.router.routes.extend(
        Route(operation.path, _endpoint(service, operation), methods=[operation.method]) for operation in OPERATIONS
    )
    app.openapi = functools.cache(lambda: describe(app.title, app.version))  # type: ignore[method-assign]  # FastAPI's documented way to replace it
    return app


def _endpoint(service: Service, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    handle, name = functools.partial(operation.handle, service), operation.name

    async def endpoint(request: Request) -> Response:
        try:
            if service.forwarding is None:
                return await handle(request)
            return await service.forwarding.served(
                handle,
                request,
                body_bytes_max=CONTENT_BODY_BYTES_MAX,
                answers_within_s=service.answers_within_s,
            )
        except LedgerError as error:
            status, body = status_and_body(error)
            if status >= 500:
                logger.warning("request_failed", operation=name, status=status, code=body.code, reason=body.reason)
            return error_answer(status, body)

    return of_ledger(service.ledger, endpoint)
