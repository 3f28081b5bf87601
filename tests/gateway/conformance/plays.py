"""What a conformance run asks of the gateway: every route, and every kind of answer that it gives.

A play is a coroutine that asks through the official client. It judges nothing; what came back was recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import openai
from openai import AsyncOpenAI

from tests.gateway.conformance.items import ITEMS
from tests.gateway.world import EmbeddedWorld

Request = dict[str, Any]

TOOLS: Any = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}, "strict": False}
    for name in ("a", "b", "c")
]
PIXEL = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
ANSWERS: dict[str, Request] = {
    "text": {"input": "alpha"},
    "messages": {
        "input": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "alpha"}]},
            {"role": "assistant", "content": "beta"},
            {"type": "message", "role": "user", "content": "gamma"},
        ]
    },
    "every parameter": {
        "input": "alpha",
        "instructions": "Be brief.",
        "max_output_tokens": 100,
        "metadata": {"ticket": "7"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": "auto"},
        "safety_identifier": "s",
        "service_tier": "auto",
        "temperature": 0.5,
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "tool_choice": {"type": "function", "name": "a"},
        "tools": [{"type": "function", "name": "a", "parameters": SCHEMA, "strict": True, "description": "A."}],
        "top_p": 0.5,
        "truncation": "auto",
        "user": "u",
    },
    "not stored": {"input": "alpha", "store": False},
    "tool call": {"input": '!tool(a, {"city": "Oslo"}, call_7)', "tools": TOOLS},
    "parallel calls": {
        "input": "!reasoning(x) !tool(a, {}, c1) !tool(b, {}, c2) !tool(c, {}, c3) !between",
        "tools": TOOLS,
    },
    "text and call": {"input": "!say(calling) !tool(a)", "tools": TOOLS, "tool_choice": "required"},
    "half a call": {"input": "!half", "tools": TOOLS},
    "allowed tools": {
        "input": "alpha",
        "tools": TOOLS,
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "a"}],
        },
    },
    "custom tool": {
        "input": "alpha",
        "tools": [
            {"type": "custom", "name": "d", "format": {"type": "grammar", "syntax": "regex", "definition": ".*"}}
        ],
    },
    "reasoning": {"input": "!reasoning(think) alpha", "include": ["reasoning.encrypted_content"]},
    "reasoning with summary": {"input": "!reasoning(think) alpha", "reasoning": {"effort": "high", "summary": "auto"}},
    "refusal": {"input": "!refuse(no)"},
    "image": {
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is this?"},
                    {"type": "input_image", "image_url": PIXEL},
                    {"type": "input_image", "image_url": PIXEL, "detail": "low"},
                ],
            }
        ]
    },
    "file": {
        "input": [
            {
                "role": "user",
                "content": [{"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,YQ=="}],
            }
        ]
    },
    "structured": {
        "input": "!json Oslo",
        "text": {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}},
    },
    "any JSON": {"input": "!json Oslo", "text": {"format": {"type": "json_object"}}},
    "log probabilities": {"input": "alpha", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "incomplete by length": {"input": "!length !say(one two three four)", "max_output_tokens": 16},
    "incomplete by filter": {"input": "!filter !say(one two three four)"},
    "failed": {"input": "!fail"},
    "cut off": {"input": "!cut(2) !say(one two three four)"},
    "refused by the target": {"input": "!status(429)"},
    "broken target": {"input": "!status(500)"},
    "calls replayed": {
        "input": [
            {"role": "user", "content": "alpha"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "p1:x"},
            {"type": "function_call", "call_id": "c1", "name": "a", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "b", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c2", "output": "2"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "1"}]},
        ],
        "tools": TOOLS,
    },
}
"""Requests by the kind of answer they get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where a play is played."""

    world: EmbeddedWorld
    client: AsyncOpenAI
    stranger: AsyncOpenAI
    """A client whose key the gateway does not know."""
    owned: AsyncOpenAI
    """A client of a replica whose one target is p1, and which forwards what it does not know."""


Play = Callable[[Stage], Awaitable[None]]


def plays() -> dict[str, Play]:
    """Return every play by its name."""
    named: dict[str, Play] = {}
    for place in ("native", "chat", "replayed"):
        for kind, request in ANSWERS.items():
            for streamed in (False, True):
                named[f"{place}, {kind}{', streamed' if streamed else ''}"] = _answer(place, request, streamed=streamed)
    for model, place in (("auto", "native"), ("chat", "chat")):
        for streamed in (False, True):
            suffix = ", streamed" if streamed else ""
            named[f"{place}, background{suffix}"] = _background(model, "!delay(150) alpha", streamed=streamed)
            named[f"{place}, background fails{suffix}"] = _background(model, "!fail", streamed=streamed)
            named[f"{place}, idempotent repeat{suffix}"] = _repeat(model, streamed=streamed)
        named[f"{place}, background cancelled"] = _cancelled(model)
        named[f"{place}, continuation"] = _continued(model)
    named["conversation"] = _conversation
    named["conversation of a target"] = _owned_conversation
    named["models"] = _models
    named["refusals"] = _refusals
    named |= {f"item {kind}": _item(item) for kind, item in ITEMS.items()}
    return named


def _answer(place: str, request: Request, *, streamed: bool) -> Play:
    async def play(stage: Stage) -> None:
        client, asked = stage.client, {"model": "chat" if place == "chat" else "auto", **request}
        if place == "replayed":
            asked["conversation"] = (await client.conversations.create()).id
        response_id = await _ask(client, streamed=streamed, **asked)
        if response_id is not None and asked.get("store", True):
            await _look_at(client, response_id)
        if place == "replayed":
            await client.conversations.items.list(asked["conversation"])

    return play


async def _ask(client: AsyncOpenAI, *, streamed: bool, **request: Any) -> str | None:
    """Ask for a response, and return the ID of what came of it."""
    response_id = None
    with contextlib.suppress(openai.APIError):
        if not streamed:
            return (await client.responses.create(**request)).id
        async for event in await client.responses.create(stream=True, **request):
            if event.type == "response.created":
                response_id = event.response.id
    return response_id


async def _look_at(client: AsyncOpenAI, response_id: str) -> None:
    """Ask for all that there is of a response, then delete it."""
    responses = client.responses
    with contextlib.suppress(openai.APIStatusError):
        await responses.retrieve(response_id)
        async for _ in await responses.retrieve(response_id, stream=True):
            pass
        async for _ in await responses.retrieve(response_id, stream=True, starting_after=2):
            pass
        await responses.input_items.list(response_id, order="asc", include=["message.input_image.image_url"])
        await responses.delete(response_id)


def _background(model: str, text: str, *, streamed: bool) -> Play:
    async def play(stage: Stage) -> None:
        response_id = await _ask(stage.client, streamed=streamed, model=model, input=text, background=True)
        assert response_id is not None, "a background response begins"
        async for _ in await stage.client.responses.retrieve(response_id, stream=True):
            pass
        await _ended(stage.client, response_id)
        await _look_at(stage.client, response_id)

    return play


async def _ended(client: AsyncOpenAI, response_id: str) -> None:
    async with asyncio.timeout(30):
        while True:
            response = await client.responses.retrieve(response_id)
            if response.status not in ("queued", "in_progress"):
                return
            await asyncio.sleep(0.02)


def _cancelled(model: str) -> Play:
    async def play(stage: Stage) -> None:
        response_id = await _ask(stage.client, streamed=False, model=model, input="!hang", background=True)
        assert response_id is not None, "a background response begins"
        await stage.client.responses.retrieve(response_id)
        await stage.client.responses.cancel(response_id)
        await _ended(stage.client, response_id)
        await stage.client.responses.cancel(response_id)
        await _look_at(stage.client, response_id)

    return play


def _continued(model: str) -> Play:
    async def play(stage: Stage) -> None:
        create = stage.client.responses.create
        first = await create(model=model, input="!reasoning(x) !tool(a, {}, c1) !tool(b, {}, c2)", tools=TOOLS)
        outputs: Any = [
            {"type": "function_call_output", "call_id": call_id, "output": "done"} for call_id in ("c2", "c1")
        ]
        second = await create(model=model, input=outputs, previous_response_id=first.id)
        referring: Any = [{"type": "item_reference", "id": second.output[-1].id}, {"role": "user", "content": "beta"}]
        third = await create(model=model, input=referring)
        await stage.client.responses.input_items.list(third.id)
        for response in (first, second, third):
            await _look_at(stage.client, response.id)

    return play


def _repeat(model: str, *, streamed: bool) -> Play:
    async def play(stage: Stage) -> None:
        headers = {"Idempotency-Key": f"{model}-{streamed}"}
        for text in ("alpha", "alpha", "another"):
            await _ask(stage.client, streamed=streamed, model=model, input=text, extra_headers=headers)

    return play


async def _conversation(stage: Stage) -> None:
    client, conversations = stage.client, stage.client.conversations
    made = await conversations.create(metadata={"ticket": "7"}, items=[{"role": "user", "content": "alpha"}])
    await conversations.items.list(made.id)
    for model in ("chat", "auto", "chat"):
        await client.responses.create(model=model, input="!reasoning(x) beta", conversation={"id": made.id})
    await conversations.retrieve(made.id)
    await conversations.update(made.id, metadata={"ticket": "8"})
    items: Any = [
        {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]},
        {"type": "message", "role": "assistant", "content": "gamma"},
        {"type": "message", "role": "system", "content": "Be brief."},
    ]
    added = await conversations.items.create(made.id, items=items, include=["message.input_image.image_url"])
    page = await conversations.items.list(made.id, limit=2, order="asc")
    async for _ in page:
        pass
    item_id = added.data[0].id
    assert item_id is not None, "what was added has an ID"
    await conversations.items.retrieve(item_id, conversation_id=made.id)
    await conversations.items.delete(item_id, conversation_id=made.id)
    await conversations.delete(made.id)
    with contextlib.suppress(openai.NotFoundError):
        await conversations.retrieve(made.id)


async def _owned_conversation(stage: Stage) -> None:
    """A conversation that was made at a target directly, and lives there."""
    async with AsyncOpenAI(base_url=f"{stage.world.p1.url}/v1", api_key="none", max_retries=0) as direct:
        made = await direct.conversations.create(metadata={})
    client, conversations = stage.owned, stage.owned.conversations
    for text in ("alpha", "!reasoning(x) !tool(a)"):
        await client.responses.create(model="auto", input=text, conversation=made.id, tools=TOOLS)
    await conversations.retrieve(made.id)
    await conversations.update(made.id, metadata={"ticket": "8"})
    await conversations.items.create(made.id, items=[{"type": "message", "role": "user", "content": "beta"}])
    page = await conversations.items.list(made.id, limit=2)
    item_id = page.data[0].id
    assert item_id is not None, "what is listed has an ID"
    await conversations.items.retrieve(item_id, conversation_id=made.id)
    await conversations.items.delete(item_id, conversation_id=made.id)
    await conversations.delete(made.id)


async def _models(stage: Stage) -> None:
    async for model in await stage.client.models.list():
        await stage.client.models.retrieve(model.id)


async def _refusals(stage: Stage) -> None:
    client = stage.client
    create, conversations = client.responses.create, client.conversations
    made = await conversations.create()
    stored = await create(model="chat", input="alpha")
    unheard_of: Any = [{"type": "unheard-of"}]
    refused: list[Awaitable[Any]] = [
        create(model="unknown", input="alpha"),
        create(model="auto", input="alpha", previous_response_id="resp_unknown"),
        create(model="auto", input="alpha", previous_response_id=stored.id, conversation=made.id),
        create(model="chat", input=[{"type": "function_call_output", "call_id": "c", "output": "x"}]),
        create(model="chat", input=[{"type": "item_reference", "id": "msg_unknown"}]),
        create(model="chat", input="alpha", tools=[{"type": "web_search"}]),
        create(model="chat", input="alpha", temperature=3),
        create(model="chat", input="alpha", metadata={"key": "x" * 513}),
        create(model="chat", input="alpha", background=True, store=False),
        create(model="chat", input=unheard_of),
        client.responses.retrieve("resp_unknown"),
        client.responses.delete("resp_unknown"),
        client.responses.cancel("resp_unknown"),
        client.responses.cancel(stored.id),
        client.responses.input_items.list("resp_unknown"),
        client.responses.input_items.list(stored.id, limit=101),
        client.responses.input_items.list(stored.id, after="msg_unknown"),
        conversations.retrieve("conv_unknown"),
        conversations.update("conv_unknown", metadata={}),
        conversations.delete("conv_unknown"),
        conversations.items.list("conv_unknown"),
        conversations.items.create("conv_unknown", items=[{"role": "user", "content": "alpha"}]),
        conversations.items.create(made.id, items=[{"role": "user", "content": "alpha"}] * 21),
        conversations.items.create(made.id, items=[]),
        conversations.items.retrieve("msg_unknown", conversation_id=made.id),
        conversations.items.delete("msg_unknown", conversation_id=made.id),
        client.models.retrieve("unknown"),
        client.responses.input_tokens.count(model="chat", input="alpha"),
        client.responses.compact(model="chat", input="alpha"),
        client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "alpha"}]),
        stage.stranger.models.list(),
        stage.stranger.responses.create(model="auto", input="alpha"),
    ]
    for asking in refused:
        with contextlib.suppress(openai.APIStatusError):
            await asking


async def owner_down(stage: Stage) -> None:
    """Ask for what a target owns that does not answer."""
    first = await stage.client.responses.create(model="auto", input="alpha")
    await stage.world.p1.stop()
    try:
        for streamed in (False, True):
            await _ask(stage.client, streamed=streamed, model="auto", input="beta", previous_response_id=first.id)
        with contextlib.suppress(openai.APIStatusError):
            await stage.client.responses.retrieve(first.id)
    finally:
        await stage.world.p1.start()


def _item(item: Any) -> Play:
    """Add an item to a conversation, and see it in each of the forms that it is answered in."""

    async def play(stage: Stage) -> None:
        conversations = stage.client.conversations
        made = await conversations.create(items=[item])
        added = await conversations.items.create(made.id, items=[item])
        await conversations.items.list(made.id)
        await conversations.items.retrieve(str(added.data[0].id), conversation_id=made.id)

    return play
