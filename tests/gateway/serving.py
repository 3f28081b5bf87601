"""An ASGI application that listens in a test's event loop, as a gateway does in its process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp


@asynccontextmanager
async def listening(app: ASGIApp, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve ``app`` on loopback, on a free port if none is given, and give its URL; at the end its connections are
    dropped."""
    listener = socket.create_server((host, port))
    # asyncio sets it only on sockets that name their protocol; without it an answer in two parts takes 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None, access_log=False)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    # Not `serve`: it handles signals, and it ends only at its next tick.
    await server.startup([listener])
    try:
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        for listening_server in server.servers:
            listening_server.close()
        for connection in list(server.server_state.connections):
            if isinstance(connection.transport, asyncio.Transport):
                connection.transport.abort()
        await asyncio.gather(*server.server_state.tasks, return_exceptions=True)
        for listening_server in server.servers:
            await listening_server.wait_closed()
