"""A response in the background: it goes on by itself, whoever is watching."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from cli.loopback.delivery import Frame
from cli.loopback.exchange import Exchange
from cli.loopback.response_events import DELTAS, events, frame
from cli.loopback.script import Script

STEP_S = 0.01
"""Time in each state when the script does not say: long enough to be seen, short enough for tests."""


class Background:
    """One response on its way: queued, in progress, ended. ``body`` is what GET answers."""

    def __init__(self, final: Mapping[str, Any], script: Script, on_end: Callable[[Mapping[str, Any]], None]) -> None:
        """``final``: the body it will have. ``on_end`` gets the last body, before anybody sees it."""
        self._events = events(final)
        self._script = script
        self._on_end = on_end
        self._frames: list[Frame] = []
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_ended = False
        self.body: Mapping[str, Any] = {}
        for _ in ("created", "queued"):
            self._emit(next(self._events))
        self._task = asyncio.create_task(self._run())

    def cancel(self) -> None:
        """End it now, unless it has ended; no event says so."""
        if not self.is_ended:
            self._task.cancel()
            self._end({**self.body, "status": "cancelled"})

    def close(self) -> None:
        """Stop working at it, as when a process ends."""
        self._task.cancel()

    async def follow(self, exchange: Exchange, first: int, cut: int | None = None) -> None:
        """Stream its events from number ``first`` on until it has ended. ``cut``: close after so many deltas."""
        await exchange.begin_stream()
        sent = 0
        while True:
            while first < len(self._frames):
                content, is_delta = self._frames[first]
                if is_delta and sent == cut:
                    await exchange.drop()
                await exchange.send(content)
                sent += is_delta
                first += 1
            if self.is_ended:
                break
            await exchange.wait_for(self._changed)
        await exchange.end_stream()

    async def _run(self) -> None:
        script = self._script
        if script.hangs:
            return
        await asyncio.sleep(script.delay_ms / 1000 or STEP_S)
        for event in self._events:
            if event["type"] in DELTAS and script.pause_ms:
                await asyncio.sleep(script.pause_ms / 1000)
            response = event.get("response", self.body)
            if response["status"] not in ("queued", "in_progress"):
                await asyncio.sleep(STEP_S)
                self._append(event)
                self._end(response)
            else:
                self._emit(event)

    def _emit(self, event: dict[str, Any]) -> None:
        self.body = event.get("response", self.body)
        self._append(event)
        self._notify()

    def _append(self, event: dict[str, Any]) -> None:
        self._frames.append((frame(event, len(self._frames)), event["type"] in DELTAS))

    def _end(self, body: Mapping[str, Any]) -> None:
        self.body = body
        self.is_ended = True
        self._on_end(body)
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)
