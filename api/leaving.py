"""Clients that go away before they are answered."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from starlette.types import Receive

CLIENT_LEFT = 499
"""Status of an answer that nobody reads any more, as nginx logs it."""
T = TypeVar("T")


async def unless_left(receive: Receive, task: asyncio.Task[T]) -> T:
    """Return what ``task`` returns; cancel it when the client leaves first."""
    leaving = asyncio.create_task(left(receive))
    try:
        await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not task.done():
            task.cancel()
    return await task


async def left(receive: Receive) -> None:
    """Return when the client has gone; whatever else it sends is of no interest."""
    while (await receive())["type"] != "http.disconnect":
        pass


def is_cancelled() -> bool:
    """Return whether somebody cancels the running task itself, and not only what it has waited for."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
