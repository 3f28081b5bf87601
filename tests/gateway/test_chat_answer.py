"""A buffered chat completion becomes output items: nothing is lost, nothing cut short is called whole."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from api.gateway.chat_answer import Answered, ChatAnswerBroken, NewId, answered
from tests.gateway.test_events import RESPONSE, check_output, response_of

USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


def numbered_ids() -> NewId:
    numbers = count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"


def function_call(id: str = "call_1", name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def custom_call(id: str = "call_2", name: str = "g", input: str = "free") -> dict[str, Any]:
    return {"id": id, "type": "custom", "custom": {"name": name, "input": input}}


def completion_of(
    message: dict[str, Any], finish_reason: str | None = "stop", logprobs: Any = None, **fields: Any
) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": None, "refusal": None, **message},
        "finish_reason": finish_reason,
        "logprobs": logprobs,
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": USAGE,
        **fields,
    }


def answer_to(message: dict[str, Any], finish_reason: str | None = "stop", **fields: Any) -> Answered:
    answer = answered(completion_of(message, finish_reason, **fields), numbered_ids())
    check_output(answer.output)
    RESPONSE.validate_python(
        response_of(
            answer.output,
            answer.status,
            incomplete_details=answer.incomplete_details,
            usage=answer.usage,
            service_tier=answer.service_tier,
        ),
        strict=True,
    )
    return answer


def broken(completion: Any) -> str:
    with pytest.raises(ChatAnswerBroken) as caught:
        answered(completion, numbered_ids())
    assert caught.value.message
    return caught.value.reason


def types_of(answer: Answered) -> list[str]:
    return [item["type"] for item in answer.output]


def statuses_of(answer: Answered) -> list[str]:
    return [item["status"] for item in answer.output]


def test_text_becomes_a_message() -> None:
    answer = answer_to({"content": "alpha"})
    part = {"type": "output_text", "text": "alpha", "annotations": [], "logprobs": []}
    assert answer.output == [
        {"id": "msg_1", "type": "message", "role": "assistant", "content": [part], "status": "completed"}
    ]
    assert (answer.status, answer.incomplete_details, answer.error) == ("completed", None, None)
    assert (answer.model, answer.service_tier) == ("m", None)


def test_items_come_as_reasoning_then_message_then_calls() -> None:
    answer = answer_to(
        {
            "reasoning_content": "hm",
            "content": "alpha",
            "tool_calls": [function_call(arguments='{"a":1}'), custom_call()],
        },
        "tool_calls",
    )
    reasoning, message, call, custom = answer.output
    assert reasoning == {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
        "status": "completed",
    }
    assert message["content"][0]["text"] == "alpha"
    assert call == {
        "id": "fc_3",
        "type": "function_call",
        "call_id": "call_1",
        "name": "f",
        "arguments": '{"a":1}',
        "status": "completed",
    }
    assert custom == {
        "id": "ctc_4",
        "type": "custom_tool_call",
        "call_id": "call_2",
        "name": "g",
        "input": "free",
        "status": "completed",
    }


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"reasoning": "hm"}, "hm"),
        ({"reasoning": "hm", "reasoning_content": "hm"}, "hm"),
        ({"reasoning": "hm", "reasoning_content": None}, "hm"),
        ({"reasoning": {"effort": "low"}}, None),
        ({"reasoning": ""}, None),
    ],
)
def test_reasoning_is_read_from_either_field(fields: dict[str, Any], text: str | None) -> None:
    output = answer_to({"content": "alpha", **fields}).output
    assert [item["content"][0]["text"] for item in output] == ([text] if text else []) + ["alpha"]


def test_refusal_becomes_a_part_of_the_message() -> None:
    assert answer_to({"refusal": "no"}).output[0]["content"] == [{"type": "refusal", "refusal": "no"}]
    parts = answer_to({"content": "alpha", "refusal": "no"}).output[0]["content"]
    assert [part["type"] for part in parts] == ["output_text", "refusal"]


def test_empty_content_alone_is_an_empty_message() -> None:
    assert answer_to({"content": ""}).output[0]["content"][0]["text"] == ""


@pytest.mark.parametrize("content", ["", None])
def test_empty_content_beside_calls_is_no_message(content: str | None) -> None:
    assert types_of(answer_to({"content": content, "tool_calls": [function_call()]})) == ["function_call"]


def test_reasoning_alone_is_an_answer() -> None:
    assert types_of(answer_to({"reasoning_content": "hm"})) == ["reasoning"]


def test_url_citations_become_annotations() -> None:
    cited = {"url": "https://a.example", "title": "A", "start_index": 0, "end_index": 5}
    annotations = [{"type": "url_citation", "url_citation": cited}, {"type": "file", "file": {"hash": "h"}}]
    part = answer_to({"content": "alpha", "annotations": annotations}).output[0]["content"][0]
    assert part["annotations"] == [{"type": "url_citation", **cited}]


def test_log_probabilities_keep_their_tokens_and_have_bytes() -> None:
    top = {"token": "b", "bytes": [98], "logprob": -1.5}
    entries: list[dict[str, Any]] = [
        {"token": "a", "bytes": None, "logprob": -0.5, "top_logprobs": [top]},
        {"token": "c", "bytes": [99], "logprob": -1, "top_logprobs": []},
    ]
    part = answer_to({"content": "ac"}, logprobs={"content": entries, "refusal": None}).output[0]["content"][0]
    assert part["logprobs"] == [{**entries[0], "bytes": []}, entries[1]]


@pytest.mark.parametrize("finish_reason", ["stop", "tool_calls", "function_call", "eos"])
def test_finished_answer_is_completed(finish_reason: str) -> None:
    answer = answer_to({"content": "alpha"}, finish_reason)
    assert (answer.status, answer.incomplete_details, statuses_of(answer)) == ("completed", None, ["completed"])


@pytest.mark.parametrize(
    ("finish_reason", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_cut_answer_is_incomplete_where_it_was_cut(finish_reason: str, reason: str) -> None:
    answer = answer_to({"reasoning_content": "hm", "content": "alp"}, finish_reason)
    assert (answer.status, answer.incomplete_details) == ("incomplete", {"reason": reason})
    assert statuses_of(answer) == ["completed", "incomplete"]
    assert statuses_of(answer_to({"reasoning_content": "hm"}, finish_reason)) == ["incomplete"]


def test_cut_call_is_incomplete_and_what_came_before_is_not() -> None:
    calls = [function_call("call_1"), function_call("call_2", arguments='{"a":')]
    answer = answer_to({"content": "alpha", "tool_calls": calls}, "length")
    assert statuses_of(answer) == ["completed", "completed", "incomplete"]


def test_last_custom_call_of_a_cut_answer_is_incomplete() -> None:
    calls = [custom_call("call_1"), custom_call("call_2")]
    assert statuses_of(answer_to({"tool_calls": calls}, "length")) == ["completed", "incomplete"]


@pytest.mark.parametrize("finish_reason", ["length", "content_filter"])
def test_cut_answer_may_be_empty(finish_reason: str) -> None:
    answer = answer_to({}, finish_reason)
    assert (answer.output, answer.status) == ([], "incomplete")


def test_call_without_arguments_is_whole_unless_the_answer_was_cut() -> None:
    message = {"tool_calls": [function_call(arguments="")]}
    assert statuses_of(answer_to(message, "tool_calls")) == ["completed"]
    assert statuses_of(answer_to(message, "length")) == ["incomplete"]


def test_usage_is_counted_in_the_words_of_the_api() -> None:
    usage = {
        **USAGE,
        "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 1, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    assert answer_to({"content": "alpha"}, usage=usage).usage == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 1},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 12,
    }


@pytest.mark.parametrize(
    "usage",
    [
        USAGE,
        {"prompt_tokens": 5, "completion_tokens": 7},
        {**USAGE, "prompt_tokens_details": None, "completion_tokens_details": None},
        {**USAGE, "prompt_tokens_details": {"cached_tokens": None}, "completion_tokens_details": {}},
    ],
)
def test_counts_that_are_absent_are_zero(usage: dict[str, Any]) -> None:
    assert answer_to({"content": "alpha"}, usage=usage).usage == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12,
    }


def test_absent_usage_stays_absent() -> None:
    assert answer_to({"content": "alpha"}, usage=None).usage is None


@pytest.mark.parametrize(("given", "told"), [("default", "default"), ("on_demand", None), (7, None), (None, None)])
def test_service_tier_is_told_when_the_api_has_the_word(given: Any, told: str | None) -> None:
    assert answer_to({"content": "alpha"}, service_tier=given).service_tier == told


def test_only_the_first_choice_counts() -> None:
    completion = completion_of({"content": "alpha"})
    completion["choices"].append(completion_of({"content": "beta"})["choices"][0])
    assert len(answered(completion, numbered_ids()).output) == 1


@pytest.mark.parametrize(
    "completion",
    [
        {},
        [],
        "alpha",
        {"choices": None},
        {"choices": []},
        {"choices": [{}]},
        {"choices": [{"message": None, "finish_reason": "stop"}]},
        completion_of({"content": ["alpha"]}),
        completion_of({"content": 7}),
        completion_of({"content": "alpha"}, 7),  # type: ignore[arg-type]  # the wrong type is the test
        completion_of({"content": "alpha"}, usage={"prompt_tokens": "many"}),
        completion_of({"content": "alpha"}, logprobs={"content": [{"token": 1}]}),
        completion_of({"tool_calls": {"id": "call_1"}}),
        completion_of({"tool_calls": [{**function_call(), "id": None}]}),
        completion_of({"tool_calls": [function_call(id="")]}),
        completion_of({"tool_calls": [function_call(name="")]}),
        completion_of({"tool_calls": [{"id": "call_1", "type": "function"}]}),
        completion_of(
            {"tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {}}}]}
        ),
        completion_of({"tool_calls": [function_call("same"), custom_call("same")]}),
    ],
)
def test_what_is_not_a_chat_completion_is_malformed(completion: Any) -> None:
    assert broken(completion) == "malformed"


def test_finished_answer_without_content_and_calls_is_broken() -> None:
    assert broken(completion_of({})) == "empty"
    assert broken(completion_of({"tool_calls": [], "refusal": ""})) == "empty"


def test_answer_without_a_finish_reason_is_unfinished() -> None:
    assert broken(completion_of({"content": "alpha"}, None)) == "unfinished"


@pytest.mark.parametrize("arguments", ["{", '{"a":', "[1,", "nil", "\ud800", "[" * 100_000])
@pytest.mark.parametrize("finish_reason", ["stop", "tool_calls", "eos"])
def test_finished_call_whose_arguments_are_not_json_is_half_written(arguments: str, finish_reason: str) -> None:
    assert broken(completion_of({"tool_calls": [function_call(arguments=arguments)]}, finish_reason)) == "half_written"


@pytest.mark.parametrize(
    ("error", "message"),
    [({"message": "overloaded"}, "overloaded"), ("overloaded", "overloaded"), ({"code": 1}, "The upstream failed.")],
)
def test_error_body_is_the_upstreams_error(error: Any, message: str) -> None:
    with pytest.raises(ChatAnswerBroken, match=message) as caught:
        answered({"error": error}, numbered_ids())
    assert caught.value.reason == "upstream_error"


def test_answer_that_ended_in_an_error_is_not_completed() -> None:
    assert broken(completion_of({"content": "alp"}, "error")) == "upstream_error"


def test_null_error_beside_choices_is_none() -> None:
    assert answer_to({"content": "alpha"}, error=None).status == "completed"
