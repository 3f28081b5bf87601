"""The barrier: a read waits until the view has seen everything that was in the log when the read began.

The *read index* is the end of the partition as a validated leader names it (the high watermark). Readers that arrive
while a request for it is under way share the **next** one, never one that began before they did: an end asked for
earlier may lie below a record that was acknowledged since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ledger.errors import Unavailable
from ledger.log import EventLog
from ledger.replica import Replica
from ledger.turn import Partition, Position


class Barrier:
    """Read indexes of all partitions, shared by the readers of one process."""

    def __init__(self, log: EventLog, replica: Replica, *, request_timeout_s: float) -> None:
        self._log = log
        self._replica = replica
        self._request_timeout_s = request_timeout_s
        self._running: dict[Partition, asyncio.Task[Position]] = {}
        self._next: dict[Partition, asyncio.Task[Position]] = {}
        self.requests_count = 0
        self.on_passed: Callable[[float], None] | None = None
        """Gets the seconds that each passing took, for metrics."""

    async def pass_through(self, partition: Partition, *, timeout_s: float) -> None:
        """Return when the view holds every record that was acknowledged before this call.

        Raises ``Unavailable``: ``leader`` when no end could be had, ``lagging`` when the view did not get there in
        time, or what stopped the partition.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        state = self._replica.state(partition)
        end = await self._read_index(partition, timeout_s)
        state.end_seen = max(state.end_seen, end)
        await self._replica.reached(partition, end, timeout_s=max(0.0, timeout_s - (loop.time() - began_s)))
        state.confirmed_at_s = max(state.confirmed_at_s, began_s)
        if self.on_passed is not None:
            self.on_passed(loop.time() - began_s)

    async def _read_index(self, partition: Partition, timeout_s: float) -> Position:
        running = self._running.get(partition)
        if running is None:
            shared = self._running[partition] = _unattended(self._ask(partition))
        else:
            shared = self._next.get(partition) or _unattended(self._ask_after(partition, running))
            self._next[partition] = shared
        try:
            async with asyncio.timeout(timeout_s):
                # The request goes on for the others when one reader gives up.
                return await asyncio.shield(shared)
        except TimeoutError:
            message = f"the leader of partition {partition} did not name its end within {timeout_s:.3f} s"
            raise Unavailable("leader", message) from None

    async def _ask_after(self, partition: Partition, running: asyncio.Task[Position]) -> Position:
        await asyncio.wait([running])
        self._running[partition] = self._next.pop(partition)
        return await self._ask(partition)

    async def _ask(self, partition: Partition) -> Position:
        me = asyncio.current_task()
        self.requests_count += 1
        try:
            return await self._log.end(partition, timeout_s=self._request_timeout_s)
        finally:
            if self._running.get(partition) is me:
                del self._running[partition]

    async def close(self) -> None:
        """End the requests that are under way."""
        tasks = [*self._running.values(), *self._next.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _unattended(asking: Coroutine[Any, Any, Position]) -> asyncio.Task[Position]:
    """Return a request as a task that may fail when every reader has given up: nobody is told then, and need not be."""
    task = asyncio.create_task(asking)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task
