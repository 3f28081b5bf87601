"""examples/router.py, as its first lines say: two of its processes continue each other's responses."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from api.app import create_app
from api.auth import Access
from cli.loopback.server import Loopback, running_loopback
from examples import router as example
from examples.router import ExampleRouter
from ledger.adapters.http import HttpRouter, LedgerClient
from ledger.composition import open_embedded
from ledger.router import LedgerRouter, Router
from tests.api.faults import LOST, ScriptedFaults, faulty_ledger
from tests.gateway.serving import listening

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Spares each client a quarter of a second for certificates that nobody asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstreams:
    """The two upstreams, and a pool of connections to them."""

    p1: Loopback
    p2: Loopback
    http: httpx.AsyncClient

    def called(self) -> tuple[int, int]:
        return len(self.p1.recorded()), len(self.p2.recorded())


@pytest.fixture
async def upstreams() -> AsyncIterator[Upstreams]:
    async with (
        running_loopback("p1") as p1,
        running_loopback("p2") as p2,
        httpx.AsyncClient(trust_env=False, verify=NO_TLS) as http,
    ):
        yield Upstreams(p1=p1, p2=p2, http=http)


async def replica(stack: AsyncExitStack, router: Router, upstreams: Upstreams, prefers: str) -> AsyncOpenAI:
    """Run one process's router, whose policy is always the same target, and return a client of it."""
    urls = {"p1": f"{upstreams.p1.url}/v1", "p2": f"{upstreams.p2.url}/v1"}
    made = ExampleRouter(router, upstreams.http, urls, choose=lambda _: prefers)
    stack.push_async_callback(made.gate.close)
    url = await stack.enter_async_context(listening(made.app))
    client = AsyncOpenAI(
        base_url=f"{url}/v1", api_key="-", max_retries=0, http_client=DefaultAsyncHttpxClient(verify=NO_TLS)
    )
    return await stack.enter_async_context(client)


@pytest.fixture
async def clients(upstreams: Upstreams, tmp_path: Path) -> AsyncIterator[tuple[AsyncOpenAI, AsyncOpenAI]]:
    """Clients of two routers on one ledger service; the first prefers P1, the second P2."""
    async with AsyncExitStack() as stack:
        ledger = await stack.enter_async_context(await open_embedded(tmp_path))
        app = create_app(ledger, Access.local())
        routers = [
            HttpRouter(await stack.enter_async_context(LedgerClient(transport=httpx.ASGITransport(app))))
            for _ in range(2)
        ]
        yield (
            await replica(stack, routers[0], upstreams, "p1"),
            await replica(stack, routers[1], upstreams, "p2"),
        )


async def texts(client: AsyncOpenAI, text: str, previous: str | None = None) -> tuple[str, str]:
    """Ask for a stream; return the response's ID and text."""
    async with client.responses.stream(
        model="loopback", input=text, previous_response_id=previous or openai.omit
    ) as stream:
        final = await stream.get_final_response()
    return final.id, final.output_text


async def test_each_router_continues_what_the_other_has_begun(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], upstreams: Upstreams
) -> None:
    one, other = clients
    first = await one.responses.create(model="loopback", input="alpha")
    second = await other.responses.create(model="loopback", input="beta", previous_response_id=first.id)
    third_id, third = await texts(other, "gamma", second.id)
    _, fourth = await texts(one, "delta", third_id)
    assert second.output_text == "p1 heard: alpha | beta"
    assert third == "p1 heard: alpha | beta | gamma"
    assert fourth == "p1 heard: alpha | beta | gamma | delta"
    assert upstreams.called() == (4, 0)


async def test_request_that_continues_nothing_goes_where_the_policy_says(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], upstreams: Upstreams
) -> None:
    for client in clients:
        await client.responses.create(model="loopback", input="alpha")
    assert upstreams.called() == (1, 1)


async def test_unknown_response_is_refused_and_no_upstream_called(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], upstreams: Upstreams
) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await clients[0].responses.create(model="loopback", input="alpha", previous_response_id="resp_nobody")
    assert raised.value.code == "previous_response_not_found"
    assert upstreams.called() == (0, 0)


async def test_refusal_of_an_upstream_is_passed_on(clients: tuple[AsyncOpenAI, AsyncOpenAI]) -> None:
    with pytest.raises(openai.RateLimitError):
        await clients[0].responses.create(model="loopback", input="!status(429)")


@pytest.mark.parametrize("streamed", [False, True])
async def test_turn_that_the_ledger_cannot_store_is_no_success(upstreams: Upstreams, streamed: bool) -> None:
    faults = ScriptedFaults()
    async with faulty_ledger(faults) as ledger, AsyncExitStack() as stack:
        client = await replica(stack, LedgerRouter(ledger), upstreams, "p1")
        faults.fates[ledger.committer.partition(example.SCOPE)].append(LOST)
        if not streamed:
            with pytest.raises(openai.InternalServerError) as raised:
                await client.responses.create(model="loopback", input="alpha")
            assert (raised.value.status_code, raised.value.code) == (503, "ledger_unavailable")
            return
        stream = await client.responses.create(model="loopback", input="alpha", stream=True)
        seen = [event.type async for event in stream]
        assert "response.output_text.delta" in seen
        assert "response.completed" not in seen
        assert seen[-1] == "error"


def test_example_is_a_program_that_says_how_it_is_called() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", example.__file__, "--help"], capture_output=True, text=True, check=True
    )
    assert "NAME=URL" in ran.stdout
