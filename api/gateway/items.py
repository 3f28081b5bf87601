"""The ``input`` of a request as the items that the ledger stores: one form, whatever form the client chose.

Rules:

- a string, a short message and a full message that say the same become the same item, so they replay the same;
- what is stored is what a list of items answers: a full resource of the API, with an ID and a status;
- an ID that the client gave is kept, and so is every field that this module does not know; a null says nothing;
- reasoning is otherwise kept as it came, since its provider reads it again: an empty summary and encrypted content too;
- what is not an item of the API is refused, naming the place in the request.

An item reference is passed on as it is: its caller looks it up. How many items a turn may have is the ledger's bound.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from api.gateway.item_shapes import CALLS, INPUT_PARTS, KEPT, OUTPUT_PARTS, InputFile, InputImage, Message, Reasoning
from ledger.errors import InvalidInput
from ledger.refusal import Refusal
from ledger.turn import ID_BYTES_MAX, checked_text

INPUT = "input"
INVALID_VALUE = "invalid_value"
"""Code of the API for a field that is not what it takes."""
ITEM_REFERENCE = "item_reference"
OUTPUT_OF_CALL = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
"""Type of the item that answers a call, by type of the call: of the tools that the client itself runs."""

T = TypeVar("T")
Item = dict[str, Any]

_PATH = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")


def canonical_items(value: str | list[Any], new_id: Callable[[str], str], *, field: str = INPUT) -> list[Item]:
    """Return the canonical items of a request's ``field``, one for each entry, in its order.

    ``new_id`` makes an ID from its prefix (``api.gateway.ids.new_id``). Raises ``Refusal`` naming the place.
    """
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise invalid_value(field, "it must be a string or a list of items")
    items = []
    seen: set[str] = set()
    for index, given in enumerate(value):
        path = f"{field}[{index}]"
        item = _item(given, path, new_id)
        if item["type"] != ITEM_REFERENCE:
            if item["id"] in seen:
                raise invalid_value(f"{path}.id", "another item of the input has this ID; send each item once")
            seen.add(item["id"])
        items.append(item)
    return items


def require_calls(items: Sequence[Mapping[str, Any]]) -> None:
    """Raise ``Refusal`` unless every tool call of ``items`` (history, then input) and every output have each other.

    An output comes after its call and before the next message; only an assistant message that is part of the same
    answer may stand between a call and the first output. An ID may be used again once its call is answered, as some
    models count their calls from 0 in every answer.
    """
    waiting: dict[str, str] = {}
    answered: set[str] = set()
    is_answering = False
    for item in items:
        kind = item["type"]
        if kind in OUTPUT_OF_CALL:
            call_id = item["call_id"]
            if call_id in waiting:
                raise _broken("tool_call_repeated", f"Two tool calls have the ID {call_id!r}; give each its own.")
            is_answering = is_answering and bool(waiting)
            waiting[call_id] = OUTPUT_OF_CALL[kind]
        elif kind in OUTPUT_OF_CALL.values():
            call_id = item["call_id"]
            if waiting.get(call_id) != kind:
                raise _unexpected(kind, call_id, is_second=call_id in answered and call_id not in waiting)
            del waiting[call_id]
            answered.add(call_id)
            is_answering = True
        elif kind == "message" and (item["role"] != "assistant" or is_answering):
            _require_none(waiting)
    _require_none(waiting)


def checked(value: Any, shape: type[T], path: str) -> T:
    """Return ``value`` as ``shape``. Raises ``Refusal`` naming the field below ``path``; an empty path is the body."""
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        message = str(error)
    place = _PATH.search(message)
    below = "" if place is None else place["path"]
    reason = message if place is None else message[: place.start()]
    missing = _MISSING.fullmatch(reason)
    if missing is not None:
        below, reason = f"{below}.{missing['name']}", "it is required"
    raise invalid_value((path + below).removeprefix("."), reason[:1].lower() + reason[1:])


def invalid_value(param: str, reason: str) -> Refusal:
    """Return the refusal of a field that is not what the API takes."""
    return Refusal(
        400, f"Invalid value for '{param}': {reason}. Correct it and try again.", code=INVALID_VALUE, param=param
    )


def _item(given: Any, path: str, new_id: Callable[[str], str]) -> Item:
    if not isinstance(given, dict):
        raise invalid_value(path, "it must be an object")
    kind = _kind(given, path)
    if kind == ITEM_REFERENCE:
        _check_id(given.get("id"), path)
        return given if given.get("type") is not None else {"type": ITEM_REFERENCE, "id": given["id"]}
    if given.get("id") is not None:
        _check_id(given["id"], path)
    if kind == "message":
        return _message(given, path, new_id)
    if kind == "reasoning":
        checked(given, Reasoning, path)
        kept = {name: value for name, value in given.items() if value is not None}
        return kept if "id" in kept else {**kept, "id": new_id("rs")}
    if kind in CALLS:
        return _call(given, kind, path, new_id)
    if kind in KEPT:
        return _kept(given, kind, path, new_id)
    if kind == "compaction_trigger":
        raise Refusal(
            400,
            f"'{path}' asks to compact the context, which only the target that holds it can do. Leave it out.",
            code="unsupported_item",
            param=f"{path}.type",
        )
    known = ", ".join(("message", "reasoning", ITEM_REFERENCE, *CALLS, *KEPT))
    raise invalid_value(f"{path}.type", f"it must be one of {known}")


def _kind(given: Mapping[str, Any], path: str) -> str:
    """Return an item's type; the API lets that of a message and of a reference be left out."""
    kind = given.get("type")
    if isinstance(kind, str):
        return kind
    if kind is not None:
        raise invalid_value(f"{path}.type", "it must be a string")
    if "role" in given or "content" in given:
        return "message"
    if "id" in given and given.keys() <= {"id", "type"}:
        return ITEM_REFERENCE
    raise invalid_value(f"{path}.type", "it is required")


def _message(given: Mapping[str, Any], path: str, new_id: Callable[[str], str]) -> Item:
    shape = checked(given, Message, path)
    is_output = shape.role == "assistant"
    content = shape.content
    if isinstance(content, str):
        content = [{"type": "output_text" if is_output else "input_text", "text": content}]
    parts = OUTPUT_PARTS if is_output else INPUT_PARTS
    return _completed(
        given,
        id=given.get("id") or new_id("msg"),
        type="message",
        role=shape.role,
        status=shape.status or "completed",
        content=[
            _part(part, parts, f"{path}.content[{index}]", f" in a message of role '{shape.role}'")
            for index, part in enumerate(content)
        ],
    )


def _part(given: Any, parts: Mapping[str, type[msgspec.Struct]], path: str, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise invalid_value(path, "it must be an object")
    kind = given.get("type")
    shape = parts.get(kind) if isinstance(kind, str) else None
    if shape is None:
        raise invalid_value(f"{path}.type", f"it must be one of {', '.join(parts)}{where}")
    match checked(given, shape, path):
        case InputImage(image_url=None, file_id=None):
            raise invalid_value(path, "an image needs image_url or file_id")
        case InputFile(file_data=None, file_id=None, file_url=None):
            raise invalid_value(path, "a file needs file_data, file_id or file_url")
        case InputImage(detail=detail):
            return _completed(given, type=kind, detail=detail or "auto")
    if kind == "output_text":
        annotations, logprobs = given.get("annotations") or [], given.get("logprobs") or []
        return _completed(given, type=kind, text=given["text"], annotations=annotations, logprobs=logprobs)
    return _completed(given, type=kind)


def _call(given: Mapping[str, Any], kind: str, path: str, new_id: Callable[[str], str]) -> Item:
    prefix, shape, first = CALLS[kind]
    checked(given, shape, path)
    fields = {"id": given.get("id") or new_id(prefix), "type": kind} | {name: given[name] for name in first}
    output = given.get("output")
    if isinstance(output, list):
        place = f"{path}.output"
        output = [_part(part, INPUT_PARTS, f"{place}[{index}]", "") for index, part in enumerate(output)]
        fields["output"] = output
    return _completed(given, **fields, status=given.get("status") or "completed")


def _kept(given: Mapping[str, Any], kind: str, path: str, new_id: Callable[[str], str]) -> Item:
    rule = KEPT[kind]
    for name in rule.required:
        if given.get(name) is None:
            raise invalid_value(f"{path}.{name}", "it is required")
    if not isinstance(given.get("status"), str | None):
        raise invalid_value(f"{path}.status", "it must be a string")
    completed: Item = {}
    for name, value in rule.completed.items():
        if given.get(name) is None:
            completed[name] = value
        elif isinstance(value, dict) and isinstance(given[name], dict):
            completed[name] = {**value, **given[name]}
    if given.get("id") is None:
        completed["id"] = new_id(rule.prefix)
    return {**given, **completed}


def _completed(given: Mapping[str, Any], **fields: Any) -> Item:
    """Return ``fields`` in their order, then what else was given, without nulls."""
    return fields | {name: value for name, value in given.items() if name not in fields and value is not None}


def _check_id(value: Any, path: str) -> None:
    try:
        checked_text("id", value, ID_BYTES_MAX)
    except InvalidInput as error:
        raise invalid_value(f"{path}.id", error.reason) from None


def _require_none(waiting: Mapping[str, str]) -> None:
    for call_id in waiting:
        message = f"The tool call {call_id!r} has no output. Send its output before the next message."
        raise _broken("tool_output_not_found", message)


def _unexpected(kind: str, call_id: str, *, is_second: bool) -> Refusal:
    if is_second:
        return _broken("tool_output_repeated", f"The tool call {call_id!r} has two outputs. Send one.")
    return _broken(
        "tool_call_not_found",
        f"The {kind} for {call_id!r} has no call of its kind before it. Continue the response that made the call, "
        "or send the call with it.",
    )


def _broken(code: str, message: str) -> Refusal:
    return Refusal(400, message, code=code, param=INPUT)
