"""The streaming events of the Responses API, and those that a finished response would have had.

A stream of chat chunks (``chat_stream.py``) and a stored response become events by the same few functions, so that a
client cannot tell one from the other. Rules:

- items open in the order of their ``output_index``; every event of an item lies between its added and its done;
- the done events repeat the whole text: a client may ignore the deltas;
- only ``events_of`` numbers its events; elsewhere ``sequence_number`` is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]
Item = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartWords:
    """How the API spells the events of one type of part."""

    text: str
    """Prefix of the events of its text."""
    part: str
    """Prefix of the events of the part itself."""
    index: str
    """Field with the part's place in its item."""
    field: str = "text"
    """Field with the text, in the part and in the done event."""


_PARTS = {
    "output_text": _PartWords(text="response.output_text", part="response.content_part", index="content_index"),
    "refusal": _PartWords(
        text="response.refusal", part="response.content_part", index="content_index", field="refusal"
    ),
    "reasoning_text": _PartWords(text="response.reasoning_text", part="response.content_part", index="content_index"),
    "summary_text": _PartWords(
        text="response.reasoning_summary_text", part="response.reasoning_summary_part", index="summary_index"
    ),
}
_CALLS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}
# The API's union of events has none for a cancelled response. Like a failed one it is no answer, and it cannot be
# continued; an incomplete one is an answer and can. The response in the event still says ``cancelled``.
_TERMINALS = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.failed",
}


def events_of(response: Mapping[str, Any]) -> list[Event]:
    """Return the whole sequence for a response whose status is final, numbered from 0; each text is one delta."""
    events = opening(response)
    for output_index, item in enumerate(response["output"]):
        events.extend(_item_events(item, output_index))
    events.append(terminal(response))
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


class MalformedItem(Exception):
    """An output item lacks what its events are made of."""


def checked_output(item: Any) -> Item:
    """Return an output item of a target if events can be made of it. Raises ``MalformedItem``."""
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        raise MalformedItem("it is no object with a type")
    if not isinstance(item.get("id"), str | None):
        raise MalformedItem("its ID is no string")
    if item["type"] == "message" and not isinstance(item.get("role"), str):
        raise MalformedItem("it has no role")
    if item["type"] in _CALLS and not all(
        isinstance(item.get(name), str) for name in ("call_id", "name", _CALLS[item["type"]][1])
    ):
        raise MalformedItem("its call is not whole")
    if item["type"] in ("message", "reasoning"):
        for parts in (item.get("summary"), item.get("content")):
            if not isinstance(parts, list | None):
                raise MalformedItem("its parts are no list")
            for part in parts or ():
                _check_part(part)
    return item


def _check_part(part: Any) -> None:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise MalformedItem("a part is no object with a type")
    words = _PARTS.get(part["type"])
    if words is not None and not isinstance(part.get(words.field), str):
        raise MalformedItem("a part has no text")
    logprobs, annotations = part.get("logprobs") or [], part.get("annotations") or []
    if not isinstance(annotations, list) or not all(isinstance(annotation, dict) for annotation in annotations):
        raise MalformedItem("its annotations are no objects")
    if not isinstance(logprobs, list) or not all(_is_logprob(entry) for entry in logprobs):
        raise MalformedItem("its log probabilities are malformed")


def _is_logprob(entry: Any) -> bool:
    if not isinstance(entry, dict) or not {"token", "logprob"} <= entry.keys():
        return False
    tops = entry.get("top_logprobs") or []
    return isinstance(tops, list) and all(isinstance(top, dict) and {"token", "logprob"} <= top.keys() for top in tops)


def opening(response: Mapping[str, Any]) -> list[Event]:
    """Return the two events with which every response begins."""
    begun = {
        # The API's schema lets an unfinished response leave out its usage, but not call it null.
        **{name: value for name, value in response.items() if name != "usage"},
        "status": "in_progress",
        "output": [],
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
    }
    return [{"type": type, "response": begun} for type in ("response.created", "response.in_progress")]


def terminal(response: Mapping[str, Any]) -> Event:
    """Return the event with which a response of this final status ends."""
    return {"type": _TERMINALS[response["status"]], "response": dict(response)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemEvents:
    """Makes the events of one output item."""

    item_id: str
    output_index: int

    def part_added(self, index: int, type: str) -> Event:
        """Return the event that opens a part; its text is still empty."""
        words = _PARTS[type]
        part: dict[str, Any] = {"type": type, words.field: ""}
        if type == "output_text":
            part |= {"annotations": [], "logprobs": []}
        return self._event(f"{words.part}.added", {words.index: index, "part": part})

    def part_delta(self, index: int, type: str, delta: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> Event:
        """Return the event of a piece of a part's text."""
        words = _PARTS[type]
        fields: dict[str, Any] = {words.index: index, "delta": delta}
        if type == "output_text":
            fields["logprobs"] = _event_logprobs(logprobs)
        return self._event(f"{words.text}.delta", fields)

    def annotation_added(self, index: int, annotation_index: int, annotation: Mapping[str, Any]) -> Event:
        """Return the event of one more annotation of a text."""
        fields = {"content_index": index, "annotation_index": annotation_index, "annotation": dict(annotation)}
        return self._event("response.output_text.annotation.added", fields)

    def part_done(self, index: int, part: Mapping[str, Any]) -> list[Event]:
        """Return the events that close a part: first its text, then the part."""
        words = _PARTS[part["type"]]
        fields = {words.index: index, words.field: part[words.field]}
        if part["type"] == "output_text":
            fields["logprobs"] = _event_logprobs(part.get("logprobs") or ())
        return [
            self._event(f"{words.text}.done", fields),
            self._event(f"{words.part}.done", {words.index: index, "part": dict(part)}),
        ]

    def call_delta(self, type: str, delta: str) -> Event:
        """Return the event of a piece of a call's arguments or input."""
        return self._event(f"{_CALLS[type][0]}.delta", {"delta": delta})

    def call_done(self, item: Mapping[str, Any]) -> Event:
        """Return the event that closes a call's arguments or input."""
        prefix, field = _CALLS[item["type"]]
        fields = {field: item[field]}
        if item["type"] == "function_call":
            # The API's schema requires the name here; the SDK's type does not know it.
            fields["name"] = item["name"]
        return self._event(f"{prefix}.done", fields)

    def _event(self, type: str, fields: Mapping[str, Any]) -> Event:
        return {"type": type, "item_id": self.item_id, "output_index": self.output_index, **fields}


def item_added(item: Mapping[str, Any], output_index: int) -> Event:
    """Return the event that opens an item: as it will be, but empty and in progress."""
    opened = dict(item)
    match item["type"]:
        case "message":
            opened |= {"content": [], "status": "in_progress"}
        case "reasoning":
            opened |= {name: [] for name in ("summary", "content") if item.get(name)}
            opened |= _in_progress(item)
        case "function_call" | "custom_tool_call" as type:
            opened |= {_CALLS[type][1]: "", **_in_progress(item)}
        case _:
            # What an item of another type may leave out while it is in progress, only its own definition says.
            pass
    return {"type": "response.output_item.added", "output_index": output_index, "item": opened}


def item_done(item: Mapping[str, Any], output_index: int) -> Event:
    """Return the event that closes an item."""
    return {"type": "response.output_item.done", "output_index": output_index, "item": dict(item)}


def _item_events(item: Mapping[str, Any], output_index: int) -> Iterator[Event]:
    yield item_added(item, output_index)
    # Calls may come without an ID of their own (SDK: ``id`` is optional), and then nothing can name them.
    if isinstance(item.get("id"), str):
        made = ItemEvents(item_id=item["id"], output_index=output_index)
        for parts in (item.get("summary"), item.get("content")) if item["type"] in ("message", "reasoning") else ():
            for index, part in enumerate(parts or ()):
                # A part of a type that is newer than this table comes with its item.
                if part["type"] in _PARTS:
                    yield from _part_events(made, index, part)
        if item["type"] in _CALLS:
            yield from _call_events(made, item)
    yield item_done(item, output_index)


def _part_events(made: ItemEvents, index: int, part: Mapping[str, Any]) -> Iterator[Event]:
    type = part["type"]
    text = part[_PARTS[type].field]
    yield made.part_added(index, type)
    if text:
        yield made.part_delta(index, type, text, part.get("logprobs") or ())
    for annotation_index, annotation in enumerate(part.get("annotations") or ()):
        yield made.annotation_added(index, annotation_index, annotation)
    yield from made.part_done(index, part)


def _call_events(made: ItemEvents, item: Mapping[str, Any]) -> Iterator[Event]:
    text = item[_CALLS[item["type"]][1]]
    if text:
        yield made.call_delta(item["type"], text)
    yield made.call_done(item)


def _in_progress(item: Mapping[str, Any]) -> dict[str, str]:
    return {"status": "in_progress"} if item.get("status") else {}


def _event_logprobs(logprobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return log probabilities as events have them: without the bytes, which only the item has."""
    return [
        {
            "token": entry["token"],
            "logprob": entry["logprob"],
            "top_logprobs": [
                {"token": top["token"], "logprob": top["logprob"]} for top in entry.get("top_logprobs") or ()
            ],
        }
        for entry in logprobs
    ]
