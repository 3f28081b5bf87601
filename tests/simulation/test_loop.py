"""The loop without a clock."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

import pytest

from tests.simulation.loop import OWNER, Deadlock, OutOfTime, virtual_loop


async def _ticks(times: list[float]) -> None:
    while True:
        await asyncio.sleep(1.0)
        times.append(asyncio.get_running_loop().time())


def _start_as(owner: str, times: list[float]) -> asyncio.Task[None]:
    context = copy_context()
    context.run(OWNER.set, owner)
    return asyncio.get_running_loop().create_task(_ticks(times), context=context)


def test_a_day_passes_at_once_and_timers_fire_in_order() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        fired: list[float] = []
        for delay_s in (86_400.0, 0.5, 7.0):
            loop.call_later(delay_s, lambda: fired.append(loop.time()))
        await asyncio.sleep(90_000.0)
        return fired

    assert virtual_loop(time_max_s=1e6).run(main()) == [0.5, 7.0, 86_400.0]


def test_a_paused_owner_runs_nothing_and_goes_on_late() -> None:
    loop = virtual_loop(time_max_s=100.0)
    paused: list[float] = []
    running: list[float] = []

    async def main() -> None:
        _start_as("paused", paused)
        _start_as("running", running)
        await asyncio.sleep(1.5)
        loop.pause("paused")
        await asyncio.sleep(3.0)
        loop.resume("paused")
        await asyncio.sleep(1.2)

    loop.run(main())
    loop.drain()
    assert running == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert paused == [1.0, 4.5, 5.5]


def test_a_killed_owner_ends_and_starts_nothing_more() -> None:
    loop = virtual_loop(time_max_s=100.0)
    times: list[float] = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(50.0)
        finally:
            _start_as("killed", times)

    async def main() -> None:
        context = copy_context()
        context.run(OWNER.set, "killed")
        task = loop.create_task(stubborn(), context=context)
        await asyncio.sleep(1.0)
        loop.kill("killed")
        await asyncio.wait([task])
        await asyncio.sleep(10.0)
        assert loop.tasks("killed") == []

    loop.run(main())
    loop.drain()
    assert times == []


def test_waiting_for_nothing_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    loop = virtual_loop(time_max_s=100.0)
    with pytest.raises(Deadlock):
        loop.run(main())
    loop.drain()


def test_a_run_has_a_virtual_deadline() -> None:
    loop = virtual_loop(time_max_s=100.0)
    with pytest.raises(OutOfTime):
        loop.run(_ticks([]))
    loop.drain()


def test_a_background_task_that_dies_is_noticed() -> None:
    loop = virtual_loop(time_max_s=100.0, expected=(ValueError,))

    async def fail(error: Exception) -> None:
        raise error

    async def main() -> None:
        background = [asyncio.create_task(fail(error)) for error in (KeyError("unexpected"), ValueError("expected"))]
        await asyncio.sleep(1.0)
        assert all(task.done() for task in background)

    loop.run(main())
    assert len(loop.died) == 1
    assert "unexpected" in loop.died[0]
