"""Chunks become events and, in the end, the answer that the same completion gives in one piece."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.gateway.chat_answer import Answered, ChatAnswerBroken, answered
from api.gateway.chat_stream import ChatStream
from api.gateway.events import Event, Item, opening, terminal
from tests.gateway.test_chat_answer import USAGE, completion_of, custom_call, function_call, numbered_ids
from tests.gateway.test_events import (
    accumulated,
    as_the_sdk_streams,
    check_event,
    check_output,
    response_of,
    types_of,
)

END = {"choices": [], "usage": USAGE}
CITED: dict[str, Any] = {
    "type": "url_citation",
    "url_citation": {"url": "https://a.example", "title": "A", "start_index": 0, "end_index": 5},
}


def chunk(delta: dict[str, Any] | None = None, finish_reason: str | None = None, **choice: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish_reason, "logprobs": None, **choice}],
        "usage": None,
    }


def call_piece(index: int | None, *, id: str | None = None, name: str | None = None, text: str = "") -> dict[str, Any]:
    piece: dict[str, Any] = {"index": index, "id": id, "type": "function" if id else None}
    return {"tool_calls": [{**piece, "function": {"name": name, "arguments": text}}]}


def streamed(chunks: Iterable[dict[str, Any]]) -> tuple[list[Event], Answered]:
    """Feed and finish; every event and the items are checked, and the events must accumulate to the items."""
    stream, events = ChatStream(numbered_ids()), []
    for value in chunks:
        events += stream.feed(value)
    closing, answer = stream.finish()
    events += closing
    for number, event in enumerate(events):
        check_event({**event, "sequence_number": number})
    check_output(answer.output)
    assert accumulated(events) == answer.output
    return events, answer


def cut(chunks: Iterable[dict[str, Any]]) -> tuple[list[Item], ChatAnswerBroken]:
    """Feed and fail to finish; return what is left and why."""
    stream = ChatStream(numbered_ids())

    def run() -> None:
        for value in chunks:
            stream.feed(value)
        stream.finish()

    with pytest.raises(ChatAnswerBroken) as caught:
        run()
    partial = stream.partial()
    check_output(partial)
    return partial, caught.value


def without_ids(output: Sequence[Item]) -> list[Item]:
    return [{key: value for key, value in item.items() if key != "id"} for item in output]


def deltas_of(events: Sequence[Event], type: str) -> list[str]:
    return [event["delta"] for event in events if event["type"] == f"response.{type}.delta"]


def texts_of(output: Sequence[Item]) -> list[str]:
    return [part.get("text", part.get("refusal")) for item in output for part in item.get("content", [])]


def test_text_streams_as_one_message() -> None:
    chunks = [chunk({"role": "assistant", "content": ""}), chunk({"content": "al"}), chunk({"content": "pha"})]
    events, answer = streamed([*chunks, chunk(finish_reason="stop"), END])
    assert types_of(events) == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert answer == answered(completion_of({"content": "alpha"}), numbered_ids())


def test_reasoning_closes_when_text_begins_and_text_when_a_call_begins() -> None:
    chunks = [
        chunk({"role": "assistant", "content": None, "reasoning_content": "hm"}),
        chunk({"content": "alpha"}),
        chunk(call_piece(0, id="call_1", name="f")),
        chunk(call_piece(0, text="{}")),
        chunk(finish_reason="tool_calls"),
    ]
    events, answer = streamed(chunks)
    assert types_of(events) == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    message = {"reasoning_content": "hm", "content": "alpha", "tool_calls": [function_call()]}
    assert answer == answered(completion_of(message, usage=None), numbered_ids())


def test_refusal_after_text_is_a_second_part() -> None:
    events, answer = streamed([chunk({"content": "alpha"}), chunk({"refusal": "no"}), chunk(finish_reason="stop")])
    assert texts_of(answer.output) == ["alpha", "no"]
    assert [event["content_index"] for event in events if "delta" in event] == [0, 1]


def test_parallel_calls_may_interleave() -> None:
    chunks = [
        chunk(call_piece(0, id="call_1", name="f", text='{"a"')),
        chunk(call_piece(1, id="call_2", name="g", text="{")),
        chunk(call_piece(0, text=":1}")),
        chunk(call_piece(1, text="}")),
        chunk(finish_reason="tool_calls"),
    ]
    events, answer = streamed(chunks)
    assert [(item["call_id"], item["arguments"]) for item in answer.output] == [("call_1", '{"a":1}'), ("call_2", "{}")]
    assert [event["output_index"] for event in events] == [0, 0, 1, 1, 0, 1, 0, 0, 1, 1]


def test_calls_in_one_chunk_open_in_its_order() -> None:
    pieces = [{"index": index, **function_call(f"call_{index}")} for index in range(3)]
    _, answer = streamed([chunk({"tool_calls": pieces}), chunk(finish_reason="tool_calls")])
    assert [item["call_id"] for item in answer.output] == ["call_0", "call_1", "call_2"]


def test_custom_call_streams_its_input() -> None:
    first = {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "g", "input": "fr"}}
    rest = {"index": 0, "custom": {"input": "ee"}}
    chunks = [chunk({"tool_calls": [first]}), chunk({"tool_calls": [rest]}), chunk(finish_reason="tool_calls")]
    events, answer = streamed(chunks)
    assert deltas_of(events, "custom_tool_call_input") == ["fr", "ee"]
    assert without_ids(answer.output) == [
        {"type": "custom_tool_call", "call_id": "call_1", "name": "g", "input": "free", "status": "completed"}
    ]


def test_call_keeps_the_type_that_it_was_opened_with() -> None:
    stray = {"tool_calls": [{"index": 0, "type": "custom", "custom": {"input": "}"}}]}
    chunks = [chunk(call_piece(0, id="call_1", name="f", text="{")), chunk(stray), chunk(finish_reason="stop")]
    _, answer = streamed(chunks)
    assert [(item["type"], item["arguments"]) for item in answer.output] == [("function_call", "{}")]


def test_arguments_wait_until_the_call_has_an_id_and_a_name() -> None:
    chunks = [
        chunk(call_piece(0, name="f", text="{")),
        chunk(call_piece(0, id="call_1", text='"a"')),
        chunk(call_piece(0, text=":1}")),
        chunk(finish_reason="tool_calls"),
    ]
    events, _ = streamed(chunks)
    assert deltas_of(events, "function_call_arguments") == ['{"a"', ":1}"]


def test_repeated_id_and_name_are_those_of_the_same_call() -> None:
    pieces = [call_piece(0, id="call_1", name="f", text=text) for text in ("{", "}")]
    _, answer = streamed([*(chunk(piece) for piece in pieces), chunk(finish_reason="tool_calls")])
    assert [(item["name"], item["arguments"]) for item in answer.output] == [("f", "{}")]


def test_another_id_without_a_name_is_of_the_same_call() -> None:
    pieces = [call_piece(0, id="call_1", name="f", text="{"), call_piece(0, id="call_9", text="}")]
    _, answer = streamed([*(chunk(piece) for piece in pieces), chunk(finish_reason="tool_calls")])
    assert [(item["call_id"], item["arguments"]) for item in answer.output] == [("call_1", "{}")]


@pytest.mark.parametrize("index", [0, None])
def test_another_id_with_a_name_is_another_call_even_at_the_same_index(index: int | None) -> None:
    pieces = [call_piece(index, id=f"call_{number}", name="f", text="{}") for number in range(2)]
    _, answer = streamed([*(chunk(piece) for piece in pieces), chunk(finish_reason="tool_calls")])
    assert [item["call_id"] for item in answer.output] == ["call_0", "call_1"]


def test_text_after_a_call_is_a_message_of_its_own() -> None:
    chunks = [
        chunk({"content": "alpha"}),
        chunk(call_piece(0, id="call_1", name="f", text="{}")),
        chunk({"content": "beta"}),
        chunk(finish_reason="stop"),
    ]
    _, answer = streamed(chunks)
    assert [item["type"] for item in answer.output] == ["message", "function_call", "message"]
    assert texts_of(answer.output) == ["alpha", "beta"]


def test_empty_content_alone_is_an_empty_message() -> None:
    events, answer = streamed([chunk({"role": "assistant", "content": ""}), chunk(finish_reason="stop")])
    assert texts_of(answer.output) == [""]
    assert deltas_of(events, "output_text") == []


def test_empty_content_before_calls_is_no_message() -> None:
    piece = call_piece(0, id="call_1", name="f", text="{}")
    _, answer = streamed([chunk({"role": "assistant", "content": ""}), chunk(piece), chunk(finish_reason="stop")])
    assert [item["type"] for item in answer.output] == ["function_call"]


def test_citations_join_the_open_text() -> None:
    annotations = {"annotations": [CITED]}
    chunks = [chunk(annotations), chunk({"content": "alpha"}), chunk(annotations), chunk(finish_reason="stop")]
    events, answer = streamed(chunks)
    assert answer.output[0]["content"][0]["annotations"] == [{"type": "url_citation", **CITED["url_citation"]}] * 2
    assert [event["annotation_index"] for event in events if "annotation" in event] == [0, 1]


def test_log_probabilities_come_with_their_text() -> None:
    entries: list[dict[str, Any]] = [
        {"token": token, "logprob": -1.0, "bytes": None, "top_logprobs": []} for token in "abc"
    ]
    one, two, three = entries
    chunks = [
        chunk({"content": ""}, logprobs={"content": [one]}),
        chunk({"content": "ab"}, logprobs={"content": [two]}),
        chunk({"content": ""}, logprobs={"content": [three]}),
        chunk({}, "stop", logprobs={"content": [one]}),
    ]
    events, answer = streamed(chunks)
    delta = next(event for event in events if "delta" in event)
    assert [entry["token"] for entry in delta["logprobs"]] == ["a", "b"]
    assert [entry["token"] for entry in answer.output[0]["content"][0]["logprobs"]] == ["a", "b", "c"]


def test_cut_answer_is_incomplete_where_it_was_cut() -> None:
    chunks = [chunk({"content": "alpha"}), chunk(call_piece(0, id="call_1", name="f", text='{"a')), chunk({}, "length")]
    _, answer = streamed(chunks)
    assert (answer.status, answer.incomplete_details) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in answer.output] == ["completed", "incomplete"]


def test_last_count_of_the_usage_is_told() -> None:
    early = {**chunk({"content": "alpha"}), "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}}
    _, answer = streamed([early, chunk(finish_reason="stop"), END, {"choices": [], "usage": None}])
    assert answer.usage is not None
    assert answer.usage["total_tokens"] == 12


def test_chunks_without_delta_and_other_choices_say_nothing() -> None:
    other = chunk({"content": "beta"}, index=1)
    filtered = chunk(delta=None, content_filter_results={})
    del filtered["choices"][0]["delta"]
    stream = ChatStream(numbered_ids())
    for value in (chunk(), chunk({"role": "assistant"}), other, filtered, END, {"choices": None}, {"error": None}):
        assert stream.feed(value) == []
    assert stream.partial() == []


def test_the_sdk_puts_the_answer_together_again() -> None:
    chunks = [
        chunk({"reasoning": "hm"}),
        chunk({"content": "alpha"}),
        chunk(call_piece(0, id="call_1", name="f", text="{")),
        chunk(call_piece(1, id="call_2", name="g", text="{}")),
        chunk(call_piece(0, text="}")),
        chunk(finish_reason="tool_calls"),
        END,
    ]
    events, answer = streamed(chunks)
    response = response_of(answer.output)
    whole = [*opening(response), *events, terminal(response)]
    types, final = as_the_sdk_streams([{**event, "sequence_number": number} for number, event in enumerate(whole)])
    assert types == [event["type"] for event in whole]
    assert final.output_text == "alpha"
    assert [item.id for item in final.output] == [item["id"] for item in answer.output]


@pytest.mark.parametrize("chunks", [[], [chunk({"content": "alp"})], [chunk({"content": ""})], [END]])
def test_stream_without_a_finish_reason_is_unfinished(chunks: list[dict[str, Any]]) -> None:
    partial, error = cut(chunks)
    assert error.reason == "unfinished"
    assert texts_of(partial) == [text for text in ["alp"] if len(chunks) == 1 and "alp" in str(chunks)]


def test_finished_stream_without_a_word_is_empty() -> None:
    assert cut([chunk({"role": "assistant"}), chunk(finish_reason="stop")])[1].reason == "empty"


@pytest.mark.parametrize("finish_reason", ["stop", "tool_calls"])
def test_call_without_its_end_is_half_written(finish_reason: str) -> None:
    chunks = [
        chunk({"content": "alpha"}),
        chunk(call_piece(0, id="call_1", name="f", text="{}")),
        chunk(call_piece(1, id="call_2", name="f", text='{"a":')),
        chunk(finish_reason=finish_reason),
    ]
    partial, error = cut(chunks)
    assert error.reason == "half_written"
    assert [item.get("call_id") for item in partial] == [None, "call_1"]


@pytest.mark.parametrize("piece", [call_piece(0, id="call_1", text="{}"), call_piece(0, name="f", text="{}")])
def test_call_without_id_or_name_is_malformed(piece: dict[str, Any]) -> None:
    partial, error = cut([chunk(piece), chunk(finish_reason="tool_calls")])
    assert (partial, error.reason) == ([], "malformed")


def test_two_calls_with_one_id_are_malformed() -> None:
    pieces = [call_piece(index, id="same", name="f", text="{}") for index in range(2)]
    assert cut([*(chunk(piece) for piece in pieces), chunk(finish_reason="stop")])[1].reason == "malformed"


@pytest.mark.parametrize(
    "value",
    [[], "alpha", {"choices": {}}, chunk({"content": 7}), chunk({"tool_calls": [{"function": "f"}]}), {"usage": 7}],
)
def test_what_is_not_a_chunk_is_malformed(value: Any) -> None:
    assert cut([value])[1].reason == "malformed"


def test_error_chunk_is_the_upstreams_error_and_keeps_what_came_before() -> None:
    partial, error = cut([chunk({"content": "alp"}), {"error": {"message": "overloaded", "code": 502}}])
    assert (error.reason, error.message) == ("upstream_error", "overloaded")
    assert texts_of(partial) == ["alp"]


def test_partial_answer_is_incomplete_where_it_is_open() -> None:
    stream = ChatStream(numbered_ids())
    stream.feed(chunk({"reasoning": "hm"}))
    stream.feed(chunk({"content": "alp"}))
    partial = stream.partial()
    assert [(item["type"], item["status"]) for item in partial] == [
        ("reasoning", "completed"),
        ("message", "incomplete"),
    ]
    stream.feed(chunk({"content": "ha"}))
    assert texts_of(partial) == ["hm", "alp"]
    assert texts_of(stream.partial()) == ["hm", "alpha"]


def test_partial_answer_has_no_half_written_calls() -> None:
    stream = ChatStream(numbered_ids())
    stream.feed(chunk({"tool_calls": [{"index": 0, **function_call("call_1")}, {"index": 1, **custom_call("call_2")}]}))
    stream.feed(chunk(call_piece(2, id="call_3", name="f", text='{"a"')))
    stream.feed(chunk(call_piece(3, id="call_4", name="f")))
    assert [(item["call_id"], item["status"]) for item in stream.partial()] == [("call_1", "incomplete")]


words = st.text(st.characters(codec="utf-8"), max_size=12)
tokens = st.fixed_dictionaries(
    {
        "token": words,
        "logprob": st.floats(-100, 0),
        "bytes": st.one_of(st.none(), st.lists(st.integers(0, 255), max_size=3)),
        "top_logprobs": st.just([{"token": "t", "logprob": -1.0, "bytes": None}]),
    }
)
whole_arguments = st.dictionaries(words, st.integers(), max_size=2).map(json.dumps)
cut_arguments = whole_arguments.flatmap(lambda text: st.integers(0, len(text)).map(lambda end: text[:end]))
function_calls = st.one_of(whole_arguments, whole_arguments, cut_arguments).map(
    lambda text: function_call(arguments=text)
)
calls = st.lists(st.one_of(function_calls, words.map(lambda text: custom_call(input=text))), max_size=3)
messages: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "reasoning_content": st.one_of(st.none(), words),
        "content": st.one_of(st.none(), words),
        "refusal": st.one_of(st.none(), words),
        "tool_calls": calls.map(lambda some: [{**call, "id": f"call_{n}"} for n, call in enumerate(some)]),
    }
)
finish_reasons = st.sampled_from(["stop", "tool_calls", "length", "content_filter", "eos"])


def pieces_of(draw: st.DrawFn, text: str) -> list[str]:
    """Split a text at random; an empty piece says nothing and may be anywhere."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def spread(draw: st.DrawFn, entries: Sequence[Any], count: int) -> list[list[Any]]:
    """Deal entries to ``count`` chunks, in their order."""
    places = sorted(draw(st.lists(st.integers(0, count - 1), min_size=len(entries), max_size=len(entries))))
    return [[entry for place, entry in zip(places, entries, strict=True) if place == at] for at in range(count)]


def call_chunks(draw: st.DrawFn, tool_calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Split calls: they begin in order, their later pieces interleave."""
    chunks: list[dict[str, Any]] = []
    left: list[tuple[int, str, str, list[str]]] = []
    for index, call in enumerate(tool_calls):
        kind, field = ("custom", "input") if call["type"] == "custom" else ("function", "arguments")
        first, *rest = pieces_of(draw, call[kind][field])
        chunks.append(chunk({"tool_calls": [{"index": index, **call, kind: {**call[kind], field: first}}]}))
        left.append((index, kind, field, rest))
        is_last = index == len(tool_calls) - 1
        while (begun := [entry for entry in left if entry[3]]) and (is_last or draw(st.booleans())):
            at, its_kind, its_field, pieces = draw(st.sampled_from(begun))
            chunks.append(chunk({"tool_calls": [{"index": at, its_kind: {its_field: pieces.pop(0)}}]}))
    return chunks


@st.composite
def split_completions(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Draw a chat completion, whole or cut, and the same in chunks."""
    message, finish_reason = draw(messages), draw(finish_reasons)
    usage = draw(st.sampled_from([None, USAGE]))
    logprobs: list[dict[str, Any]] = []
    chunks = [chunk({"role": "assistant"})]
    for name in ("reasoning_content", "content", "refusal"):
        if message[name] is None:
            continue
        split = [chunk({name: piece}) for piece in pieces_of(draw, message[name])]
        if name == "content":
            logprobs = draw(st.lists(tokens, max_size=3))
            message["annotations"] = draw(st.lists(st.just(CITED), max_size=2))
            some, others = spread(draw, logprobs, len(split)), spread(draw, message["annotations"], len(split))
            for value, with_it, cited in zip(split, some, others, strict=True):
                value["choices"][0]["logprobs"] = {"content": with_it, "refusal": None}
                value["choices"][0]["delta"]["annotations"] = cited
        chunks += split
    chunks += [*call_chunks(draw, message["tool_calls"]), chunk(finish_reason=finish_reason)]
    if usage is not None:
        chunks.append({"choices": [], "model": "m", "usage": usage})
    return completion_of(message, finish_reason, {"content": logprobs}, usage=usage), chunks


def reason_or_answer(completion: dict[str, Any]) -> str | Answered:
    try:
        return answered(completion, numbered_ids())
    except ChatAnswerBroken as broken:
        return broken.reason


@given(split_completions())
def test_streamed_answer_is_the_buffered_one(drawn: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    completion, chunks = drawn
    expected = reason_or_answer(completion)
    if isinstance(expected, str):
        assert cut(chunks)[1].reason == expected
        return
    _, answer = streamed(chunks)
    assert without_ids(answer.output) == without_ids(expected.output)
    assert replace(answer, output=[]) == replace(expected, output=[])


@given(split_completions(), st.data())
def test_partial_answer_is_valid_after_any_chunk(
    drawn: tuple[dict[str, Any], list[dict[str, Any]]], data: st.DataObject
) -> None:
    _, chunks = drawn
    stream = ChatStream(numbered_ids())
    for value in chunks[: data.draw(st.integers(0, len(chunks)))]:
        stream.feed(value)
    check_output(stream.partial())
