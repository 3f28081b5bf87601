"""Streams that end before their time."""

from __future__ import annotations

from typing import Any

import httpx


async def read_broken(http: httpx.AsyncClient, path: str, request: dict[str, Any]) -> str:
    """Post ``request`` and return what came of the stream before the connection broke."""
    received = ""
    try:
        async with http.stream("POST", path, json=request) as stream:
            async for text in stream.aiter_text():
                received += text
    except httpx.RemoteProtocolError:
        return received
    raise AssertionError("the stream ended in order")
