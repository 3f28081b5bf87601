"""Another router on the SDK of the ledger: any of its processes continues what any other has begun.

It spreads requests at random over upstreams that speak the Responses API and keep their own state. What a router needs
of the ledger is marked (1) to (4); the rest is the proxy that it was before. To try it without a provider::

    turnledger loopback --name p1 --port 8431 &
    turnledger loopback --name p2 --port 8432 &
    turnledger serve &
    python examples/router.py 8001 p1=http://127.0.0.1:8431/v1 p2=http://127.0.0.1:8432/v1 &
    python examples/router.py 8002 p1=http://127.0.0.1:8431/v1 p2=http://127.0.0.1:8432/v1 &

Left out, and in the gateway: users, retries, portable turns, and turns whose client leaves.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ledger.adapters.http import BASE_URL, HttpRouter, LedgerClient
from ledger.continuation import Pinned, Portable, Selectors, Target, decide, detect_selectors, target_digest
from ledger.errors import LedgerError
from ledger.gate import Gate
from ledger.refusal import Refusal, refusal_of
from ledger.router import Router
from ledger.turn import Scope, Status, Turn

SCOPE = Scope(namespace="default", route="default", principal="local")
"""Whose requests these are. A router with users takes the principal from its authentication."""
TERMINALS = {b"event: response.completed", b"event: response.incomplete", b"event: response.failed"}


class ExampleRouter:
    """The router of one process; ``urls`` of its upstreams by name, the same in all processes."""

    def __init__(
        self,
        router: Router,
        http: httpx.AsyncClient,
        urls: dict[str, str],
        choose: Callable[[Sequence[str]], str] = random.choice,
    ) -> None:
        self._router, self._http, self._urls, self._choose = router, http, urls, choose
        self._targets = {name: Target(name=name, digest=target_digest(url)) for name, url in urls.items()}
        self.gate = Gate(router)
        self.app = Starlette(routes=[Route("/v1/responses", self.create, methods=["POST"])])

    async def create(self, request: Request) -> Response:
        """Answer ``POST /v1/responses``, buffered or streamed."""
        try:
            body, begun_at_ms = await request.body(), time.time_ns() // 1_000_000
            selectors = detect_selectors(json.loads(body))  # (1) what it names
            decision = await decide(self._router, SCOPE, selectors, self._targets)  # (2) where it may go
            if isinstance(decision, Portable):
                raise Refusal(400, "This router does not replay histories.", code="not_supported")
            target = decision.target if isinstance(decision, Pinned) else self._targets[self._choose([*self._targets])]

            async def settle(answer: dict[str, Any]) -> None:
                if answer.get("store") is not False:
                    await self.gate.settle(turn_of(answer, target, selectors, begun_at_ms))  # (3) durable first

            return await self._call(target, body, settle)
        except json.JSONDecodeError:
            return refused(Refusal(400, "The body is not JSON.", code="invalid_value"))
        except httpx.TransportError:
            return refused(Refusal(502, "The upstream does not answer.", code="upstream_failed"))
        except LedgerError as error:
            return refused(refusal_of(error))  # (4) errors as clients know them

    async def _call(self, target: Target, body: bytes, settle: Callable[[dict[str, Any]], Any]) -> Response:
        url, headers = f"{self._urls[target.name]}/responses", {"content-type": "application/json"}
        upstream = await self._http.send(
            self._http.build_request("POST", url, content=body, headers=headers), stream=True
        )
        media_type = upstream.headers.get("content-type", "application/json")
        if upstream.status_code == 200 and media_type.startswith("text/event-stream"):
            return StreamingResponse(events(upstream, settle), media_type=media_type)
        content = await upstream.aread()
        if upstream.status_code == 200:
            await settle(json.loads(content))
        return Response(content, upstream.status_code, media_type=media_type)


async def events(upstream: httpx.Response, settle: Callable[[dict[str, Any]], Any]) -> AsyncIterator[bytes]:
    """Pass the events on as they come; the terminal waits until its turn is durable, or is an error instead."""
    rest = b""
    try:
        async for chunk in upstream.aiter_bytes():
            *frames, rest = (rest + chunk).split(b"\n\n")
            for frame in frames:
                name, _, data = frame.partition(b"\ndata: ")
                if name in TERMINALS:
                    event = json.loads(data)
                    try:
                        await settle(event["response"])
                    except Refusal as refusal:
                        yield error_event(refusal, event["sequence_number"])
                        return
                yield frame + b"\n\n"
    finally:
        await upstream.aclose()


def turn_of(answer: dict[str, Any], target: Target, selectors: Selectors, begun_at_ms: int) -> Turn:
    """Return the turn that an upstream has answered: whose it is, and what it continues."""
    return Turn(
        scope=SCOPE,
        event_id=secrets.token_hex(16),
        response_id=answer["id"],
        owner=target.owner(native=True),
        status=Status[str(answer["status"]).upper()],
        conversation_id=selectors.conversation_id,
        previous_response_id=selectors.previous_response_id,
        begun_at_ms=begun_at_ms,
    )


def refused(refusal: Refusal) -> Response:
    """Return a refusal as an answer."""
    return JSONResponse(refusal.body(), refusal.status, headers=refusal.headers())


def error_event(refusal: Refusal, number: int) -> bytes:
    """Return a refusal as the last event of a stream."""
    event = {
        "type": "error",
        "sequence_number": number,
        "message": refusal.message,
        "code": refusal.code,
        "param": refusal.param,
    }
    return b"event: error\ndata: " + json.dumps(event).encode() + b"\n\n"


async def serve(port: int, ledger_url: str, urls: dict[str, str]) -> None:
    """Serve until SIGTERM or Ctrl-C, over the ledger service at ``ledger_url``."""
    async with LedgerClient(ledger_url) as ledger, httpx.AsyncClient(timeout=httpx.Timeout(600, connect=5)) as http:
        example = ExampleRouter(HttpRouter(ledger), http, urls)
        await uvicorn.Server(uvicorn.Config(example.app, port=port, log_level="warning")).serve()
        await example.gate.close()


def main() -> None:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(description="A router over upstreams that keep their own state.")
    parser.add_argument("port", type=int)
    parser.add_argument("upstreams", nargs="+", metavar="NAME=URL", help="with the version: p1=http://host/v1")
    parser.add_argument("--ledger", default=BASE_URL, metavar="URL", help="the ledger service; default: %(default)s")
    arguments = parser.parse_args()
    urls = dict(upstream.split("=", 1) for upstream in arguments.upstreams)
    asyncio.run(serve(arguments.port, arguments.ledger, urls))


if __name__ == "__main__":
    main()
