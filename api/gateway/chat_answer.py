"""From a chat completion to the output items of a response.

The way back of ``chat_request.py``, for an answer that came in one piece; ``chat_stream.py`` does the same for chunks
and ends with the same answer. Rules:

- an answer is one reasoning item, one message and the tool calls, in this order, each only where there is one;
- what the upstream did not finish is never ``completed``: the item at which the answer was cut is ``incomplete``;
- what cannot be told apart from a broken answer is one: no half-written tool call leaves as a whole one;
- fields of other servers are ignored, except the reasoning that many send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

Item = dict[str, Any]
NewId = Callable[[str], str]
CallType = Literal["function_call", "custom_tool_call"]

T = TypeVar("T")

COMPLETED, INCOMPLETE = "completed", "incomplete"
CALL_FIELDS: dict[CallType, str] = {"function_call": "arguments", "custom_tool_call": "input"}
"""Where an item of a call has what the model wrote."""
_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
# The tiers that a response can name; other servers have their own words ("on_demand").
_SERVICE_TIERS = frozenset({"auto", "default", "flex", "scale", "priority", "fast", "ultrafast"})


class ChatAnswerBroken(Exception):
    """An upstream's answer that cannot be passed on.

    ``reason`` is one word for a program: ``malformed`` (not a chat completion), ``empty`` (finished without a word),
    ``unfinished`` (no finish reason), ``half_written`` (a tool call without its end), ``upstream_error``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What an upstream answered, in the words of the Responses API."""

    output: list[Item]
    status: str
    """``completed`` or ``incomplete``."""
    incomplete_details: dict[str, Any] | None
    usage: dict[str, Any] | None
    """None: the upstream did not count."""
    model: str
    """The upstream's name of the model; empty when it gave none."""
    service_tier: str | None
    error: dict[str, Any] | None = None
    """Always None here: a broken answer is an exception, and its error is the caller's to word."""


class TopTokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One of the likeliest tokens at a place."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(TopTokenLogprob, frozen=True, kw_only=True):
    """A token that was chosen."""

    top_logprobs: list[TopTokenLogprob] | None = None


class Logprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Those of the content; a response has no place for those of a refusal."""

    content: list[TokenLogprob] | None = None


class UrlCitation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a passage comes from."""

    url: str
    title: str = ""
    start_index: int = 0
    end_index: int = 0


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """A citation; other kinds, which other servers send, have no ``url_citation``."""

    url_citation: UrlCitation | None = None


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A called function, or a piece of the call."""

    name: str | None = None
    arguments: str | None = None


class Custom(msgspec.Struct, frozen=True, kw_only=True):
    """A called custom tool, or a piece of the call."""

    name: str | None = None
    input: str | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call or, in a chunk, a piece of one."""

    id: str | None = None
    index: int | None = None
    """Only in a chunk: which call it belongs to."""
    type: str | None = None
    function: Function | None = None
    custom: Custom | None = None

    def call_type(self) -> CallType:
        """Return the type of the output item that it becomes."""
        return "custom_tool_call" if self.type == "custom" or self.custom is not None else "function_call"

    def name(self) -> str:
        """Return the tool's name, or nothing."""
        return (self.custom.name if self.custom else self.function.name if self.function else None) or ""

    def text(self) -> str:
        """Return the arguments or the input, or nothing."""
        return (self.custom.input if self.custom else self.function.arguments if self.function else None) or ""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What the model said or, in a chunk, a piece of it (``delta``)."""

    content: str | None = None
    refusal: str | None = None
    # Not of the API, so not checked: another server may mean something else by them.
    reasoning_content: Any = None
    reasoning: Any = None
    annotations: list[Annotation] | None = None
    tool_calls: list[ToolCall] | None = None

    def reasoning_text(self) -> str:
        """Return the reasoning, or nothing; servers that fill both fields fill them alike."""
        for text in (self.reasoning_content, self.reasoning):
            if isinstance(text, str) and text:
                return text
        return ""

    def url_citations(self) -> list[dict[str, Any]]:
        """Return the annotations of an output text."""
        cited = (annotation.url_citation for annotation in self.annotations or ())
        return [{"type": "url_citation", **msgspec.structs.asdict(citation)} for citation in cited if citation]


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How the prompt met the upstream's cache."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class CompletionTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer was spent on."""

    reasoning_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a chat completion cost."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    message: Message
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class _Completion(msgspec.Struct, frozen=True, kw_only=True):
    choices: list[_Choice]
    model: str | None = None
    usage: Usage | None = None
    service_tier: Any = None


def answered(completion: Mapping[str, Any], new_id: NewId) -> Answered:
    """Return the answer that a buffered chat completion holds; only its first choice, as ``n`` is never sent.

    Raises ``ChatAnswerBroken`` when it holds none.
    """
    value = read(completion, _Completion)
    if not value.choices:
        raise ChatAnswerBroken("malformed", "The upstream's chat completion has no choices.")
    choice = value.choices[0]
    return settled(
        _items(choice, new_id),
        choice.finish_reason,
        usage=value.usage,
        model=value.model,
        service_tier=value.service_tier,
    )


def read(value: Any, type: type[T]) -> T:
    """Return a completion or a chunk as ``type``. Raises ``ChatAnswerBroken``, also for an upstream's error body."""
    error = value.get("error") if isinstance(value, Mapping) else None
    if error is not None:
        message = error.get("message") if isinstance(error, Mapping) else error
        raise ChatAnswerBroken("upstream_error", message if isinstance(message, str) else "The upstream failed.")
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as invalid:
        raise ChatAnswerBroken("malformed", f"The upstream's chat completion is malformed: {invalid}.") from None


def settled(
    output: Sequence[Item], finish_reason: str | None, *, usage: Usage | None, model: str | None, service_tier: Any
) -> Answered:
    """Return the answer with its status and those of its items. Raises ``ChatAnswerBroken`` when it is not whole."""
    if finish_reason is None:
        raise ChatAnswerBroken("unfinished", "The upstream's answer has no end.")
    if finish_reason == "error":
        # OpenRouter's word for a failure behind it, after the status line has gone out.
        raise ChatAnswerBroken("upstream_error", "The upstream failed while it answered.")
    # The words of other servers ("eos", "end_turn") say in their own way that the model was done.
    incomplete_reason = _INCOMPLETE_REASONS.get(finish_reason)
    is_whole = incomplete_reason is None
    if is_whole and not output:
        raise ChatAnswerBroken("empty", "The upstream's answer has neither content nor tool calls.")
    call_ids = [item["call_id"] for item in output if "call_id" in item]
    if len(call_ids) != len(set(call_ids)):
        raise ChatAnswerBroken("malformed", "Two tool calls of the upstream's answer have the same ID.")
    return Answered(
        output=[_with_status(item, is_whole=is_whole, is_last=item is output[-1]) for item in output],
        status=COMPLETED if is_whole else INCOMPLETE,
        incomplete_details=None if is_whole else {"reason": incomplete_reason},
        usage=_usage(usage),
        model=model or "",
        service_tier=service_tier if isinstance(service_tier, str) and service_tier in _SERVICE_TIERS else None,
    )


def is_half_written(call: Item) -> bool:
    """Tell whether an unfinished call lacks its end; of a custom tool's input, which is free text, nobody knows."""
    return call["type"] == "custom_tool_call" or not _is_json(call["arguments"])


def reasoning_item(content: list[dict[str, Any]], new_id: NewId) -> Item:
    """Return a completed reasoning item."""
    return {"id": new_id("rs"), "type": "reasoning", "summary": [], "content": content, "status": COMPLETED}


def message_item(content: list[dict[str, Any]], new_id: NewId) -> Item:
    """Return a completed message."""
    return {"id": new_id("msg"), "type": "message", "role": "assistant", "content": content, "status": COMPLETED}


def call_item(type: CallType, call_id: str, name: str, text: str, new_id: NewId) -> Item:
    """Return a completed tool call."""
    prefix = "fc" if type == "function_call" else "ctc"
    item = {"id": new_id(prefix), "type": type, "call_id": call_id, "name": name, "status": COMPLETED}
    return {**item, CALL_FIELDS[type]: text}


def output_text(text: str, annotations: list[dict[str, Any]], logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the text part of a message."""
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": logprobs}


def text_logprobs(logprobs: Logprobs | None) -> list[dict[str, Any]]:
    """Return the log probabilities of an output text, where ``bytes`` is never null."""
    return [
        {**_logprob(entry), "top_logprobs": [_logprob(top) for top in entry.top_logprobs or ()]}
        for entry in (logprobs.content if logprobs else None) or ()
    ]


def _items(choice: _Choice, new_id: NewId) -> list[Item]:
    message, items = choice.message, []
    if reasoning := message.reasoning_text():
        items.append(reasoning_item([{"type": "reasoning_text", "text": reasoning}], new_id))
    parts: list[dict[str, Any]] = []
    # Beside a refusal or calls an empty content is how servers spell that there is none.
    if message.content or (message.content is not None and not message.refusal and not message.tool_calls):
        parts.append(output_text(message.content, message.url_citations(), text_logprobs(choice.logprobs)))
    if message.refusal:
        parts.append({"type": "refusal", "refusal": message.refusal})
    if parts:
        items.append(message_item(parts, new_id))
    for call in message.tool_calls or ():
        if not call.id or not call.name():
            raise ChatAnswerBroken("malformed", "A tool call of the upstream's answer has no ID or no name.")
        items.append(call_item(call.call_type(), call.id, call.name(), call.text(), new_id))
    return items


def _with_status(item: Item, *, is_whole: bool, is_last: bool) -> Item:
    if item["type"] == "function_call":
        # For a function without parameters some servers send no arguments at all.
        is_cut = not _is_json(item["arguments"]) and not (is_whole and not item["arguments"])
        if is_cut and is_whole:
            raise ChatAnswerBroken("half_written", "The arguments of a tool call of the upstream are not whole JSON.")
    else:
        is_cut = is_last and not is_whole
    return {**item, "status": INCOMPLETE if is_cut else COMPLETED}


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def _usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    prompt_details = usage.prompt_tokens_details or PromptTokensDetails()
    completion_details = usage.completion_tokens_details or CompletionTokensDetails()
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": prompt_details.cached_tokens or 0,
            "cache_write_tokens": prompt_details.cache_write_tokens or 0,
        },
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": completion_details.reasoning_tokens or 0},
        "total_tokens": prompt + completion if usage.total_tokens is None else usage.total_tokens,
    }


def _logprob(entry: TopTokenLogprob) -> dict[str, Any]:
    return {"token": entry.token, "logprob": entry.logprob, "bytes": entry.bytes or []}
