"""Whatever form the client chose, one form is stored; what is no item of the API is refused where it stands."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from openai.types.conversations import ConversationItem
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from api.gateway.items import canonical_items, require_calls
from ledger.refusal import Refusal

CONVERSATION_ITEM: TypeAdapter[Any] = TypeAdapter(ConversationItem)
RESPONSE_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseItem)

IMAGE = {"type": "input_image", "image_url": "https://example.org/a.png"}
CALL = {"type": "function_call", "call_id": "call_7", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_7", "output": "seen"}
CUSTOM_CALL = {"type": "custom_tool_call", "call_id": "call_8", "name": "write", "input": "text"}
CUSTOM_OUTPUT = {"type": "custom_tool_call_output", "call_id": "call_8", "output": "written"}
REASONING = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAA"}
ACTION = {"type": "exec", "command": ["ls"], "env": {}}
PATCH = {"type": "delete_file", "path": "a"}
TOOL = {"name": "t", "input_schema": {}}
FUNCTION = {"type": "function", "name": "f", "parameters": {}, "strict": True}
SCREENSHOT = {"type": "computer_screenshot", "image_url": "https://example.org/a.png"}
SEARCH = {"type": "search", "query": "q"}
OTHERS: list[dict[str, Any]] = [
    {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]},
    {"type": "apply_patch_call", "call_id": "c", "operation": PATCH, "status": "completed"},
    {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": None},
    {"type": "code_interpreter_call", "container_id": "c", "status": "completed", "code": None, "outputs": None},
    {"type": "compaction", "encrypted_content": "gAAA"},
    {"type": "computer_call", "call_id": "c", "pending_safety_checks": [], "status": "completed"},
    {"type": "computer_call_output", "call_id": "c", "output": SCREENSHOT},
    {"type": "configuration_update", "reasoning": {"effort": "low"}},
    {"type": "file_search_call", "queries": ["q"], "status": "completed"},
    {"type": "image_generation_call", "status": "completed", "result": None},
    {"type": "local_shell_call", "action": ACTION, "call_id": "c", "status": "completed"},
    {"type": "local_shell_call_output", "output": "{}"},
    {"type": "mcp_approval_request", "arguments": "{}", "name": "t", "server_label": "s"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    {"type": "mcp_call", "arguments": "{}", "name": "t", "server_label": "s"},
    {"type": "mcp_list_tools", "server_label": "s", "tools": [TOOL]},
    {"type": "program", "call_id": "c", "code": "1", "fingerprint": "f"},
    {"type": "program_output", "call_id": "c", "result": "1", "status": "completed"},
    {"type": "shell_call", "action": {"commands": ["ls"]}, "call_id": "c"},
    {"type": "shell_call_output", "call_id": "c", "output": []},
    {"type": "tool_search_call", "arguments": {}},
    {"type": "tool_search_output", "tools": [FUNCTION]},
    {"type": "web_search_call", "action": SEARCH, "status": "completed"},
]


def counted() -> Callable[[str], str]:
    """Return a maker of IDs that counts."""
    numbers = itertools.count()
    return lambda prefix: f"{prefix}_{next(numbers)}"


def stored(*items: Any) -> list[dict[str, Any]]:
    return canonical_items(list(items), counted())


def refused(*items: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        stored(*items)
    assert caught.value.status == 400
    return caught.value


def test_a_string_a_short_message_and_a_full_message_are_stored_the_same() -> None:
    short = {"role": "user", "content": "hi"}
    parts = {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    full = {"content": [{"text": "hi", "type": "input_text"}], "status": None, "role": "user", "type": "message"}
    expected = [
        {
            "id": "msg_0",
            "type": "message",
            "role": "user",
            "status": "completed",
            "content": [{"type": "input_text", "text": "hi"}],
        }
    ]
    assert canonical_items("hi", counted()) == expected
    for form in (short, parts, full):
        # Order too: what is stored is bytes.
        assert [list(item.items()) for item in stored(form)] == [list(item.items()) for item in expected]
        assert list(stored(form)[0]["content"][0].items()) == [("type", "input_text"), ("text", "hi")]


def test_an_item_keeps_its_id_and_status() -> None:
    item = {"id": "msg_mine", "type": "message", "role": "user", "status": "incomplete", "content": "hi"}
    assert stored(item)[0]["id"] == "msg_mine"
    assert stored(item)[0]["status"] == "incomplete"


def test_an_assistant_message_gets_output_parts_and_keeps_refusal_and_phase() -> None:
    refusal = {"type": "refusal", "refusal": "no"}
    text, mixed = stored(
        {"role": "assistant", "content": "yes", "phase": "commentary"}, {"role": "assistant", "content": [refusal]}
    )
    assert text["content"] == [{"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}]
    assert text["phase"] == "commentary"
    assert mixed["content"] == [refusal]


def test_an_unknown_field_is_kept_and_a_null_is_not() -> None:
    item = stored({**CALL, "namespace": None, "agent": "a1"})[0]
    assert item["agent"] == "a1"
    assert "namespace" not in item


@pytest.mark.parametrize("item", [REASONING, {**REASONING, "content": [], "new": 1}])
def test_reasoning_is_kept_as_it_came(item: dict[str, Any]) -> None:
    assert list(stored(item)[0].items()) == list(item.items())


def test_a_null_of_reasoning_says_nothing() -> None:
    assert stored({**REASONING, "status": None, "content": None}) == [REASONING]


def test_reasoning_without_an_id_gets_one_and_nothing_else() -> None:
    without = {name: value for name, value in REASONING.items() if name != "id"}
    assert stored(without) == [{**without, "id": "rs_0"}]


@pytest.mark.parametrize("item", OTHERS, ids=lambda item: item["type"])
def test_an_item_of_another_kind_is_kept_and_completed_to_a_resource(item: dict[str, Any]) -> None:
    kept = stored(item)[0]
    assert all(value == kept[name] or value.items() <= kept[name].items() for name, value in item.items())
    RESPONSE_ITEM.validate_python(kept, strict=True)
    CONVERSATION_ITEM.validate_python(kept, strict=True)
    assert stored({**item, "id": "mine"})[0]["id"] == "mine"


@pytest.mark.parametrize("item", OTHERS, ids=lambda item: item["type"])
def test_an_item_of_another_kind_without_a_field_that_a_resource_needs_is_refused(item: dict[str, Any]) -> None:
    bare = {"type": item["type"]}
    if item["type"] == "configuration_update":
        assert stored(bare) == [{**bare, "id": "cfg_0"}]
    else:
        refusal = refused(bare)
        assert refusal.param is not None
        assert refusal.param.removeprefix("input[0].") in item


def test_what_is_stored_is_a_resource_of_the_api() -> None:
    citation = {"type": "url_citation", "start_index": 0, "end_index": 1, "title": "t", "url": "https://example.org"}
    logprob = {"token": "y", "bytes": [121], "logprob": -0.5, "top_logprobs": []}
    text = {"type": "output_text", "text": "yes", "annotations": [citation], "logprobs": [logprob]}
    file = {"type": "input_file", "file_data": "data:,a", "filename": "a.txt", "file_url": None}
    part = {"type": "input_text", "text": "hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
    items = stored(
        {"role": "user", "content": [part, IMAGE, file]},
        {"role": "developer", "content": "be short"},
        {"role": "system", "content": "be kind"},
        {"role": "assistant", "content": [text, {"type": "refusal", "refusal": "no"}]},
        REASONING,
        {**CALL, "caller": {"type": "direct"}},
        OUTPUT,
        CUSTOM_CALL,
        {**CUSTOM_OUTPUT, "output": [part, IMAGE]},
    )
    for item in items:
        CONVERSATION_ITEM.validate_python(item, strict=True)
        RESPONSE_ITEM.validate_python(item, strict=True)
    assert [item["id"] for item in items] == [
        "msg_0", "msg_1", "msg_2", "msg_3", "rs_1", "fc_4", "fco_5", "ctc_6", "ctco_7"
    ]  # fmt: skip
    assert items[0]["content"][1]["detail"] == "auto"
    assert items[8]["output"][1]["detail"] == "auto"


def test_stored_items_sent_again_are_stored_the_same() -> None:
    once = stored(
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes"},
        CALL,
        OUTPUT,
        REASONING,
        CUSTOM_CALL,
        *OTHERS,
    )
    assert canonical_items(once, counted()) == once


def test_a_reference_is_passed_on() -> None:
    reference = {"type": "item_reference", "id": "msg_1"}
    assert stored(reference, {"id": "msg_1"}, reference) == [reference] * 3


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ("hi", "input[1]"),
        (None, "input[1]"),
        ({}, "input[1].type"),
        ({"type": 1}, "input[1].type"),
        ({"type": "tool_message"}, "input[1].type"),
        ({"type": "compaction_trigger"}, "input[1].type"),
        ({"type": "item_reference"}, "input[1].id"),
        ({"type": "item_reference", "id": ""}, "input[1].id"),
        ({"id": 7, "role": "user", "content": "hi"}, "input[1].id"),
        ({"id": "m" * 513, "role": "user", "content": "hi"}, "input[1].id"),
        ({"content": "hi"}, "input[1].role"),
        ({"role": "tool", "content": "hi"}, "input[1].role"),
        ({"role": "user"}, "input[1].content"),
        ({"role": "user", "content": 1}, "input[1].content"),
        ({"role": "user", "content": "hi", "status": "done"}, "input[1].status"),
        ({"role": "user", "content": ["hi"]}, "input[1].content[0]"),
        ({"role": "user", "content": [{"text": "hi"}]}, "input[1].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text", "text": 1}]}, "input[1].content[0].text"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[1].content[0].text"),
        ({"role": "user", "content": [{"type": "output_text", "text": "hi"}]}, "input[1].content[0].type"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "input[1].content[0].type"),
        ({"role": "user", "content": [IMAGE, {"type": "input_image"}]}, "input[1].content[1]"),
        ({"role": "user", "content": [{**IMAGE, "image_url": {"url": "u"}}]}, "input[1].content[0].image_url"),
        ({"role": "user", "content": [{**IMAGE, "detail": "huge"}]}, "input[1].content[0].detail"),
        ({"role": "user", "content": [{"type": "input_file", "filename": "a"}]}, "input[1].content[0]"),
        ({"role": "assistant", "content": [{"type": "input_text", "text": "hi"}]}, "input[1].content[0].type"),
        (
            {"role": "assistant", "content": [{"type": "output_text", "text": "hi", "annotations": [{"type": "x"}]}]},
            "input[1].content[0].annotations[0].type",
        ),
        ({**REASONING, "summary": None}, "input[1].summary"),
        ({**REASONING, "summary": [{"type": "summary_text"}]}, "input[1].summary[0].text"),
        ({"type": "reasoning"}, "input[1].summary"),
        ({**CALL, "arguments": {}}, "input[1].arguments"),
        ({**CALL, "call_id": ""}, "input[1].call_id"),
        ({**CALL, "call_id": "c" * 513}, "input[1].call_id"),
        ({**CALL, "name": None}, "input[1].name"),
        ({**CUSTOM_CALL, "input": 1}, "input[1].input"),
        ({"type": "function_call_output", "output": "seen"}, "input[1].call_id"),
        ({**OUTPUT, "output": {"a": 1}}, "input[1].output"),
        ({**OUTPUT, "output": [{"type": "text", "text": "seen"}]}, "input[1].output[0].type"),
        ({**CUSTOM_OUTPUT, "output": [{"type": "input_text"}]}, "input[1].output[0].text"),
        ({"id": "msg_first", "role": "user", "content": "again"}, "input[1].id"),
    ],
)
def test_what_is_no_item_is_refused_where_it_stands(item: Any, param: str) -> None:
    refusal = refused({"id": "msg_first", "role": "user", "content": "hi"}, item)
    assert refusal.param == param
    assert refusal.code == ("unsupported_item" if "compaction_trigger" in str(item) else "invalid_value")
    assert param.split(".")[0] in refusal.message


@pytest.mark.parametrize("length", [1, 512])
def test_an_id_at_its_bound_is_taken(length: int) -> None:
    item = {**CALL, "id": "i" * length, "call_id": "c" * length}
    assert stored(item)[0] == {**item, "status": "completed"}


@pytest.mark.parametrize("value", [None, 1, {"role": "user", "content": "hi"}])
def test_input_that_is_neither_text_nor_a_list_is_refused(value: Any) -> None:
    with pytest.raises(Refusal) as caught:
        canonical_items(value, counted())
    assert caught.value.param == "input"


USER = {"type": "message", "role": "user"}
ASSISTANT = {"type": "message", "role": "assistant"}
SYSTEM = {"type": "message", "role": "system"}


def call(call_id: str) -> dict[str, str]:
    return {**CALL, "call_id": call_id}


def output(call_id: str) -> dict[str, str]:
    return {**OUTPUT, "call_id": call_id}


@pytest.mark.parametrize(
    "items",
    [
        [],
        [USER, ASSISTANT, ASSISTANT, USER],
        [USER, call("a"), output("a")],
        [REASONING, call("a"), call("b"), REASONING, call("c"), output("c"), output("a"), output("b"), USER],
        [call("a"), output("a"), call("b"), output("b"), ASSISTANT],
        [call("a"), output("a"), USER, call("a"), output("a")],
        [call("a"), ASSISTANT, call("b"), output("a"), output("b")],
        [call("a"), call("b"), output("a"), call("c"), output("b"), output("c"), ASSISTANT],
        [CUSTOM_CALL, CUSTOM_OUTPUT],
    ],
)
def test_calls_and_outputs_that_have_each_other_pass(items: list[dict[str, str]]) -> None:
    require_calls(items)


@pytest.mark.parametrize(
    ("items", "code", "call_id"),
    [
        ([USER, output("a")], "tool_call_not_found", "a"),
        ([output("a"), call("a")], "tool_call_not_found", "a"),
        ([call("a"), {**CUSTOM_OUTPUT, "call_id": "a"}], "tool_call_not_found", "a"),
        ([call("a"), output("a"), output("a")], "tool_output_repeated", "a"),
        ([call("a"), call("a"), output("a")], "tool_call_repeated", "a"),
        ([USER, call("a")], "tool_output_not_found", "a"),
        ([call("a"), USER, output("a")], "tool_output_not_found", "a"),
        ([call("a"), SYSTEM, output("a")], "tool_output_not_found", "a"),
        ([call("a"), ASSISTANT], "tool_output_not_found", "a"),
        ([call("a"), call("b"), output("a"), ASSISTANT, output("b")], "tool_output_not_found", "b"),
        ([call("a"), call("b"), output("b")], "tool_output_not_found", "a"),
    ],
)
def test_a_call_or_output_left_alone_is_refused_by_its_id(items: list[dict[str, str]], code: str, call_id: str) -> None:
    with pytest.raises(Refusal) as caught:
        require_calls(items)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, "input")
    assert f"'{call_id}'" in caught.value.message


def test_status_of_an_item_that_nothing_here_reads_is_still_a_word() -> None:
    with pytest.raises(Refusal) as refused:
        stored({"type": "configuration_update", "status": {}})
    assert refused.value.param == "input[0].status"


def test_an_object_of_a_kept_item_is_completed_in_its_fields() -> None:
    call = {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"], "timeout_ms": 5}}
    assert stored(call)[0]["action"] == {"commands": ["ls"], "timeout_ms": 5, "max_output_length": None}
