"""How things are measured: latencies of single calls, and rates of many at once."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of the report."""

    name: str
    where: str
    """Adapter, or what is called directly for comparison."""
    count: int
    rate_per_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """One row about the gateway: the same request without it and through it."""

    name: str
    where: str
    """The gateway's log."""
    count: int
    """Calls of either kind."""
    direct_p50_ms: float
    direct_p99_ms: float
    gateway_p50_ms: float
    gateway_p99_ms: float
    held_p50_ms: float | None = None
    """How long the end of the answer waited for its turn to be durable; None: what is measured is not the end."""
    held_p99_ms: float | None = None

    @property
    def added_p50_ms(self) -> float:
        """What the gateway adds to the middle call, the commit included."""
        return self.gateway_p50_ms - self.direct_p50_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What was aimed at, and what was measured."""

    name: str
    where: str
    aim_ms: float
    measured_ms: float

    @property
    def is_reached(self) -> bool:
        """Whether what was measured is not above the aim."""
        return self.measured_ms <= self.aim_ms


def quantile(sorted_values: list[float], q: float) -> float:
    """Return the value below which a share ``q`` of the values lies."""
    return sorted_values[min(int(len(sorted_values) * q), len(sorted_values) - 1)]


def figure(name: str, where: str, latencies_s: list[float], elapsed_s: float) -> Figure:
    """Return the figure of calls that were timed one by one while ``elapsed_s`` passed in all."""
    ordered = sorted(latencies_s)
    return Figure(
        name=name,
        where=where,
        count=len(ordered),
        rate_per_s=len(ordered) / elapsed_s,
        p50_ms=quantile(ordered, 0.5) * 1000,
        p99_ms=quantile(ordered, 0.99) * 1000,
    )


def added(
    name: str,
    where: str,
    direct_s: Sequence[float],
    gateway_s: Sequence[float],
    held: Sequence[tuple[float, float]] | None = None,
) -> Added:
    """Return the row of calls that were made directly and through the gateway; ``held``: buckets of the latter."""
    direct, gateway = sorted(direct_s), sorted(gateway_s)
    return Added(
        name=name,
        where=where,
        count=len(gateway),
        direct_p50_ms=quantile(direct, 0.5) * 1000,
        direct_p99_ms=quantile(direct, 0.99) * 1000,
        gateway_p50_ms=quantile(gateway, 0.5) * 1000,
        gateway_p99_ms=quantile(gateway, 0.99) * 1000,
        held_p50_ms=None if held is None else bucket_quantile(held, 0.5) * 1000,
        held_p99_ms=None if held is None else bucket_quantile(held, 0.99) * 1000,
    )


async def timed(
    name: str, where: str, call: Callable[[int], Awaitable[object]], *, count: int, concurrency: int, warm_up: int
) -> Figure:
    """Call ``call(number)`` ``count`` times with ``concurrency`` calls under way; the first ``warm_up`` do not
    count."""
    latencies_s: list[float] = []
    numbers = iter(range(count + warm_up))

    async def worker() -> None:
        for number in numbers:
            began_s = time.perf_counter()
            await call(number)
            if number >= warm_up:
                latencies_s.append(time.perf_counter() - began_s)
            elif number == warm_up - 1:
                started.set_result(time.perf_counter())

    started: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    if not warm_up:
        started.set_result(time.perf_counter())
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return figure(name, where, latencies_s, time.perf_counter() - await started)


def bucket_quantile(buckets: Sequence[tuple[float, float]], q: float) -> float:
    """Return the quantile of a histogram's buckets (upper bound, values up to it), straight between two bounds.

    It is off by less than the width of the bucket that it lies in; in the last one, without a bound, it is at least
    the bound before.
    """
    wanted = buckets[-1][1] * q
    bound_before = count_before = 0.0
    for bound, count in buckets:
        if count >= wanted and count > count_before:
            if math.isinf(bound):
                break
            return bound_before + (bound - bound_before) * (wanted - count_before) / (count - count_before)
        bound_before, count_before = bound, count
    return bound_before
