"""Requests of a case, buffered or streamed alike; every body and event is checked strictly against the SDK's types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
from openai import APIStatusError, AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from api.gateway.sse import FrameCutter

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TERMINALS = ("response.completed", "response.incomplete", "response.failed", "error")


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
        EVENTS.validate_json(frame.data, strict=True)
        event = msgspec.json.decode(frame.data)
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
    headers = {"authorization": f"Bearer {client.api_key}"}
    url = f"{str(client.base_url).rstrip('/')}{path}"
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as answer:
        return answer.status, await answer.read()
