"""How a portable turn is asked of a target, by format: the request's bytes, and what is made of the answer.

A dialect turns the answer into the API's output items and streaming events; it knows nothing of ledger and client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from api.gateway.chat_answer import Answered, ChatAnswerBroken, answered
from api.gateway.chat_request import chat_request
from api.gateway.chat_stream import ChatStream
from api.gateway.config import TargetConfig, TargetFormat
from api.gateway.events import MalformedItem, checked_output
from api.gateway.ids import new_id
from api.gateway.references import without_id
from api.gateway.request import CreateRequest
from api.gateway.sse import Frame
from ledger.answer import Entry
from ledger.continuation import Target

LIFECYCLE = frozenset(
    {"response.queued", "response.created", "response.in_progress"}
    | (TERMINALS := frozenset({"response.completed", "response.incomplete", "response.failed"}))
)
"""Events that carry the whole response; those of a portable turn are made here."""
DONE = b"[DONE]"
"""Last data of a stream of the chat completions API."""

_decoder = msgspec.json.Decoder(dict[str, Any])
_encoder = msgspec.json.Encoder()


class StreamReader(Protocol):
    """Reads one streamed answer."""

    def feed(self, frame: Frame) -> list[dict[str, Any]]:
        """Return the events of a frame, without those of ``LIFECYCLE``. Raises ``ChatAnswerBroken``."""
        ...

    def finish(self) -> tuple[list[dict[str, Any]], Answered]:
        """Return the last events and the whole answer. Raises ``ChatAnswerBroken`` when it is not whole."""
        ...

    def partial(self) -> list[dict[str, Any]]:
        """Return the output items so far, of an answer that was cut off."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a portable turn asks."""

    request: CreateRequest
    history: Sequence[Entry]
    items: Sequence[dict[str, Any]]
    """The turn's own input items, canonical."""
    keeps_bare_reasoning: bool = True
    """False: the target has refused reasoning that is no more than its ID."""


class Dialect(Protocol):
    """One format."""

    path: str

    def payload(self, asked: Asked, model: str, target: Target) -> bytes:
        """Return the body to send. Raises ``Refusal`` for what the format cannot say."""
        ...

    def read(self, body: bytes) -> Answered:
        """Return what a buffered answer says. Raises ``ChatAnswerBroken``."""
        ...

    def reader(self) -> StreamReader:
        """Return a reader of one streamed answer."""
        ...


def dialect_of(config: TargetConfig) -> Dialect:
    """Return the dialect of a target."""
    if config.format is TargetFormat.CHAT_COMPLETIONS:
        return ChatDialect(config.max_tokens_field)
    return ResponsesDialect()


class ChatDialect:
    """Chat completions: the history is sent as messages."""

    path = "/chat/completions"

    def __init__(self, max_tokens_field: str) -> None:
        self._max_tokens_field = max_tokens_field

    def payload(self, asked: Asked, model: str, target: Target) -> bytes:
        items = [item for entry in asked.history for item in (*entry.input, *entry.output)]
        request = chat_request(
            asked.request.body,
            [*items, *asked.items],
            model=model,
            stream=asked.request.stream,
            max_tokens_field=self._max_tokens_field,
        )
        return _encoder.encode(request)

    def read(self, body: bytes) -> Answered:
        return answered(_object(body), new_id)

    def reader(self) -> StreamReader:
        return _ChatReader()


class _ChatReader:
    def __init__(self) -> None:
        self._stream = ChatStream(new_id)

    def feed(self, frame: Frame) -> list[dict[str, Any]]:
        if not frame.data or frame.data == DONE:
            return []
        return self._stream.feed(_object(frame.data))

    def finish(self) -> tuple[list[dict[str, Any]], Answered]:
        return self._stream.finish()

    def partial(self) -> list[dict[str, Any]]:
        return self._stream.partial()


class ResponsesDialect:
    """The Responses API without its state: the history is sent as input, and the target is told to store nothing.

    Items that this very target made go back byte for byte; from those of others, reasoning is left out, and IDs, which
    mean nothing to it. Some targets refuse their own bare reasoning, an ID without anything to read, because they
    stored nothing that it could name: such a request is sent again without (``Asked.keeps_bare_reasoning``).
    """

    path = "/responses"

    def payload(self, asked: Asked, model: str, target: Target) -> bytes:
        body = {name: value for name, value in asked.request.body.items() if name not in _STATEFUL}
        replayed: list[Any] = []
        for entry in asked.history:
            is_own = _is_of(target, entry)
            replayed.extend(_portable(entry.input, keeps_reasoning=is_own))
            replayed.extend(entry.output if is_own else _portable(entry.output, keeps_reasoning=False))
        replayed.extend(_portable(asked.items, keeps_reasoning=True))
        if not asked.keeps_bare_reasoning:
            replayed = without_bare_reasoning(replayed)
        return _encoder.encode({**body, "model": model, "store": False, "input": replayed})

    def read(self, body: bytes) -> Answered:
        return _answered(_object(body))

    def reader(self) -> StreamReader:
        return _ResponsesReader()


_STATEFUL = frozenset({"previous_response_id", "conversation", "background", "input"})


class _ResponsesReader:
    def __init__(self) -> None:
        self._items: dict[int, dict[str, Any]] = {}
        self._terminal: Answered | None = None

    def feed(self, frame: Frame) -> list[dict[str, Any]]:
        if not frame.data or frame.data == DONE:
            return []
        event = _object(frame.data)
        kind = event.setdefault("type", frame.event)
        if not isinstance(kind, str) or not kind or not kind.isprintable():
            raise ChatAnswerBroken("malformed", "an event of the target's answer has no type")
        if kind == "error":
            raise ChatAnswerBroken("upstream_error", str(event.get("message") or "the target reported an error"))
        if kind in LIFECYCLE:
            if kind in TERMINALS:
                self._terminal = _answered(event.get("response"))
            return []
        if kind == "response.output_item.done" and isinstance(event.get("output_index"), int):
            self._items[event["output_index"]] = _item(event.get("item"))
        event.pop("sequence_number", None)
        return [event]

    def finish(self) -> tuple[list[dict[str, Any]], Answered]:
        if self._terminal is None:
            raise ChatAnswerBroken("unfinished", "the stream ended without its last event")
        return [], self._terminal

    def partial(self) -> list[dict[str, Any]]:
        return [item for _, item in sorted(self._items.items())]


def _is_of(target: Target, entry: Entry) -> bool:
    record = entry.record if isinstance(entry.record, dict) else {}
    return record.get("target") == target.name and record.get("digest") == target.digest.hex()


def _portable(items: Sequence[Any], *, keeps_reasoning: bool) -> list[Any]:
    """Return items as any target takes them: IDs that were made here are left out; reasoning has no meaning without."""
    return [
        item if item.get("type") == "reasoning" else without_id(item)
        for item in items
        if item.get("type") != "reasoning" or keeps_reasoning
    ]


def without_bare_reasoning(items: Sequence[Any]) -> list[Any]:
    """Return items without reasoning that says nothing by itself.

    What follows it loses its ID: a provider wants an item of its own only together with the reasoning that led to it.
    """
    kept: list[Any] = []
    is_after_dropped = False
    for item in items:
        if is_bare_reasoning(item):
            is_after_dropped = True
            continue
        kept.append(without_id(item) if is_after_dropped else item)
        is_after_dropped = False
    return kept


def is_bare_reasoning(item: Mapping[str, Any]) -> bool:
    """Return whether an item is reasoning with no more than its ID and a summary, which no model reads."""
    is_reasoning = item.get("type") == "reasoning"
    return is_reasoning and item.get("encrypted_content") is None and not item.get("content")


def _answered(response: Any) -> Answered:
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        raise ChatAnswerBroken("malformed", "the target's answer is not a response")
    status = response.get("status", "completed")
    if status not in ("completed", "incomplete", "failed"):
        raise ChatAnswerBroken("malformed", f"the target's answer has the status {str(status)[:32]!r}")
    for name in ("incomplete_details", "usage", "error"):
        if not isinstance(response.get(name), dict | None):
            raise ChatAnswerBroken("malformed", f"the target's answer has {name} that are no object")
    service_tier = response.get("service_tier")
    return Answered(
        output=[_item(item) for item in response["output"]],
        status=status,
        incomplete_details=response.get("incomplete_details"),
        usage=response.get("usage"),
        model=str(response.get("model") or ""),
        service_tier=service_tier if isinstance(service_tier, str) else None,
        error=response.get("error"),
    )


def _item(value: Any) -> dict[str, Any]:
    """Return an output item; one that could not be replayed, listed or streamed again is refused, not stored."""
    try:
        return checked_output(value)
    except MalformedItem as error:
        raise ChatAnswerBroken("malformed", f"an item of the target's answer is malformed: {error}") from None


def _object(body: bytes) -> dict[str, Any]:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ChatAnswerBroken("malformed", "the target's answer is not a JSON object") from error
