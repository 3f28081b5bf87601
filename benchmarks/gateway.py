"""Latency that the gateway adds: one request sent to the upstream directly and through the gateway, in turn.

Upstream and gateway are processes of their own; this one is the client. What goes to the upstream directly is, byte
for byte, what the gateway has sent it for the same request, so both do the same work.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from benchmarks.gateway_calls import BEGINNING, END, Buckets, Exchange, Post, between, compared, held
from benchmarks.measure import Added, Aim, added
from benchmarks.processes import ledger_on_kafka, running

CALLERS = (1, 32)
PRINCIPALS = max(CALLERS)
"""One per caller: callers of one tenant would all wait for one partition."""
NATIVE_MODEL, CHAT_MODEL = "loopback-responses", "loopback-chat"
"""The upstream has them under the same names, so that the gateway passes the client's bytes on."""
TURNS_REPLAYED = 20
TEXT = "The quick brown fox jumps over the lazy dog. " * 10
"""About 110 tokens."""
BUFFERED_QUESTION = f"{TEXT}!long(450)"
"""The directive asks the upstream for an answer of the same length."""
STREAMED_QUESTION = f"{TEXT}!long(90) !pause(2)"
"""An answer of ten deltas with 2 ms between them. All at once, as no model sends them, they would measure how fast a
burst is read."""
ADDED_AIM_MS, HELD_AIM_MS = 1.0, 3.0
EMBEDDED, KAFKA = "embedded", "Kafka"
CONTINUATION, STREAMED = "native continuation", "native continuation, streamed"
FIRST, TERMINAL = "to the first event", "to the terminal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of request."""

    name: str
    model: str
    turns_before: int
    """Turns that it continues; it names the last."""
    streamed: bool = False


KINDS = (
    Kind(name="new response, native", model=NATIVE_MODEL, turns_before=0),
    Kind(name=CONTINUATION, model=NATIVE_MODEL, turns_before=1),
    Kind(name=STREAMED, model=NATIVE_MODEL, turns_before=1, streamed=True),
    Kind(name=f"continuation, {TURNS_REPLAYED} turns replayed", model=CHAT_MODEL, turns_before=TURNS_REPLAYED),
)


async def all_figures(
    bootstrap: str, directory: Path, show: Callable[[list[Added]], None], *, count: int
) -> list[Added]:
    """Measure a gateway on the embedded log and one on Kafka, and show the rows as they come.

    ``count``: calls of one caller; 32 callers make four times as many.
    """
    on_kafka = await ledger_on_kafka(bootstrap, directory, "gateway")
    figures: list[Added] = []
    for where, options in ((EMBEDDED, []), (KAFKA, on_kafka)):
        async with _bench(directory, where, options) as bench:
            for kind in KINDS:
                exchanges = await bench.exchanges(kind)
                for callers in CALLERS:
                    calls = count if callers == 1 else 4 * count
                    rows = await bench.rows(kind, exchanges, where, callers=callers, count=calls)
                    show(rows)
                    figures.extend(rows)
    return figures


def aims(figures: Sequence[Added]) -> list[Aim]:
    """Return what was aimed at for one caller, and what came of it.

    That an answer is held for its commit has an aim of its own, so it does not count as added; nothing is held before
    the first event of a stream.
    """
    found = []
    for row in figures:
        if row.name == f"{CONTINUATION}, 1 at once":
            assert row.held_p50_ms is not None, "it is measured to its end"
            without_ms = row.added_p50_ms - row.held_p50_ms
            found.append(_aim(row, f"{CONTINUATION}: added p50, less held p50", ADDED_AIM_MS, without_ms))
            if row.where == KAFKA:
                found.append(_aim(row, f"{CONTINUATION}: held p50", HELD_AIM_MS, row.held_p50_ms))
        elif row.name == f"{STREAMED}, {FIRST}, 1 at once":
            found.append(_aim(row, f"{STREAMED}, {FIRST}: added p50", ADDED_AIM_MS, row.added_p50_ms))
    return found


def _aim(row: Added, name: str, aim_ms: float, measured_ms: float) -> Aim:
    return Aim(name=name, where=row.where, aim_ms=aim_ms, measured_ms=measured_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """A gateway, the upstream behind it, and the client."""

    session: aiohttp.ClientSession = field(repr=False)
    gateway_url: str
    upstream_url: str

    async def exchanges(self, kind: Kind) -> list[Exchange]:
        """Return a request of each principal, and what the upstream is sent for it."""
        posts = await asyncio.gather(*(self._prepared(kind, number) for number in range(PRINCIPALS)))
        # One after the other: the upstream does not know whose request it records.
        return [await self._exchange(post) for post in posts]

    async def rows(
        self, kind: Kind, exchanges: Sequence[Exchange], where: str, *, callers: int, count: int
    ) -> list[Added]:
        """Measure a kind of request."""
        before: list[Buckets] = []

        async def warmed_up() -> None:
            before.append(await held(self.session, self.gateway_url))

        direct, gateway = await compared(
            self.session, exchanges, streamed=kind.streamed, callers=callers, count=count, warmed_up=warmed_up
        )
        held_for = between(before[0], await held(self.session, self.gateway_url))
        assert round(held_for[-1][1]) == len(gateway), "every turn through the gateway is stored"
        await self._forget()
        spans: list[tuple[str, int, Buckets | None]] = [(kind.name, END, held_for)]
        if kind.streamed:
            spans = [(f"{kind.name}, {FIRST}", BEGINNING, None), (f"{kind.name}, {TERMINAL}", END, held_for)]
        return [
            added(
                f"{name}, {callers} at once",
                where,
                [timing[index] for timing in direct],
                [timing[index] for timing in gateway],
                held_to_here,
            )
            for name, index, held_to_here in spans
        ]

    async def _prepared(self, kind: Kind, number: int) -> Post:
        """Make the turns that a principal's request continues, and return the request."""
        last: str | None = None
        for _ in range(kind.turns_before):
            answer = await self._answer(self._post(kind.model, number, last))
            last = msgspec.json.decode(answer)["id"]
        return self._post(kind.model, number, last, streamed=kind.streamed)

    def _post(self, model: str, number: int, last: str | None, *, streamed: bool = False) -> Post:
        body: dict[str, Any] = {"model": model, "input": STREAMED_QUESTION if streamed else BUFFERED_QUESTION}
        if last is not None:
            body["previous_response_id"] = last
        if streamed:
            body["stream"] = True
        headers = {"authorization": f"Bearer {_key(number)}", "content-type": "application/json"}
        return Post(url=f"{self.gateway_url}/v1/responses", body=msgspec.json.encode(body), headers=headers)

    async def _exchange(self, post: Post) -> Exchange:
        await self._forget()
        await self._answer(post)
        async with self.session.get(f"{self.upstream_url}/recorded") as answer:
            (recorded,) = msgspec.json.decode(await answer.read())
        direct = Post(
            url=f"{self.upstream_url}{recorded['path']}",
            body=recorded["raw"].encode(),
            headers={"content-type": "application/json"},
        )
        return Exchange(direct=direct, gateway=post)

    async def _answer(self, post: Post) -> bytes:
        async with self.session.post(post.url, data=post.body, headers=post.headers) as answer:
            body: bytes = await answer.read()
            assert answer.status == HTTPStatus.OK, body
            return body

    async def _forget(self) -> None:
        """Let the upstream forget what it has recorded, which would fill its memory."""
        async with self.session.delete(f"{self.upstream_url}/recorded") as answer:
            assert answer.ok, await answer.text()


@asynccontextmanager
async def _bench(directory: Path, name: str, options: Sequence[str]) -> AsyncIterator[_Bench]:
    """Run an upstream and a gateway in front of it, each as a process."""
    async with (
        running("loopback", "--name", "bench", "--port", "0") as upstream_url,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        config = directory / f"{name}.yaml"
        config.write_bytes(msgspec.yaml.encode(_config(upstream_url)))
        arguments = ["gateway", "--config", str(config), "--port", "0", "--directory", str(directory / name)]
        async with running(*arguments, "--log-level", "error", *options) as gateway_url:
            yield _Bench(session=session, gateway_url=gateway_url, upstream_url=upstream_url)


def _config(upstream_url: str) -> dict[str, Any]:
    formats = {NATIVE_MODEL: "responses", CHAT_MODEL: "chat_completions"}
    return {
        "targets": [
            {"name": format, "base_url": f"{upstream_url}/v1", "format": format, "models": [model]}
            for model, format in formats.items()
        ],
        "keys": [
            {"sha256": hashlib.sha256(_key(number).encode()).hexdigest(), "principal": f"tenant-{number}"}
            for number in range(PRINCIPALS)
        ],
    }


def _key(number: int) -> str:
    return f"sk-bench-{number}"
