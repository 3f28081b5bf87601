"""From the chunks of a chat completion to the streaming events of a response.

A pure state machine: chunks in, events out, and in the end the answer that ``chat_answer.py`` gives for the same
completion in one piece. It neither numbers its events nor makes those of the response itself; both are the caller's.

Rules:

- an item opens when its first text arrives; a tool call when both its ID and its name are known;
- reasoning and text close when something else begins, and what comes later of them opens a new item: items keep the
  order in which the upstream sent them;
- calls stay open to the end, because pieces of parallel calls may interleave;
- nothing is closed as completed before the upstream said that it has finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from api.gateway.chat_answer import (
    CALL_FIELDS,
    INCOMPLETE,
    Answered,
    CallType,
    ChatAnswerBroken,
    Item,
    Logprobs,
    Message,
    NewId,
    ToolCall,
    Usage,
    call_item,
    is_half_written,
    message_item,
    output_text,
    read,
    reasoning_item,
    settled,
    text_logprobs,
)
from api.gateway.events import Event, ItemEvents, item_added, item_done

PartType = Literal["reasoning_text", "output_text", "refusal"]


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    delta: Message | None = None
    """Absent from the chunks in which Azure tells of its content filter."""
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class _Chunk(msgspec.Struct, frozen=True, kw_only=True):
    choices: list[_Choice] | None = None
    """Empty in the chunk with the usage."""
    model: str | None = None
    usage: Usage | None = None
    service_tier: Any = None


class ChatStream:
    """One streamed chat completion: feed every chunk, then finish. After an exception only ``partial`` holds."""

    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id
        self._items: list[_TextItem | _Call] = []
        """Those that were opened; the place of each is its ``output_index``."""
        self._calls: list[_Call] = []
        """All calls that have begun, opened or not."""
        self._by_index: dict[int, _Call] = {}
        self._text: _TextItem | None = None
        """The one item of reasoning or text that is open."""
        self._is_content = False
        """Whether there was content, be it empty."""
        self._logprobs: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []
        """Both wait for the text that they belong to."""
        self._finish_reason: str | None = None
        self._model: str | None = None
        self._usage: Usage | None = None
        self._service_tier: Any = None

    def feed(self, chunk: Mapping[str, Any]) -> list[Event]:
        """Return the events of a chunk. Raises ``ChatAnswerBroken`` for an error and for what is not a chunk."""
        value = read(chunk, _Chunk)
        self._model = self._model or value.model
        self._service_tier = self._service_tier or value.service_tier
        # Some servers count in every chunk; the last count is the whole one.
        self._usage = value.usage or self._usage
        events: list[Event] = []
        for choice in value.choices or ():
            if choice.index == 0:
                self._delta(choice.delta or Message(), choice.logprobs, events)
                self._finish_reason = choice.finish_reason or self._finish_reason
        return events

    def finish(self) -> tuple[list[Event], Answered]:
        """Return the events that close what is open, and the whole answer.

        Raises ``ChatAnswerBroken`` when the upstream did not finish its answer, or finished it inside a tool call.
        """
        events: list[Event] = []
        if self._finish_reason is not None:
            if not all(call.is_open for call in self._calls):
                raise ChatAnswerBroken("malformed", "A tool call of the upstream's answer has no ID or no name.")
            is_message = any(isinstance(item, _TextItem) and item.is_message for item in self._items)
            if self._is_content and not is_message and not self._calls:
                self._write("output_text", "", events)
        answer = settled(
            [item.value() for item in self._items],
            self._finish_reason,
            usage=self._usage,
            model=self._model,
            service_tier=self._service_tier,
        )
        for item, value in zip(self._items, answer.output, strict=True):
            if item.is_open:
                events.extend(item.close(value))
        return events, answer

    def partial(self) -> list[Item]:
        """Return the items so far of an answer that was cut off, for its record.

        What was closed is as the client saw it, the rest is incomplete; half-written tool calls are left out.
        """
        items: list[Item] = []
        for item in self._items:
            value = item.value()
            if not item.is_open:
                items.append(value)
            elif isinstance(item, _TextItem) or not is_half_written(value):
                items.append({**value, "status": INCOMPLETE})
        return items

    def _delta(self, delta: Message, logprobs: Logprobs | None, events: list[Event]) -> None:
        if reasoning := delta.reasoning_text():
            self._write("reasoning_text", reasoning, events)
        if delta.content is not None:
            # Tokens without content, such as those of a call, are not of the text.
            self._is_content = True
            self._logprobs += text_logprobs(logprobs)
        self._annotations += delta.url_citations()
        # Without content, an open text still takes its annotations.
        if delta.content or (self._text is not None and self._text.is_output_text):
            self._write("output_text", delta.content or "", events)
        if delta.refusal:
            self._write("refusal", delta.refusal, events)
        for piece in delta.tool_calls or ():
            self._call(piece, events)

    def _write(self, type: PartType, text: str, events: list[Event]) -> None:
        is_message = type != "reasoning_text"
        if self._text is None or self._text.is_message != is_message:
            self._close_text(events)
            item = (message_item if is_message else reasoning_item)([], self._new_id)
            self._text = _TextItem(item=item, output_index=len(self._items))
            self._items.append(self._text)
            events.append(item_added(item, self._text.output_index))
        if type == "output_text":
            events.extend(self._text.write(type, text, self._logprobs, self._annotations))
            self._logprobs, self._annotations = [], []
        else:
            events.extend(self._text.write(type, text))

    def _call(self, piece: ToolCall, events: list[Event]) -> None:
        call = self._call_of(piece)
        call.take(piece)
        if not call.is_open and call.id and call.name:
            self._close_text(events)
            call.open(len(self._items), self._new_id)
            self._items.append(call)
            events.append(item_added(call.item, call.output_index))
        if call.is_open:
            events.extend(call.unsent())

    def _call_of(self, piece: ToolCall) -> _Call:
        index = piece.index
        if index is None:
            # A server that does not count its calls sends one after another.
            index = self._calls[-1].index if self._calls else 0
        call = self._by_index.get(index)
        # Some servers give every call the same index, others every piece another ID; only a new call has both.
        if call is None or (call.id and piece.id and piece.id != call.id and piece.name()):
            call = self._by_index[index] = _Call(index=index)
            self._calls.append(call)
        return call

    def _close_text(self, events: list[Event]) -> None:
        if self._text is not None:
            events.extend(self._text.close(self._text.value()))
            self._text = None


@dataclass(slots=True, kw_only=True)
class _Part:
    """A part of a reasoning item or a message, while it grows."""

    type: PartType
    pieces: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)

    def value(self) -> dict[str, Any]:
        text = "".join(self.pieces)
        if self.type == "output_text":
            return output_text(text, list(self.annotations), list(self.logprobs))
        return {"type": self.type, "refusal" if self.type == "refusal" else "text": text}


@dataclass(slots=True, kw_only=True)
class _TextItem:
    """A reasoning item or a message; its last part is the one that grows."""

    item: Item
    """As it was opened, then as it was closed."""
    output_index: int
    parts: list[_Part] = field(default_factory=list)
    is_open: bool = True

    @property
    def is_message(self) -> bool:
        return bool(self.item["type"] == "message")

    @property
    def is_output_text(self) -> bool:
        return bool(self.parts) and self.parts[-1].type == "output_text"

    def value(self) -> Item:
        return {**self.item, "content": [part.value() for part in self.parts]} if self.is_open else self.item

    def write(
        self,
        type: PartType,
        text: str,
        logprobs: Sequence[dict[str, Any]] = (),
        annotations: Sequence[dict[str, Any]] = (),
    ) -> list[Event]:
        events: list[Event] = []
        if not self.parts or self.parts[-1].type != type:
            events.extend(self._part_done())
            self.parts.append(_Part(type=type))
            events.append(self._events.part_added(len(self.parts) - 1, type))
        part, index = self.parts[-1], len(self.parts) - 1
        part.logprobs += logprobs
        if text:
            part.pieces.append(text)
            events.append(self._events.part_delta(index, type, text, logprobs))
        for annotation in annotations:
            events.append(self._events.annotation_added(index, len(part.annotations), annotation))
            part.annotations.append(annotation)
        return events

    def close(self, value: Item) -> list[Event]:
        events = [*self._part_done(), item_done(value, self.output_index)]
        self.item, self.is_open = value, False
        return events

    def _part_done(self) -> list[Event]:
        return self._events.part_done(len(self.parts) - 1, self.parts[-1].value()) if self.parts else []

    @property
    def _events(self) -> ItemEvents:
        return ItemEvents(item_id=self.item["id"], output_index=self.output_index)


@dataclass(slots=True, kw_only=True)
class _Call:
    """A tool call; it has an item as soon as it is open."""

    index: int
    id: str = ""
    name: str = ""
    type: CallType = "function_call"
    pieces: list[str] = field(default_factory=list)
    sent_count: int = 0
    """How many of the pieces have left as events."""
    item: Item = field(default_factory=dict)
    output_index: int = -1
    is_open: bool = False

    def value(self) -> Item:
        return {**self.item, CALL_FIELDS[self.type]: "".join(self.pieces)} if self.is_open else self.item

    def take(self, piece: ToolCall) -> None:
        """Add a piece; the first ID and the first name stand, as some servers repeat them."""
        self.id = self.id or piece.id or ""
        self.name = self.name or piece.name()
        if not self.is_open and piece.call_type() == "custom_tool_call":
            self.type = "custom_tool_call"
        if text := piece.text():
            self.pieces.append(text)

    def open(self, output_index: int, new_id: NewId) -> None:
        self.item = call_item(self.type, self.id, self.name, "", new_id)
        self.output_index = output_index
        self.is_open = True

    def unsent(self) -> list[Event]:
        """Return the event of what no event has carried yet: at the opening all of it, then each piece."""
        text = "".join(self.pieces[self.sent_count :])
        self.sent_count = len(self.pieces)
        return [self._events.call_delta(self.type, text)] if text else []

    def close(self, value: Item) -> list[Event]:
        self.item, self.is_open = value, False
        return [self._events.call_done(value), item_done(value, self.output_index)]

    @property
    def _events(self) -> ItemEvents:
        return ItemEvents(item_id=self.item["id"], output_index=self.output_index)
