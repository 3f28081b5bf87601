"""A stored response as a stream: every event is one of the API's, and a client puts the response together again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI
from openai.types.responses import Response, ResponseOutputItem, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from api.gateway.events import Event, Item, events_of

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
RESPONSE: TypeAdapter[Response] = TypeAdapter(Response)

LOGPROB = {"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": [{"token": "b", "bytes": [], "logprob": -1.5}]}
CITATION = {"type": "url_citation", "url": "https://a.example", "title": "A", "start_index": 0, "end_index": 1}
MESSAGE: Item = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [
        {"type": "output_text", "text": "alpha", "annotations": [CITATION], "logprobs": [LOGPROB]},
        {"type": "refusal", "refusal": "no"},
    ],
}
REASONING: Item = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "short"}],
    "content": [{"type": "reasoning_text", "text": "long"}],
    "status": "completed",
}
ENCRYPTED: Item = {"id": "rs_2", "type": "reasoning", "summary": [], "encrypted_content": "x"}
CALL: Item = {
    "id": "fc_1",
    "type": "function_call",
    "call_id": "call_1",
    "name": "f",
    "arguments": '{"a":1}',
    "status": "completed",
}
CUSTOM: Item = {"id": "ctc_1", "type": "custom_tool_call", "call_id": "call_2", "name": "g", "input": "free"}
SEARCH: Item = {
    "id": "ws_1",
    "type": "web_search_call",
    "status": "completed",
    "action": {"type": "search", "query": "q", "queries": ["q"]},
}
ITEMS = [REASONING, ENCRYPTED, SEARCH, MESSAGE, CALL, CUSTOM]
USAGE = {
    "input_tokens": 1,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 2,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 3,
}


def response_of(output: Sequence[Item], status: str = "completed", **fields: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "completed_at": 2 if status == "completed" else None,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "auto",
        "output": list(output),
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": USAGE,
        **fields,
    }


def unknown_fields(value: Any) -> set[str]:
    """Return the fields that the SDK's types do not know, at any depth."""
    if isinstance(value, BaseModel):
        below = (unknown_fields(getattr(value, name)) for name in type(value).model_fields)
        return set(value.model_extra or ()).union(*below)
    return set().union(*(unknown_fields(entry) for entry in value)) if isinstance(value, list) else set()


def check_event(event: Event) -> None:
    """Fail unless the SDK's types take the event as it is, and as it is on the wire."""
    value = EVENT.validate_python(event, strict=True)
    assert EVENT.validate_json(json.dumps(event), strict=True) == value
    allowed = {"name"} if event["type"] == "response.function_call_arguments.done" else set()
    # The API's schema gives a custom tool call a status, as every other item has; the SDK's type has none.
    assert unknown_fields(value) <= allowed | {"status"}, event


def check_output(output: Sequence[Item]) -> None:
    for item in output:
        ITEM.validate_python(item, strict=True)
    RESPONSE.validate_python(response_of(output), strict=True)


def accumulated(events: Sequence[Event]) -> list[Item]:
    """Put the items together as a client does, from the deltas alone, and check every done event against them."""
    items: dict[int, Item] = {}
    done: dict[int, Item] = {}
    for event in events:
        index, verb = event.get("output_index", -1), event["type"].removeprefix("response.")
        item = items.get(index, {})
        assert index not in done, "an event after its item was done"
        if "item_id" in event:
            assert event["item_id"] == item["id"]
        if verb.startswith("reasoning_summary_"):
            parts, place = item["summary"], event["summary_index"]
        else:
            parts, place = item.get("content", []), event.get("content_index", -1)
        match verb.split("."):
            case ["output_item", "added"]:
                assert index == len(items), "items must be added in order"
                items[index] = json.loads(json.dumps(event["item"]))
            case ["output_item", "done"]:
                done[index] = event["item"]
                assert item == {**event["item"], **{key: item[key] for key in ("status",) if key in item}}
            case [_, "added"]:
                assert place == len(parts), "parts must be added in order"
                parts.append(dict(event["part"]))
            case ["output_text", "annotation", "added"]:
                assert event["annotation_index"] == len(parts[place]["annotations"])
                parts[place]["annotations"] = [*parts[place]["annotations"], event["annotation"]]
            case [("function_call_arguments" | "custom_tool_call_input") as kind, change]:
                field = "arguments" if kind == "function_call_arguments" else "input"
                assert change == "delta" or event[field] == item[field]
                item[field] += event.get("delta", "")
            case [("output_text" | "refusal" | "reasoning_text" | "reasoning_summary_text") as kind, "delta"]:
                parts[place]["refusal" if kind == "refusal" else "text"] += event["delta"]
            case ["content_part" | "reasoning_summary_part", "done"]:
                # Log probabilities of tokens without text of their own come with the part.
                assert event["part"].items() >= {k: v for k, v in parts[place].items() if k != "logprobs"}.items()
                parts[place] = event["part"]
            case [kind, "done"]:
                field = "refusal" if kind == "refusal" else "text"
                assert event[field] == parts[place][field]
            case _:
                pytest.fail(f"unknown event {event}")
    assert done.keys() == items.keys()
    return [done[index] for index in range(len(done))]


def as_the_sdk_streams(events: Sequence[Event]) -> tuple[list[str], Any]:
    """Return the types of the events that the SDK's stream helper made of these, and its final response."""
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    headers = {"content-type": "text/event-stream"}
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, text=body))
    with (
        httpx2.Client(transport=transport) as http,
        OpenAI(api_key="key", base_url="http://gateway.test/v1", http_client=http) as client,
        client.responses.stream(model="auto", input="alpha") as stream,
    ):
        types = [str(event.type) for event in stream]
        return types, stream.get_final_response()


def types_of(events: Sequence[Event]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


@pytest.mark.parametrize(
    ("status", "terminal"),
    [("completed", "completed"), ("incomplete", "incomplete"), ("failed", "failed"), ("cancelled", "failed")],
)
def test_stream_begins_empty_and_ends_with_the_response(status: str, terminal: str) -> None:
    response = response_of(ITEMS, status)
    events = events_of(response)
    assert types_of(events)[:2] == ["created", "in_progress"]
    assert types_of(events)[-1] == terminal
    assert events[-1]["response"] == response
    for event in events[:2]:
        begun = event["response"]
        assert (begun["status"], begun["output"], begun["completed_at"]) == ("in_progress", [], None)
        assert "usage" not in begun


def test_events_are_numbered_from_zero() -> None:
    events = events_of(response_of(ITEMS))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_every_event_is_one_of_the_api() -> None:
    for event in events_of(response_of(ITEMS)):
        check_event(event)


def test_failed_response_says_why_only_at_its_end() -> None:
    error = {"code": "server_error", "message": "The upstream failed."}
    events = events_of(response_of([], "failed", error=error))
    assert [event["response"]["error"] for event in events] == [None, None, error]
    for event in events:
        check_event(event)


def test_each_text_is_one_delta() -> None:
    events = events_of(response_of([REASONING, MESSAGE, CALL, CUSTOM]))
    assert [event["delta"] for event in events if "delta" in event] == [
        "short",
        "long",
        "alpha",
        "no",
        '{"a":1}',
        "free",
    ]


def test_empty_text_has_no_delta_but_its_part() -> None:
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    events = events_of(response_of([{**MESSAGE, "content": [part]}]))[2:-1]
    assert types_of(events) == [
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]


@pytest.mark.parametrize("item", [SEARCH, ENCRYPTED, {**CALL, "id": None}], ids=["search", "encrypted", "no_id"])
def test_item_without_texts_that_events_can_name_is_added_and_done(item: Item) -> None:
    events = events_of(response_of([item]))[2:-1]
    assert types_of(events) == ["output_item.added", "output_item.done"]
    assert events[-1]["item"] == item


def test_part_of_an_unknown_type_comes_with_its_item() -> None:
    item = {**MESSAGE, "content": [{"type": "new"}, MESSAGE["content"][1]]}
    events = events_of(response_of([item]))
    assert [event["content_index"] for event in events if "content_index" in event] == [1, 1, 1, 1]
    assert events[-2]["item"] == item


def test_end_of_the_arguments_names_the_function() -> None:
    done = [event for event in events_of(response_of([CALL, CUSTOM])) if event["type"].endswith("s.done")]
    assert [(event["name"], event["arguments"]) for event in done] == [("f", '{"a":1}')]


def test_item_is_added_in_progress_and_empty() -> None:
    added = [event["item"] for event in events_of(response_of(ITEMS)) if event["type"] == "response.output_item.added"]
    reasoning, encrypted, search, message, call, custom = added
    assert reasoning == {**REASONING, "summary": [], "content": [], "status": "in_progress"}
    assert encrypted == ENCRYPTED
    assert search == SEARCH
    assert message == {**MESSAGE, "content": [], "status": "in_progress"}
    assert call == {**CALL, "arguments": "", "status": "in_progress"}
    assert custom == {**CUSTOM, "input": ""}


def test_response_is_left_as_it_was() -> None:
    response = response_of(ITEMS)
    before = json.dumps(response)
    events_of(response)
    assert json.dumps(response) == before


def test_the_sdk_puts_the_response_together_again() -> None:
    response = response_of(ITEMS)
    events = events_of(response)
    types, final = as_the_sdk_streams(events)
    assert types == [event["type"] for event in events]
    assert [item.id for item in final.output] == [item["id"] for item in ITEMS]
    assert final.output_text == "alpha"


@given(st.lists(st.sampled_from(ITEMS), max_size=5))
def test_accumulated_events_give_the_output(items: list[Item]) -> None:
    output = [{**item, "id": f"{item['id']}_{number}"} for number, item in enumerate(items)]
    events = events_of(response_of(output))
    assert accumulated(events[2:-1]) == output
