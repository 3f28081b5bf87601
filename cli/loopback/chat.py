"""Chat completions: no state, and no mercy for a conversation that does not fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cli.loopback.answer import (
    Answer,
    Call,
    Heard,
    Message,
    Reasoning,
    answer,
    argument_deltas,
    deltas,
    texts_of,
)
from cli.loopback.chat_messages import check_messages
from cli.loopback.delivery import Frame, begin, deliver, refusal_of_status
from cli.loopback.exchange import Exchange, encode
from cli.loopback.instance import Instance
from cli.loopback.response_body import output_tokens
from cli.loopback.script import Finish
from cli.loopback.usage import Prompt, PromptCache
from ledger.refusal import Refusal

FOREIGN = (
    "input",
    "previous_response_id",
    "conversation",
    "instructions",
    "include",
    "background",
    "text",
    "truncation",
)
"""Fields of the Responses API: a provider of chat completions does not know them."""
DONE = b"data: [DONE]\n\n"

Body = dict[str, Any]


class Chat:
    """The endpoint ``/v1/chat/completions``."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._cache = PromptCache()

    async def create(self, exchange: Exchange) -> None:
        """POST /v1/chat/completions."""
        request = exchange.request()
        _check(request)
        messages = request["messages"]
        heard = _hear(messages)
        is_stream = bool(request.get("stream"))
        await begin(exchange, heard.script, is_stream=is_stream)
        answered = answer(self._instance.name, heard, lambda: self._instance.new_id("call"), _schema(request))
        if answered.finish is Finish.FAILED and not is_stream:
            raise refusal_of_status(500)
        prompt = self._cache.count(_cache_head(request), map(encode, messages))
        if is_stream:
            await deliver(exchange, self._chunks(request, answered, prompt), heard.script)
        else:
            await exchange.answer(self._completion(request, answered, prompt))

    def _completion(self, request: Body, answered: Answer, prompt: Prompt) -> Body:
        choice = {"index": 0, "message": _message(answered), "logprobs": None, "finish_reason": _finish(answered)}
        head = self._head("chat.completion", request)
        return {**head, "choices": [choice], "usage": _usage(answered, prompt)}

    def _chunks(self, request: Body, answered: Answer, prompt: Prompt) -> Iterator[Frame]:
        head = self._head("chat.completion.chunk", request)
        has_usage = bool((request.get("stream_options") or {}).get("include_usage"))
        if has_usage:
            head["usage"] = None

        def chunk(delta: Body, finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return _frame({**head, "choices": [choice]})

        yield chunk({"role": "assistant", "content": "", "refusal": None}), False
        for delta, is_delta in _deltas(answered):
            yield chunk(delta), is_delta
        if answered.finish is Finish.FAILED:
            # What a provider can still say once the status is sent.
            yield _frame(refusal_of_status(500).body()), False
            return
        yield chunk({}, _finish(answered)), False
        if has_usage:
            yield _frame({**head, "choices": [], "usage": _usage(answered, prompt)}), False
        yield DONE, False

    def _head(self, kind: str, request: Body) -> Body:
        return {
            "id": self._instance.new_completion_id(),
            "object": kind,
            "created": self._instance.now(),
            "model": request["model"],
            "service_tier": "default",
            "system_fingerprint": "fp_loopback",
        }


def _check(request: Body) -> None:
    for name in FOREIGN:
        if name in request:
            text = f"Unrecognized request argument supplied: {name}"
            raise Refusal(400, text, code="unknown_parameter", param=name)
    for name in ("model", "messages"):
        if not request.get(name):
            text = f"Missing required parameter: '{name}'."
            raise Refusal(400, text, code="missing_required_parameter", param=name)
    check_messages(request["messages"])


def _hear(messages: Sequence[Body]) -> Heard:
    heard = Heard.nothing()
    for message in messages:
        if message["role"] == "user":
            heard.user(texts_of(message["content"]))
        elif message["role"] == "tool":
            heard.tool(message["tool_call_id"], texts_of(message["content"]))
    return heard


def _schema(request: Body) -> Mapping[str, Any] | None:
    asked = (request.get("response_format") or {}).get("json_schema") or {}
    schema: Mapping[str, Any] | None = asked.get("schema")
    return schema


def _cache_head(request: Body) -> bytes:
    return encode([request["model"], request.get("tools")])


def _message(answered: Answer) -> Body:
    reasoning = [part.text for part in answered.parts if isinstance(part, Reasoning)]
    said = [part for part in answered.parts if isinstance(part, Message)]
    calls = [part for part in answered.parts if isinstance(part, Call)]
    text = said[0] if said else None
    message: Body = {
        "role": "assistant",
        "content": None if text is None or text.is_refusal else text.text,
        "refusal": text.text if text is not None and text.is_refusal else None,
        "annotations": [],
    }
    if reasoning:
        message["reasoning_content"] = "\n".join(reasoning)
    if calls:
        message["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def _deltas(answered: Answer) -> Iterator[tuple[Body, bool]]:
    """Yield what a stream adds to the message, piece by piece, and whether a piece counts as a delta."""
    call_index = 0
    has_reasoned = False
    for part in answered.parts:
        match part:
            case Reasoning():
                # The format has one text of reasoning for the whole message.
                text = f"\n{part.text}" if has_reasoned else part.text
                has_reasoned = True
                for word in deltas(text):
                    yield {"reasoning_content": word}, True
            case Message():
                field = "refusal" if part.is_refusal else "content"
                for word in deltas(part.text):
                    yield {field: word}, True
            case Call():
                function = {"name": part.name, "arguments": ""}
                opened = {"index": call_index, "id": part.call_id, "type": "function", "function": function}
                yield {"tool_calls": [opened]}, False
                for piece in argument_deltas(part.arguments):
                    yield {"tool_calls": [{"index": call_index, "function": {"arguments": piece}}]}, True
                call_index += 1


def _finish(answered: Answer) -> str:
    has_calls = any(isinstance(part, Call) for part in answered.parts)
    return "tool_calls" if has_calls and answered.finish is Finish.STOP else answered.finish


def _usage(answered: Answer, prompt: Prompt) -> Body:
    reasoning, spoken = output_tokens(answered.parts)
    return {
        "prompt_tokens": prompt.tokens,
        "completion_tokens": reasoning + spoken,
        "total_tokens": prompt.tokens + reasoning + spoken,
        "prompt_tokens_details": {"cached_tokens": prompt.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": reasoning, "audio_tokens": 0},
    }


def _frame(body: Body) -> bytes:
    return b"data: %s\n\n" % encode(body)
