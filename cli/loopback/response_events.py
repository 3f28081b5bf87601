"""The events of a response, from its first to its last, made from its final body."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cli.loopback.answer import argument_deltas, deltas
from cli.loopback.exchange import encode
from cli.loopback.items import Item

DELTAS = (
    "response.output_text.delta",
    "response.refusal.delta",
    "response.function_call_arguments.delta",
    "response.reasoning_summary_text.delta",
)
Event = dict[str, Any]


def events(body: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of a response that has ended, without sequence numbers.

    A failed one has the events of its output up to where it failed, and no output in its last event.
    """
    unused = {name: value for name, value in body.items() if name != "usage"}
    started = {**unused, "status": "in_progress", "output": [], "completed_at": None}
    started |= {"error": None, "incomplete_details": None}
    if body["background"]:
        queued = {**started, "status": "queued"}
        yield {"type": "response.created", "response": queued}
        yield {"type": "response.queued", "response": queued}
    else:
        yield {"type": "response.created", "response": started}
    yield {"type": "response.in_progress", "response": started}
    has_failed = body["status"] == "failed"
    for index, item in enumerate(body["output"]):
        for event in _item_events(item, index):
            if has_failed and event["type"] == "response.output_item.done":
                break
            yield event
    final = {**unused, "output": []} if has_failed else body
    yield {"type": f"response.{body['status']}", "response": final}


def frame(event: Event, number: int) -> bytes:
    """Return an event as it stands in a stream."""
    kind: str = event["type"]
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), encode({**event, "sequence_number": number}))


def _item_events(item: Item, index: int) -> Iterator[Event]:
    at = {"output_index": index}
    match item["type"]:
        case "message":
            opened, inner = {**item, "content": [], "status": "in_progress"}, _message_events(item, index)
        case "function_call":
            opened, inner = {**item, "arguments": "", "status": "in_progress"}, _call_events(item, index)
        case _:
            opened, inner = {**item, "summary": []}, _reasoning_events(item, index)
    yield {"type": "response.output_item.added", **at, "item": opened}
    yield from inner
    yield {"type": "response.output_item.done", **at, "item": item}


def _message_events(item: Item, index: int) -> Iterator[Event]:
    for content_index, part in enumerate(item["content"]):
        at = {"item_id": item["id"], "output_index": index, "content_index": content_index}
        # The text of a part has the name of its type in its own field: {"type": "refusal", "refusal": ...}.
        is_refusal = part["type"] == "refusal"
        field, kind = ("refusal", "response.refusal") if is_refusal else ("text", "response.output_text")
        extra: Event = {} if is_refusal else {"logprobs": []}
        yield {"type": "response.content_part.added", **at, "part": {**part, field: ""}}
        for delta in deltas(part[field]):
            yield {"type": f"{kind}.delta", **at, "delta": delta, **extra}
        yield {"type": f"{kind}.done", **at, field: part[field], **extra}
        yield {"type": "response.content_part.done", **at, "part": part}


def _call_events(item: Item, index: int) -> Iterator[Event]:
    at = {"item_id": item["id"], "output_index": index}
    for delta in argument_deltas(item["arguments"]):
        yield {"type": "response.function_call_arguments.delta", **at, "delta": delta}
    if item["status"] == "completed":
        named = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **at, **named}


def _reasoning_events(item: Item, index: int) -> Iterator[Event]:
    for summary_index, part in enumerate(item["summary"]):
        at = {"item_id": item["id"], "output_index": index, "summary_index": summary_index}
        yield {"type": "response.reasoning_summary_part.added", **at, "part": {**part, "text": ""}}
        for delta in deltas(part["text"]):
            yield {"type": "response.reasoning_summary_text.delta", **at, "delta": delta}
        yield {"type": "response.reasoning_summary_text.done", **at, "text": part["text"]}
        yield {"type": "response.reasoning_summary_part.done", **at, "part": part}
