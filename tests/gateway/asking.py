"""Requests of a case, buffered or streamed alike; every body and event is checked strictly against the SDK's types."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

import aiohttp
import msgspec
from openai import APIStatusError, AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from api.gateway.sse import FrameCutter

EVENTS: dict[str, type[BaseModel]] = {
    kind: model
    for model in get_args(get_args(ResponseStreamEvent)[0])
    for kind in get_args(model.model_fields["type"].annotation)
}
"""The SDK's type of an event, by its name: asked as the union, pydantic would try some fifty of them each time."""
TERMINALS = ("response.completed", "response.incomplete", "response.failed", "error")
EVENTUALLY_S = 20.0
"""Bound on what happens soon, on a machine that is busy."""
T = TypeVar("T")


@dataclass(slots=True)
class Asked:
    """What a client got for a request."""

    status: int
    """HTTP status."""
    response: Response | None = None
    """The response, of a stream that of its terminal."""
    error: dict[str, Any] = field(default_factory=dict)
    """The API's error, of an answer that is one."""
    events: list[dict[str, Any]] = field(default_factory=list)
    raw: bytes = b""

    @property
    def id(self) -> str:
        """The response's ID."""
        assert self.response is not None, self.error
        return self.response.id

    @property
    def text(self) -> str:
        """The response's text."""
        assert self.response is not None, self.error
        return self.response.output_text

    @property
    def types(self) -> list[str]:
        """The types of the events."""
        return [event["type"] for event in self.events]

    @property
    def code(self) -> str | None:
        """The code of the error."""
        return self.error.get("code")

    @property
    def reason(self) -> str | None:
        """The machine-readable reason of the error."""
        return self.error.get("reason")


async def ask(client: AsyncOpenAI, *, streamed: bool, **request: Any) -> Asked:
    """Ask for a response with the official client, and check all that comes back."""
    try:
        if not streamed:
            raw = await client.responses.with_raw_response.create(**request)
            body = await raw.http_response.aread()
            return Asked(200, checked_response(body), raw=body)
        async with client.responses.with_streaming_response.create(stream=True, **request) as raw_stream:
            return checked_stream(await raw_stream.http_response.aread())
    except APIStatusError as error:
        return refused(error)


def refused(error: APIStatusError) -> Asked:
    """Return an error as what was asked got it; its shape is checked."""
    body = error.response.json()
    assert set(body) == {"error"}, body
    assert {"message", "type", "param", "code"} <= set(body["error"]), body
    return Asked(error.status_code, error=body["error"], raw=error.response.content)


def checked_response(body: bytes) -> Response:
    """Return a response object; every field must have exactly the SDK's type."""
    return Response.model_validate_json(body, strict=True)


def checked_stream(raw: bytes) -> Asked:
    """Return a stream's events; each must have exactly the SDK's type, and a number one above the one before."""
    cutter = FrameCutter()
    frames = list(cutter.feed(raw))
    assert cutter.rest() is None, "the last frame has its blank line"
    events = []
    for frame in frames:
        if not frame.data or frame.data == b"[DONE]":
            continue
        event = msgspec.json.decode(frame.data)
        EVENTS[event["type"]].model_validate_json(frame.data, strict=True)
        assert frame.event == event["type"]
        events.append(event)
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(len(numbers))), numbers
    assert [event["type"] for event in events if event["type"] in TERMINALS] == [events[-1]["type"]], (
        "one terminal, last"
    )
    last = events[-1]
    response = None if "response" not in last else checked_response(msgspec.json.encode(last["response"]))
    error = {} if last["type"] != "response.failed" else last["response"]["error"]
    return Asked(200, response, error=error, events=events, raw=raw)


async def get_raw(client: AsyncOpenAI, path: str) -> tuple[int, bytes]:
    """GET a path of the gateway as this client, without the SDK in between."""
    return await send_raw(client, "GET", path)


async def ask_and_leave(client: AsyncOpenAI, *, events: int, **request: Any) -> list[dict[str, Any]]:
    """Ask for a stream, and close the connection once so many events have come; return those."""
    seen: list[dict[str, Any]] = []
    async with client.responses.with_streaming_response.create(stream=True, **request) as stream:
        cutter = FrameCutter()
        async for chunk in stream.http_response.aiter_raw():
            seen.extend(msgspec.json.decode(frame.data) for frame in cutter.feed(chunk) if frame.data)
            if len(seen) >= events:
                break
        await stream.http_response.aclose()
    return seen


async def eventually(look: Callable[[], Awaitable[T | None]]) -> T:
    """Return what ``look`` returns as soon as that is true."""
    async with asyncio.timeout(EVENTUALLY_S):
        while True:
            if seen := await look():
                return seen
            await asyncio.sleep(0.02)


def user(text: str) -> dict[str, Any]:
    """Return a user's message, as an input item and in the chat format alike."""
    return {"role": "user", "content": text}


def tool_output(call_id: str, output: str) -> dict[str, Any]:
    """Return the input item that answers a call."""
    return {"type": "function_call_output", "call_id": call_id, "output": output}


async def send_raw(client: AsyncOpenAI, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
    """Send a request to the gateway as this client, without the SDK in between; return status and body."""
    sent = {"authorization": f"Bearer {client.api_key}", **headers}
    url = f"{str(client.base_url).rstrip('/')}{path}"
    async with aiohttp.ClientSession(headers=sent) as session, session.request(method, url, json=body) as answer:
        return answer.status, await answer.read()
