"""A loopback upstream that listens: in the event loop of a test or of the demo, or as a process of its own."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn
import uvloop

from cli.loopback.app import LoopbackApp
from cli.loopback.formats import Format
from cli.loopback.recorder import Recorded
from ledger.errors import InvalidInput

HOST = "127.0.0.1"
"""The only address: there is no key to keep others out."""
BACKLOG = 2048
"""Connections that wait to be accepted."""
KEEP_ALIVE_S = 75
"""Above the idle time of the clients' pools, so that no request meets a connection that is being closed."""

_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}")


class Loopback:
    """One upstream. Its state and what it has recorded outlive ``stop``; ``start`` listens on the same port again."""

    def __init__(
        self,
        name: str,
        *,
        port: int = 0,
        format: Format = Format.BOTH,
        api_key: str | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """``port``: 0 for any free one. ``api_key``: the only one that is let in. Raises ``InvalidInput``."""
        if _name.fullmatch(name) is None:
            raise InvalidInput("name", "takes 1 to 32 letters, digits and dashes: it is part of every ID")
        self.name = name
        self.app = LoopbackApp(name, format=format, api_key=api_key, now_s=now_s)
        self._port = port
        self._server: uvicorn.Server | None = None

    @property
    def url(self) -> str:
        """Address without a path; clients of the API add ``/v1``."""
        return f"http://{HOST}:{self._port}"

    async def start(self) -> None:
        """Listen. Raises ``InvalidInput`` when the port cannot be had."""
        assert self._server is None, "it runs already"
        try:
            listener = socket.create_server((HOST, self._port), backlog=BACKLOG)
        except OSError as error:
            raise InvalidInput("port", f"{self._port} cannot be had: {error.strerror or error}") from None
        # asyncio sets it only on sockets that name their protocol; without it an answer in two parts takes 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(
            self.app,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        # Not `serve`: it handles signals, and it ends only at its next tick, a tenth of a second that every test pays.
        await server.startup([listener])
        self._server = server

    async def stop(self) -> None:
        """Stop at once, as a provider that dies: connections are closed, answers under way too."""
        server, self._server = self._server, None
        if server is None:
            return
        for listening in server.servers:
            listening.close()
        self.app.close()
        state = server.server_state
        for connection in list(state.connections):
            transport = connection.transport
            if isinstance(transport, asyncio.Transport):
                transport.abort()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        for listening in server.servers:
            await listening.wait_closed()

    def recorded(self) -> list[Recorded]:
        """Return the requests to ``/v1/`` since the start or since ``forget``, in their order."""
        return list(self.app.recorder.requests)

    async def settled(self) -> None:
        """Wait until no request is under way: then all that is recorded has ended."""
        while self._server is not None and self._server.server_state.tasks:
            await asyncio.wait(list(self._server.server_state.tasks))

    def forget(self) -> None:
        """Forget what was recorded."""
        self.app.recorder.clear()

    def control(self, *, down: bool | None = None, delay_ms: int | None = None) -> None:
        """Set the switches that are given: answer 503 to every call, delay every answer."""
        switches = self.app.control
        switches.down = switches.down if down is None else down
        switches.delay_ms = switches.delay_ms if delay_ms is None else delay_ms


@asynccontextmanager
async def running_loopback(
    name: str,
    *,
    port: int = 0,
    format: Format = Format.BOTH,
    api_key: str | None = None,
    now_s: Callable[[], float] = time.time,
) -> AsyncIterator[Loopback]:
    """Run an upstream in this event loop."""
    loopback = Loopback(name, port=port, format=format, api_key=api_key, now_s=now_s)
    await loopback.start()
    try:
        yield loopback
    finally:
        await loopback.stop()


def run(loopback: Loopback) -> None:
    """Serve until SIGTERM or SIGINT; prints one line once it listens. Raises ``InvalidInput``."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(loopback))


async def _serve(loopback: Loopback) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await loopback.start()
    try:
        sys.stdout.write(f"turnledger loopback {loopback.name} on {loopback.url}\n")
        sys.stdout.flush()
        await stopping.wait()
    finally:
        await loopback.stop()
