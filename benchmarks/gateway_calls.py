"""Calls of the gateway's benchmark: one request timed, and the same request made directly and through the gateway in
turn, so that what else happens on the machine hits both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

TERMINAL = b"event: response.completed"
HELD_METRIC = "turnledger_gateway_terminal_held_seconds"
CALLS_PER_ROUND = 10
"""Of each caller, when there are several: so few callers wait for the last ones of a round, and a round is still so
short that noise hits both sides."""
WARM_UP_SHARE = 10
"""One of so many rounds, at the beginning, does not count."""

Timing = tuple[float, float]
"""Seconds from the call to the first byte of its body, and to its end: of a stream, to its terminal event."""
BEGINNING, END = 0, 1
Buckets = Sequence[tuple[float, float]]
"""Upper bound in seconds, and how many values are not above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """A request."""

    url: str
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request as the upstream gets it, and as the gateway does."""

    direct: Post
    gateway: Post


async def timed_post(session: aiohttp.ClientSession, post: Post, *, streamed: bool) -> Timing:
    """Send a request and read its answer to the end."""
    began_s = time.perf_counter()
    first_s = end_s = 0.0
    tail = b""
    async with session.post(post.url, data=post.body, headers=post.headers) as answer:
        async for chunk in answer.content.iter_any():
            first_s = first_s or time.perf_counter()
            if streamed and not end_s and TERMINAL in (seen := tail + chunk):
                end_s = time.perf_counter()
            elif streamed:
                tail = seen[-len(TERMINAL) :]
        if not streamed:
            end_s = time.perf_counter()
        assert answer.status == HTTPStatus.OK, f"the answer is {answer.status}"
    assert end_s, "the stream ended without its terminal"
    return first_s - began_s, end_s - began_s


async def compared(
    session: aiohttp.ClientSession,
    exchanges: Sequence[Exchange],
    *,
    streamed: bool,
    callers: int,
    count: int,
    warmed_up: Callable[[], Awaitable[None]],
) -> tuple[list[Timing], list[Timing]]:
    """Return the timings of about ``count`` calls of either kind; ``warmed_up`` is called when they begin to count.

    Callers at once each have an exchange of their own; one alone takes them in turn.
    """
    calls_each = 1 if callers == 1 else CALLS_PER_ROUND
    rounds = max(1, count // (callers * calls_each))
    warm_up = max(1, rounds // WARM_UP_SHARE)
    direct: list[Timing] = []
    gateway: list[Timing] = []

    async def call(post: Post, timings: list[Timing]) -> None:
        timings.extend([await timed_post(session, post, streamed=streamed) for _ in range(calls_each)])

    for number in range(rounds + warm_up):
        if number == warm_up:
            direct.clear()
            gateway.clear()
            await warmed_up()
        of_round = exchanges[:callers] if callers > 1 else [exchanges[number % len(exchanges)]]
        await asyncio.gather(*(call(exchange.direct, direct) for exchange in of_round))
        await asyncio.gather(*(call(exchange.gateway, gateway) for exchange in of_round))
    return direct, gateway


async def held(session: aiohttp.ClientSession, gateway_url: str) -> Buckets:
    """Return how long the gateway has held the ends of its answers since it started."""
    async with session.get(f"{gateway_url}/metrics") as answer:
        families = text_string_to_metric_families(await answer.text())
    return [
        (float(sample.labels["le"]), sample.value)
        for family in families
        for sample in family.samples
        if sample.name == f"{HELD_METRIC}_bucket"
    ]


def between(before: Buckets, after: Buckets) -> Buckets:
    """Return what was added to buckets between two readings."""
    return [(bound, count - old) for (bound, count), (_, old) in zip(after, before, strict=True)]
