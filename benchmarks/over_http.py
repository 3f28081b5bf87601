"""Figures of the service in a process of its own, called over loopback HTTP by this one."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import aiohttp
import msgspec

from benchmarks.in_process import ALIAS_KEY, kafka, prepare_kafka
from benchmarks.measure import Figure, timed
from benchmarks.workload import Load
from ledger.adapters.http import LedgerClient
from ledger.answer import Found
from ledger.turn import Scope
from ledger.wire import turn_body

SERVED_SCOPE = Scope(namespace="default", route="default", principal="local")
"""The only one of a service without an auth file."""
JSON = {"content-type": "application/json"}
READY_PREFIX = "turnledger serving on "


async def all_figures(bootstrap: str, directory: Path, *, count: int) -> list[Figure]:
    """Measure one service on the embedded ledger and one on Kafka."""
    settings = await prepare_kafka(bootstrap, f"http-{secrets.token_hex(4)}")
    async with kafka(settings, directory / "formatting"):
        pass
    key_file = directory / "alias.key"
    key_file.write_text(ALIAS_KEY.secret.hex())
    on_kafka = ["--bootstrap", bootstrap, "--prefix", settings.prefix, "--alias-key-file", str(key_file)]
    figures = []
    for where, options in (("embedded, HTTP", []), ("Kafka, HTTP", on_kafka)):
        async with _service(directory / where, options) as url:
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


@asynccontextmanager
async def _service(directory: Path, options: list[str]) -> AsyncIterator[str]:
    """Run ``turnledger serve`` on a free port and give its URL."""
    command = [sys.executable, "-m", "cli", "serve", "--port", "0", "--directory", str(directory), *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TURNLEDGER_")}
    process = await asyncio.create_subprocess_exec(
        *command, "--log-level", "error", stdout=subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.startswith(READY_PREFIX), "the service did not start; it says why on stderr"
        yield line.removeprefix(READY_PREFIX).strip()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()
