"""What a chat completions target is sent: the conversation as it was, and of the request what chat can honour."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from pydantic import TypeAdapter

from api.gateway.chat_request import chat_messages, chat_request
from api.gateway.items import canonical_items
from ledger.refusal import Refusal

BUFFERED: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsNonStreaming)
STREAMED: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsStreaming)

IMAGE_URL = "https://example.org/a.png"
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "secret of one provider"}


def canonical(*items: Any) -> list[dict[str, Any]]:
    numbers = itertools.count()
    return canonical_items(list(items), lambda prefix: f"{prefix}_{next(numbers)}")


def messages_of(*items: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    return chat_messages(canonical(*items), instructions)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def call(call_id: str, name: str = "look") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": '{"at": 1}'}


def output(call_id: str, value: Any = "seen") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def tool_call(call_id: str, name: str = "look") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": '{"at": 1}'}}


def tool(call_id: str, content: Any = "seen") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def request_of(stream: bool = False, items: Sequence[Any] | None = None, **body: Any) -> dict[str, Any]:
    """Return the chat request of a body, validated against the SDK's types with nothing that they do not know."""
    history = canonical(*(items if items is not None else [user("hi")]))
    request = chat_request(body, history, model="m1", stream=stream, max_tokens_field="max_completion_tokens")
    adapter = STREAMED if stream else BUFFERED
    assert consumed(adapter.validate_python(request)) == request
    return request


def consumed(value: Any) -> Any:
    """Return a validated value with its lists read: pydantic checks an iterable when it is read."""
    if isinstance(value, Mapping):
        return {name: consumed(entry) for name, entry in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [consumed(entry) for entry in value]
    return value


def parameters(**body: Any) -> dict[str, Any]:
    """Return what a body adds to model and messages."""
    request = request_of(**body)
    return {name: value for name, value in request.items() if name not in ("model", "messages")}


def refused(body: dict[str, Any], *items: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        chat_request(body, canonical(*items), model="m1", stream=False, max_tokens_field="max_tokens")
    assert caught.value.status == 400
    return caught.value


# Messages


def test_the_second_call_carries_user_assistant_user() -> None:
    assert messages_of(user("alpha"), assistant("beta"), user("gamma")) == [
        {"role": "user", "content": "alpha"},
        {"role": "assistant", "content": "beta"},
        {"role": "user", "content": "gamma"},
    ]


def test_every_form_of_input_is_replayed_the_same() -> None:
    form = {"type": "message", "role": "user", "status": "completed", "content": [{"type": "input_text", "text": "hi"}]}
    numbers = itertools.count()
    text = canonical_items("hi", lambda prefix: f"{prefix}_{next(numbers)}")
    assert chat_messages(text, None) == messages_of(user("hi")) == messages_of(form) == [user("hi")]


def test_instructions_come_first_and_developer_messages_are_system_messages() -> None:
    developer = {"role": "developer", "content": "be short"}
    system = {"role": "system", "content": [{"type": "input_text", "text": part} for part in "ab"]}
    assert messages_of(developer, system, user("hi"), instructions="be kind") == [
        {"role": "system", "content": "be kind"},
        {"role": "system", "content": "be short"},
        {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        user("hi"),
    ]
    assert messages_of(user("hi"), instructions="") == [user("hi")]


def test_images_and_files_become_content_parts() -> None:
    parts = [
        {"type": "input_text", "text": "see"},
        {"type": "input_image", "image_url": IMAGE_URL, "detail": "low"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="},
        {"type": "input_file", "file_id": "file_1"},
    ]
    request = request_of(items=[user(parts), user([parts[1]])])
    assert request["messages"][0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": IMAGE_URL, "detail": "low"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_id": "file_1"}},
    ]
    assert [part["type"] for part in request["messages"][1]["content"]] == ["image_url"]


def test_a_call_and_its_output_are_replayed_in_later_turns() -> None:
    turn_2 = [user("alpha"), call("call_7"), output("call_7")]
    expected = [user("alpha"), {**assistant(None), "tool_calls": [tool_call("call_7")]}, tool("call_7")]
    assert messages_of(*turn_2) == expected
    assert messages_of(*turn_2, assistant("done"), user("more")) == [*expected, assistant("done"), user("more")]


def test_parallel_calls_become_one_assistant_message_with_results_in_their_order() -> None:
    answer = [REASONING, call("a"), call("b"), {**REASONING, "id": "rs_2"}, call("c")]
    results = [output("c", "3"), output("a", "1"), output("b", "2")]
    assert messages_of(user("alpha"), *answer, *results, user("more")) == [
        user("alpha"),
        {**assistant(None), "tool_calls": [tool_call("a"), tool_call("b"), tool_call("c")]},
        tool("a", "1"),
        tool("b", "2"),
        tool("c", "3"),
        user("more"),
    ]


@pytest.mark.parametrize(
    "answer",
    [
        [assistant("looking"), REASONING, call("a"), call("b")],
        [call("a"), assistant("looking"), call("b")],
        [call("a"), call("b"), assistant("looking")],
    ],
)
def test_the_message_of_an_answer_with_calls_is_their_content(answer: list[dict[str, Any]]) -> None:
    assert messages_of(user("alpha"), *answer, output("a"), output("b")) == [
        user("alpha"),
        {**assistant("looking"), "tool_calls": [tool_call("a"), tool_call("b")]},
        tool("a"),
        tool("b"),
    ]


def test_calls_of_two_answers_stay_apart_even_under_the_same_id() -> None:
    assert messages_of(user("alpha"), call("0"), output("0"), call("0", "again"), output("0"), assistant("done")) == [
        user("alpha"),
        {**assistant(None), "tool_calls": [tool_call("0")]},
        tool("0"),
        {**assistant(None), "tool_calls": [tool_call("0", "again")]},
        tool("0"),
        assistant("done"),
    ]


def test_a_custom_tool_call_is_replayed() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "write", "input": "text"}
    result = {"type": "custom_tool_call_output", "call_id": "c", "output": "written"}
    request = request_of(items=[user("alpha"), custom, result])
    replayed = {"id": "c", "type": "custom", "custom": {"name": "write", "input": "text"}}
    assert request["messages"][1:] == [{**assistant(None), "tool_calls": [replayed]}, tool("c", "written")]


def test_a_refusal_and_an_empty_answer_are_replayed() -> None:
    refusal = {"type": "refusal", "refusal": "no"}
    said = {"type": "output_text", "text": "well"}
    request = request_of(items=[user("a"), assistant([refusal]), user("b"), assistant([said, refusal]), assistant([])])
    assert [message for message in request["messages"] if message["role"] == "assistant"] == [
        {**assistant(None), "refusal": "no"},
        {**assistant("well"), "refusal": "no"},
        assistant(""),
    ]


def test_reasoning_is_left_out_without_breaking_what_follows() -> None:
    items = [user("a"), REASONING, assistant("b"), user("c"), {**REASONING, "id": "rs_2"}]
    request = request_of(items=items)
    assert request["messages"] == [user("a"), assistant("b"), user("c")]
    assert b"secret" not in msgspec.json.encode(request)


def test_an_output_of_several_text_parts_keeps_them() -> None:
    parts = [{"type": "input_text", "text": "1"}, {"type": "input_text", "text": "2"}]
    several = [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]
    assert messages_of(call("a"), output("a", parts))[1] == tool("a", several)
    assert messages_of(call("a"), output("a", parts[:1]))[1] == tool("a", "1")


@pytest.mark.parametrize(
    ("item", "code", "param"),
    [
        (user([{"type": "input_image", "file_id": "file_1"}]), "unsupported_content", "input[1].content[0].file_id"),
        (
            user([{"type": "input_text", "text": "see"}, {"type": "input_file", "file_url": IMAGE_URL}]),
            "unsupported_content",
            "input[1].content[1].file_url",
        ),
        (
            {"role": "system", "content": [{"type": "input_image", "image_url": IMAGE_URL}]},
            "unsupported_content",
            "input[1].content[0].type",
        ),
        (
            output("call_1", [{"type": "input_image", "image_url": IMAGE_URL}]),
            "unsupported_content",
            "input[1].output[0].type",
        ),
        (
            {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}},
            "unsupported_item",
            "input[1].type",
        ),
        (
            {"type": "mcp_call", "name": "n", "arguments": "{}", "server_label": "s"},
            "unsupported_item",
            "input[1].type",
        ),
        ({"type": "compaction", "encrypted_content": "x"}, "unsupported_item", "input[1].type"),
    ],
)
def test_what_chat_cannot_say_is_refused_where_it_stands(item: dict[str, Any], code: str, param: str) -> None:
    before = call("call_1") if item.get("call_id") else user("hi")
    refusal = refused({"input": [before, item]}, user("history"), before, item)
    assert (refusal.code, refusal.param) == (code, param)


def test_what_chat_cannot_say_in_the_history_is_refused_by_its_id() -> None:
    item = {"id": "cmp_1", "type": "compaction", "encrypted_content": "secret"}
    refusal = refused({"input": "more"}, user("history"), item, user("more"))
    assert (refusal.code, refusal.param) == ("unsupported_item", "input")
    assert "'cmp_1'" in refusal.message
    assert "secret" not in refusal.message


def test_an_output_without_its_call_is_refused() -> None:
    refusal = refused({"input": [output("call_7")]}, user("alpha"), output("call_7"))
    assert (refusal.code, refusal.param) == ("tool_call_not_found", "input")


# Byte stability

_texts = st.text(max_size=5)
_input_parts = st.one_of(
    st.builds(lambda text: {"type": "input_text", "text": text}, _texts),
    st.just({"type": "input_image", "image_url": IMAGE_URL}),
    st.just({"type": "input_file", "file_id": "file_1"}),
)
_output_parts = st.one_of(
    st.builds(lambda text: {"type": "output_text", "text": text}, _texts),
    st.builds(lambda text: {"type": "refusal", "refusal": text}, _texts),
)
_asked = st.builds(user, _texts | st.lists(_input_parts, max_size=3))
_told = st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["system", "developer"]), _texts)
_said = st.builds(assistant, _texts | st.lists(_output_parts, max_size=3))
_reasoned = st.just({"type": "reasoning", "summary": [], "encrypted_content": "secret"})
_called = st.sampled_from(
    [
        {"type": "function_call", "name": "look", "arguments": "{}"},
        {"type": "custom_tool_call", "name": "write", "input": "text"},
    ]
)
_result = _texts | st.lists(st.builds(lambda text: {"type": "input_text", "text": text}, _texts), max_size=2)


@st.composite
def conversations(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Draw turns: the items of an input, then those of its answer, and so on; calls are answered in any order.

    Some models count their calls from 0 in every answer.
    """
    turns: list[list[dict[str, Any]]] = []
    waiting: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 5))):
        outputs = [
            {"type": f"{called['type']}_output", "call_id": called["call_id"], "output": draw(_result)}
            for called in draw(st.permutations(waiting))
        ]
        asked = draw(st.lists(_asked | _told, min_size=0 if outputs else 1, max_size=2))
        numbers = itertools.count()
        answer = [
            item | {"call_id": f"call_{next(numbers)}"} if "name" in item else item
            for item in draw(st.lists(st.one_of(_said, _reasoned, _called), max_size=6))
        ]
        waiting = [item for item in answer if "call_id" in item]
        turns += [outputs + asked, answer]
    return turns


@given(conversations(), st.none() | _texts)
def test_the_messages_of_a_turn_begin_those_of_the_next(turns: list[list[dict[str, Any]]], instructions: str) -> None:
    sent: list[bytes] = []
    history: list[Any] = []
    for turn, answer in zip(turns[::2], turns[1::2], strict=True):
        history += turn
        items = canonical(*history)
        messages = [msgspec.json.encode(message) for message in chat_messages(items, instructions)]
        assert messages[: len(sent)] == sent
        # A replica that read the items from the log sends the same bytes.
        stored = msgspec.json.decode(msgspec.json.encode(items))
        assert [msgspec.json.encode(message) for message in chat_messages(stored, instructions)] == messages
        sent = messages
        history += answer


@given(conversations())
def test_every_message_is_one_of_chat_and_every_call_is_answered_in_order(turns: list[list[dict[str, Any]]]) -> None:
    request = request_of(items=[item for turn in turns[:-1] for item in turn])
    owed: list[str] = []
    for message in request["messages"]:
        if message["role"] == "tool":
            assert message["tool_call_id"] == owed.pop(0)
        else:
            assert owed == []
            owed = [called["id"] for called in message.get("tool_calls", ())]
    assert owed == []
    assert b"secret" not in msgspec.json.encode(request)


# Parameters


def test_only_what_was_given_is_sent() -> None:
    assert request_of() == {"model": "m1", "messages": [user("hi")]}
    assert request_of(stream=True) == {
        "model": "m1",
        "messages": [user("hi")],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_what_the_gateway_does_itself_is_not_sent() -> None:
    kept: dict[str, Any] = {"metadata": {"a": "b"}, "store": False, "truncation": "auto", "max_tool_calls": 3}
    kept |= {"previous_response_id": "resp_1", "conversation": None, "background": False, "stream_options": {}}
    assert parameters(**kept, include=["reasoning.encrypted_content"], prompt=None, reasoning={"summary": "auto"}) == {}


def test_plain_parameters_keep_their_value() -> None:
    plain: dict[str, Any] = {"temperature": 1, "top_p": 0.5, "service_tier": "flex", "user": "u"}
    plain |= {"safety_identifier": "s", "prompt_cache_key": "k"}
    sent = parameters(**plain)
    assert sent == plain
    assert isinstance(sent["temperature"], int)


def test_the_bound_of_the_answer_is_named_as_the_target_names_it() -> None:
    body = {"max_output_tokens": 20}
    assert parameters(**body) == {"max_completion_tokens": 20}
    items = canonical(user("hi"))
    assert chat_request(body, items, model="m1", stream=False, max_tokens_field="max_tokens")["max_tokens"] == 20


def test_tools_take_their_chat_shape() -> None:
    grammar = {"type": "grammar", "definition": "start: WORD", "syntax": "lark"}
    tools = [
        FUNCTION,
        {"type": "function", "name": "bare", "description": None, "parameters": None, "defer_loading": False},
        {"type": "custom", "name": "free", "description": "writes", "format": {"type": "text"}},
        {"type": "custom", "name": "strict", "format": grammar},
    ]
    assert parameters(tools=tools, parallel_tool_calls=False) == {
        "tools": [
            {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}, "strict": True}},
            {"type": "function", "function": {"name": "bare"}},
            {"type": "custom", "custom": {"name": "free", "description": "writes", "format": {"type": "text"}}},
            {
                "type": "custom",
                "custom": {
                    "name": "strict",
                    "format": {"type": "grammar", "grammar": {"definition": "start: WORD", "syntax": "lark"}},
                },
            },
        ],
        "parallel_tool_calls": False,
    }


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
        ({"type": "custom", "name": "free"}, {"type": "custom", "custom": {"name": "free"}}),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]},
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "look"}}]},
            },
        ),
    ],
)
def test_a_tool_choice_takes_its_chat_shape(choice: Any, sent: Any) -> None:
    assert parameters(tools=[FUNCTION], tool_choice=choice)["tool_choice"] == sent


@pytest.mark.parametrize("tools", [None, []])
def test_a_choice_among_no_tools_is_not_sent(tools: Any) -> None:
    assert parameters(tools=tools, tool_choice="auto", parallel_tool_calls=True) == {}
    assert refused({"tools": tools, "tool_choice": "required"}, user("hi")).param == "tool_choice"


@pytest.mark.parametrize(
    ("form", "sent"),
    [
        ({"type": "text"}, {"type": "text"}),
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True, "description": None},
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}},
        ),
    ],
)
def test_a_text_format_becomes_a_response_format(form: Any, sent: Any) -> None:
    assert parameters(text={"format": form, "verbosity": "low"}) == {"response_format": sent, "verbosity": "low"}


def test_reasoning_effort_is_sent() -> None:
    assert parameters(reasoning={"effort": "low", "summary": "auto"}) == {"reasoning_effort": "low"}


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 0}, {"logprobs": True, "top_logprobs": 0}),
        ({"top_logprobs": 0}, {}),
    ],
)
def test_log_probabilities_are_asked_for(body: dict[str, Any], sent: dict[str, Any]) -> None:
    assert parameters(**body) == sent


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"prompt": {"id": "pmpt_1"}}, "unsupported_parameter", "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "unsupported_parameter", "context_management"),
        ({"moderation": {"model": "m"}}, "unsupported_parameter", "moderation"),
        ({"tools": [FUNCTION, {"type": "web_search"}]}, "unsupported_tool", "tools[1].type"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "mcp"}}, "unsupported_tool", "tool_choice.type"),
        (
            {
                "tools": [FUNCTION],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
            },
            "unsupported_tool",
            "tool_choice.tools[0].type",
        ),
        ({"instructions": ["hi"]}, "invalid_value", "instructions"),
        ({"temperature": "warm"}, "invalid_value", "temperature"),
        ({"top_p": True}, "invalid_value", "top_p"),
        ({"max_output_tokens": 1.5}, "invalid_value", "max_output_tokens"),
        ({"include": "all"}, "invalid_value", "include"),
        ({"tools": {}}, "invalid_value", "tools"),
        ({"tools": ["look"]}, "invalid_value", "tools[0]"),
        ({"tools": [{}]}, "invalid_value", "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "invalid_value", "tools[0].name"),
        ({"tools": [{**FUNCTION, "parameters": []}]}, "invalid_value", "tools[0].parameters"),
        (
            {"tools": [{"type": "custom", "name": "n", "format": {"type": "regex"}}]},
            "invalid_value",
            "tools[0].format.type",
        ),
        ({"tools": [FUNCTION], "tool_choice": "any"}, "invalid_value", "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": 1}, "invalid_value", "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function"}}, "invalid_value", "tool_choice.name"),
        ({"text": "short"}, "invalid_value", "text"),
        ({"text": {"format": {"type": "xml"}}}, "invalid_value", "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "invalid_value", "text.format.name"),
        ({"text": {"verbosity": "long"}}, "invalid_value", "text.verbosity"),
        ({"reasoning": {"effort": 1}}, "invalid_value", "reasoning.effort"),
    ],
)
def test_a_parameter_that_chat_cannot_honour_is_refused_by_name(body: dict[str, Any], code: str, param: str) -> None:
    refusal = refused(body, user("hi"))
    assert (refusal.code, refusal.param) == (code, param)
    assert param in refusal.message


def test_nothing_to_answer_is_refused() -> None:
    refusal = refused({})
    assert (refusal.code, refusal.param) == ("invalid_value", "input")
