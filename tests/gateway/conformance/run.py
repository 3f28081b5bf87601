"""One conformance run: play everything, then judge every byte that the gateway sent."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from openai import AsyncOpenAI

from api.gateway.sse import FrameCutter
from cli.loopback.server import running_loopback
from tests.gateway.conformance.plays import Play, Stage, owner_down, plays
from tests.gateway.conformance.recorder import Exchange, Recorder, playing
from tests.gateway.conformance.schema import EVENTS, ApiSchema, Violation
from tests.gateway.world import Config, EmbeddedWorld, key_of

NAMES = ("p1", "p2", "c")
DONE = b"[DONE]"
PLAYS_AT_ONCE = 8
"""So that their commits share the disk's waits."""


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """What is counted together."""

    method: str
    path: str
    status: int
    what: str
    """``body``, or the type of an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A violation, and where it was seen first."""

    kind: Kind
    violation: Violation
    play: str


@dataclass(slots=True)
class Report:
    """What a run has checked and found."""

    checked: Counter[Kind] = field(default_factory=Counter)
    unknown: Counter[Kind] = field(default_factory=Counter)
    """What the schema says nothing about."""
    found: dict[tuple[Kind, str, str], Found] = field(default_factory=dict)

    def judge(self, schema: ApiSchema, exchange: Exchange) -> None:
        """Check all that came in one answer."""
        template = schema.operation(exchange.method, exchange.path)
        for what, value in _values(exchange):
            kind = Kind(exchange.method, template or exchange.path, exchange.status, what)
            if template is None and exchange.status >= 400:
                pointer = schema.of_error()
            elif template is None:
                pointer = None
            else:
                pointer = schema.of_answer(exchange.method, template, exchange.status, exchange.media_type)
            if pointer is None:
                self.unknown[kind] += 1
                continue
            self.checked[kind] += 1
            judged = schema.as_described(pointer, value)
            for violation in schema.violations(pointer, judged):
                found = Found(kind=kind, violation=violation, play=exchange.play)
                self.found.setdefault((kind, violation.path, violation.reason), found)


async def record() -> list[Exchange]:
    """Play every play on a fresh gateway and return what went over the wire."""
    recorder, places = Recorder(), asyncio.Semaphore(PLAYS_AT_ONCE)
    async with _stage(recorder) as stage:

        async def perform(name: str, play: Play) -> None:
            async with places:
                playing.set(name)
                await play(stage)

        async with asyncio.TaskGroup() as group:
            for name, play in plays().items():
                group.create_task(perform(name, play))
        # Alone: while the owner is away nobody else can be answered.
        await perform("owner down", owner_down)
    return recorder.exchanges


def judge(schema: ApiSchema, exchanges: list[Exchange]) -> Report:
    """Return what a schema says about what was recorded."""
    report = Report()
    for exchange in exchanges:
        report.judge(schema, exchange)
    return report


@asynccontextmanager
async def _stage(recorder: Recorder) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        p1, p2, c = [await stack.enter_async_context(running_loopback(name)) for name in NAMES]
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnledger-")))
        ports = {loopback.name: int(loopback.url.rpartition(":")[2]) for loopback in (p1, p2, c)}
        world = EmbeddedWorld(p1=p1, p2=p2, c=c, ports=ports, directory=directory)
        stack.push_async_callback(world.stop)
        await world.start()
        owned = await stack.enter_async_context(world.another(_only_p1))
        http_client = await stack.enter_async_context(httpx2.AsyncClient(transport=recorder, timeout=30))

        def client(url: str, key: str) -> AsyncOpenAI:
            return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=http_client)

        url, key = world.replicas[0].url, key_of(world.alice)
        yield Stage(
            world=world, client=client(url, key), stranger=client(url, "sk-unknown"), owned=client(owned.url, key)
        )


def _only_p1(config: Config) -> None:
    targets = [{"target": "p1", "model": "loopback"}]
    config["models"] = [
        {"name": "auto", "policy": "first_healthy", "targets": targets, "forwards_unknown": True},
    ]
    # What only the target knows, only one principal may name.
    config["keys"] = config["keys"][:1]


def _values(exchange: Exchange) -> Iterator[tuple[str, Any]]:
    """Yield every JSON value of an answer, with the name of what it is."""
    if exchange.media_type != EVENTS:
        yield "body", json.loads(bytes(exchange.body))
        return
    cutter = FrameCutter()
    for frame in cutter.feed(bytes(exchange.body)):
        if frame.data and frame.data != DONE:
            event = json.loads(frame.data)
            yield event["type"], event
