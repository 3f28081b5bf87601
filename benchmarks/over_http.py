"""Figures of the service in a process of its own, called over loopback HTTP by this one."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

import aiohttp
import msgspec

from benchmarks.measure import Figure, timed
from benchmarks.processes import ledger_on_kafka, running
from benchmarks.workload import Load
from ledger.adapters.http import LedgerClient
from ledger.answer import Found
from ledger.turn import Scope
from ledger.wire import turn_body

SERVED_SCOPE = Scope(namespace="default", route="default", principal="local")
"""The only one of a service without an auth file."""
JSON = {"content-type": "application/json"}


async def all_figures(bootstrap: str, directory: Path, *, count: int) -> list[Figure]:
    """Measure one service on the embedded ledger and one on Kafka."""
    on_kafka = await ledger_on_kafka(bootstrap, directory, "http")
    figures = []
    for where, options in (("embedded, HTTP", []), ("Kafka, HTTP", on_kafka)):
        arguments = ["serve", "--port", "0", "--directory", str(directory / where), "--log-level", "error", *options]
        async with running(*arguments) as url:
            figures.extend(await _figures(url, where, count=count))
    return figures


async def _figures(url: str, where: str, *, count: int) -> list[Figure]:
    """Measure the service with aiohttp, which costs little itself, and once with the library's own client."""
    load = Load(seed=3, scopes=[SERVED_SCOPE])
    known = count // 10
    warm_up = count // 50
    lookup_url = f"{url}/ledger/v1/lookup"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=128)) as session, LedgerClient(url) as client:

        async def publish(_: int) -> None:
            body = msgspec.json.encode(turn_body(load.native()))
            async with session.post(f"{url}/ledger/v1/turns", data=body, headers=JSON) as answer:
                assert answer.status == HTTPStatus.OK, await answer.text()

        async def look_up(number: int) -> None:
            params = {"kind": "response", "id": load.response_id(number % known)}
            async with session.get(lookup_url, params=params) as answer:
                assert answer.status == HTTPStatus.OK, await answer.text()

        async def miss(number: int) -> None:
            async with session.get(lookup_url, params={"kind": "response", "id": f"unknown-{number}"}) as answer:
                assert answer.status == HTTPStatus.NOT_FOUND, await answer.text()

        async def look_up_with_client(number: int) -> None:
            assert isinstance(await client.load(load.selector(number % known)), Found)

        return [
            await timed("commit native, 1 at once", where, publish, count=known, concurrency=1, warm_up=warm_up),
            await timed("commit native, 64 at once", where, publish, count=count, concurrency=64, warm_up=warm_up),
            await timed("look-up, continuation", where, look_up, count=count, concurrency=1, warm_up=warm_up),
            await timed("look-up, 64 at once", where, look_up, count=count, concurrency=64, warm_up=warm_up),
            await timed("miss, strong", where, miss, count=count, concurrency=1, warm_up=warm_up),
            await timed(
                "look-up, LedgerClient", where, look_up_with_client, count=known, concurrency=1, warm_up=warm_up
            ),
        ]
