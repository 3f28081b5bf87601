"""A replica that holds nothing and sends all on, and what it may take for holders: real servers on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.errors import error_answer, status_and_body
from api.forwarding import Forwarding
from api.holders import Holders
from api.ledger_name import ASKED_LEDGER, FORWARDED, LEDGER
from api.metrics import Metrics
from ledger.errors import LedgerError, NotHeld
from tests.gateway.serving import listening

BODY_BYTES_MAX = 8 * 1024 * 1024
PATIENT_S, IMPATIENT_S = 60.0, 0.5
"""What a holder may be silent for: where that must not end the call, and where it is to."""
PATIENCE_S = 60.0
"""Far above what any answer takes: no test passes or fails by it."""
METHODS = ["GET", "POST", "DELETE", "PATCH"]
LEDGER_ID, OTHER_LEDGER_ID = b"ledger of tests!", b"another ledger!!"
Handle = Callable[[Request], Awaitable[Response]]


def app_of(handle: Handle) -> Starlette:
    """Return an application that answers as a replica of whatever ledger it is asked for."""

    async def named(request: Request) -> Response:
        answer = await handle(request)
        if FORWARDED in request.headers and ASKED_LEDGER in request.headers:
            answer.headers[LEDGER] = request.headers[ASKED_LEDGER]
        return answer

    return stranger_of(named)


def stranger_of(handle: Handle) -> Starlette:
    """Return an application that knows nothing of ledgers."""
    return Starlette(routes=[Route("/{path:path}", handle, methods=METHODS)])


@asynccontextmanager
async def entry(
    *urls: str, metrics: Metrics | None = None, answers_within_s: float = PATIENT_S, margin_s: float = PATIENT_S
) -> AsyncIterator[str]:
    """Run a replica that holds nothing and takes ``urls`` for the holders of everything."""
    counted = metrics or Metrics()
    forwarding = Forwarding(Holders.parse(f"0={'|'.join(urls)}"), LEDGER_ID, counted, answer_margin_s=margin_s)

    async def refuse(request: Request) -> Response:
        if request.headers.get("reads-first"):
            await request.body()
        raise NotHeld(0)

    async def answer(request: Request) -> Response:
        try:
            return await forwarding.served(
                refuse, request, body_bytes_max=BODY_BYTES_MAX, answers_within_s=answers_within_s
            )
        except LedgerError as error:
            return error_answer(*status_and_body(error))

    await forwarding.start()
    try:
        async with listening(app_of(answer)) as url:
            yield url
    finally:
        await forwarding.close()


def dead() -> str:
    """Return a URL where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@asynccontextmanager
async def breaking(
    begun: bytes = b"", *, is_silent: bool = False, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Run a server that takes a request, answers what it is given and closes, or is silent until it is left."""
    taken: list[bytes] = []
    ended: list[asyncio.Task[None]] = []

    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        ended.append(task)
        taken.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(begun)
        if is_silent:
            await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(break_off, host, 0)
    async with server:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}", taken
        await asyncio.gather(*ended, return_exceptions=True)


def outcomes(metrics: Metrics) -> dict[str, float]:
    registry: CollectorRegistry = metrics.registry
    return {
        sample.labels["outcome"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "turnledger_forwarded_total"
    }
