"""Calls to targets: what of one client's call must not reach another's."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from api.gateway.config import TargetConfig, TargetFormat
from api.gateway.upstream import Upstream
from tests.gateway.serving import listening


async def test_a_targets_cookie_goes_along_with_no_other_request() -> None:
    sent: list[dict[str, Any]] = []

    async def answer(request: Request) -> Response:
        sent.append(dict(request.cookies))
        response = JSONResponse({})
        response.set_cookie("session", "of-the-first-client")
        return response

    app = Starlette(routes=[Route("/v1/responses", answer, methods=["POST"])])
    async with listening(app) as url:
        # By name: cookies of a bare address are not kept by any client.
        base_url = f"{url.replace('127.0.0.1', 'localhost')}/v1"
        target = TargetConfig(name="p1", base_url=base_url, api_key=None, format=TargetFormat.RESPONSES, models=())
        upstream = Upstream({"p1": target})
        await upstream.start()
        try:
            for _ in range(2):
                assert (await upstream.send("p1", "POST", "/responses", body=b"{}")).status == 200
        finally:
            await upstream.close()
    assert sent == [{}, {}]
