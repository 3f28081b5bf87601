"""An event loop without a clock: time is a number that jumps to the next timer when nothing else is left to do.

Every callback belongs to an *owner* (a context variable that tasks and timers inherit), so that the world can crash or
pause all that one process runs, and nothing of another.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

OWNER: ContextVar[str] = ContextVar("OWNER", default="world")
"""Which simulated process the running code belongs to."""
CALL = "call"
"""Name of tasks whose exceptions go to whoever waits for them."""
PRUNE_EVERY_TASKS = 256
"""How often finished tasks are dropped from the list of an owner's tasks."""


class Deadlock(Exception):
    """Nothing is left to do and nothing ever will be, but the main coroutine has not ended."""


class OutOfTime(Exception):
    """The main coroutine was still running at the virtual deadline."""


def virtual_loop(*, time_max_s: float, expected: tuple[type[Exception], ...] = ()) -> VirtualLoop:
    """Return a new loop. ``expected``: exceptions with which a background task may end."""
    # What it does not have (sockets, signals, threads) raises NotImplementedError, as asyncio's own base class does.
    return VirtualLoop(time_max_s=time_max_s, expected=expected)  # type: ignore[abstract]


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs callbacks in the order in which they were scheduled; the same program runs the same way every time."""

    def __init__(self, *, time_max_s: float, expected: tuple[type[Exception], ...]) -> None:
        self._expected = (*expected, asyncio.CancelledError)
        self._now_s = 0.0
        self._time_max_s = time_max_s
        self._scheduled_count = 0
        self._ready: deque[tuple[asyncio.Handle, str]] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle, str]] = []
        self._paused: dict[str, list[tuple[asyncio.Handle, str]]] = {}
        self._resumed_s: dict[str, float] = {}
        self._dead: set[str] = set()
        self._tasks: dict[str, list[asyncio.Task[Any]]] = {}
        self._is_running = False
        self._is_closed = False
        self.died: list[str] = []
        """Background tasks that ended with an exception that nobody expects: each is a defect."""

    # What the world does to a process

    def pause(self, owner: str) -> None:
        """Run nothing of ``owner`` until ``resume``; its timers fire late, as after SIGSTOP."""
        self._paused.setdefault(owner, [])

    def resume(self, owner: str) -> None:
        if owner in self._paused:
            self._ready.extend(self._paused.pop(owner))
            self._resumed_s[owner] = self._now_s

    def ran_s(self, owner: str, since_s: float) -> float:
        """Return for how long ``owner`` has been running without a pause, at most since ``since_s``."""
        return 0.0 if owner in self._paused else self._now_s - max(since_s, self._resumed_s.get(owner, 0.0))

    def is_paused(self, owner: str) -> bool:
        return owner in self._paused

    def kill(self, owner: str) -> None:
        """Cancel everything that ``owner`` runs; whatever it still starts while it unwinds never runs."""
        self._dead.add(owner)
        self.resume(owner)
        for task in self.tasks(owner):
            task.cancel()

    def tasks(self, owner: str) -> list[asyncio.Task[Any]]:
        """Return the unfinished tasks of an owner, oldest first."""
        return [task for task in self._tasks.get(owner, []) if not task.done()]

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run ``main`` to its end. Raises ``Deadlock``, ``OutOfTime`` or what it raised."""
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            task = self.create_task(main)
            while not task.done():
                self._run_ready()
            return task.result()
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)

    def drain(self) -> None:
        """Cancel every task and let all unwind, so that nothing outlives the run."""
        self._dead.update(self._tasks)
        asyncio._set_running_loop(self)
        try:
            for owner in list(self._tasks):
                self.kill(owner)
            while self._ready:
                self._run_ready()
        finally:
            asyncio._set_running_loop(None)
        self._timers.clear()
        self._is_closed = True

    def _run_ready(self) -> None:
        if not self._ready:
            self._advance()
        for _ in range(len(self._ready)):
            handle, owner = self._ready.popleft()
            if handle.cancelled():
                continue
            held = self._paused.get(owner)
            if held is not None:
                held.append((handle, owner))
            else:
                handle._run()

    def _advance(self) -> None:
        """Jump to the next timer."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if not self._timers:
            raise Deadlock("nothing is scheduled any more")
        self._now_s = max(self._now_s, self._timers[0][0])
        if self._now_s > self._time_max_s:
            raise OutOfTime(f"not finished after {self._time_max_s:.0f} virtual seconds")
        while self._timers and self._timers[0][0] <= self._now_s:
            _, _, handle, owner = heapq.heappop(self._timers)
            self._ready.append((handle, owner))

    # What asyncio asks of a loop

    def time(self) -> float:
        return self._now_s

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append((handle, context.get(OWNER, "world")))
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._scheduled_count += 1
        heapq.heappush(self._timers, (when, self._scheduled_count, handle, context.get(OWNER, "world")))
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        context = copy_context() if context is None else context
        owner = context.get(OWNER, "world")
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        tasks = self._tasks.setdefault(owner, [])
        tasks.append(task)
        if len(tasks) % PRUNE_EVERY_TASKS == 0:
            self._tasks[owner] = self.tasks(owner)
        if name != CALL:
            task.add_done_callback(self._look_at)
        if owner in self._dead:
            task.cancel()
        return task

    def _look_at(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, self._expected):
            self.died.append(f"{task.get_coro()} died: {error!r}")

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.died.append(f"{context.get('message')}: {error!r}")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to do: cancelled timers are passed over when their time comes."""
