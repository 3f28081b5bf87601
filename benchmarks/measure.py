"""How things are measured: latencies of single calls, and rates of many at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
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
