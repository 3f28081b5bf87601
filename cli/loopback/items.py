"""Items of the Responses API as a provider takes them: checked, completed, and refused when malformed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cli.loopback.answer import Heard, texts_of
from cli.loopback.exchange import encode
from cli.loopback.instance import Instance
from ledger.refusal import Refusal

Item = dict[str, Any]

ID_KINDS = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
"""How the IDs of items begin, by type."""
INPUT_ROLES = ("user", "system", "developer")
INPUT_PARTS = ("input_text", "input_image", "input_file")
OUTPUT_PARTS = ("output_text", "refusal")
CALLS = ("function_call", "custom_tool_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output")

_needed = {
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": ("summary",),
    "item_reference": ("id",),
}


def input_items(value: Any, param: str = "input") -> list[Item]:
    """Return the items of an ``input``, in the long form but without IDs. Raises ``Refusal``."""
    if isinstance(value, str):
        return [_message({"role": "user", "content": value}, param)]
    if not isinstance(value, list) or not value:
        raise invalid(param, "expected a text, or a list of at least one item")
    items = [_item(item, f"{param}[{index}]") for index, item in enumerate(value)]
    for index, item in enumerate(items):
        if item["type"] == "reasoning" and not _is_followed(items, index):
            text = f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
            raise Refusal(400, text, param=param)
    return items


def complete(item: Item, instance: Instance) -> Item:
    """Return an item as it is listed: with an ID, and a status where the type has one."""
    kind = ID_KINDS.get(item["type"], "item")
    completed = {"id": item.get("id") or instance.new_input_id(kind), **{k: v for k, v in item.items() if k != "id"}}
    if item["type"] != "reasoning":
        completed.setdefault("status", "completed")
    return completed


def check_context(context: Sequence[Item]) -> None:
    """Refuse tool outputs without their call, and calls without their output."""
    open_calls: dict[str, None] = {}
    for item in context:
        call_id = item.get("call_id")
        if item["type"] in CALLS:
            open_calls[str(call_id)] = None
        elif item["type"] in OUTPUTS:
            if call_id not in open_calls:
                raise Refusal(
                    400, f"No tool call found for function call output with call_id {call_id}.", param="input"
                )
            del open_calls[call_id]
    for call_id in open_calls:
        raise Refusal(400, f"No tool output found for function call {call_id}.", param="input")


def check_reasoning(items: Sequence[Item], instance: Instance, known: Mapping[str, Item]) -> None:
    """Refuse reasoning that this instance did not make: it can read only what it has encrypted itself."""
    for item in items:
        if item["type"] != "reasoning":
            continue
        encrypted = item.get("encrypted_content")
        if encrypted is None:
            if item.get("id") not in known:
                raise unknown_item(item.get("id"))
        elif not str(encrypted).startswith(f"{instance.name}:"):
            text = "The encrypted content of a reasoning item could not be verified."
            raise Refusal(400, text, code="invalid_encrypted_content", param="input")


def hear(context: Sequence[Item]) -> Heard:
    """Return what a model hears of a context. Raises ``Refusal`` for a malformed directive."""
    heard = Heard.nothing()
    for item in context:
        if item["type"] in OUTPUTS:
            heard.tool(item["call_id"], texts_of(item["output"]))
        elif item["type"] == "message" and item["role"] == "user":
            heard.user(texts_of(item["content"]))
    return heard


def rendered(context: Sequence[Item]) -> list[bytes]:
    """Return a context as the prompt cache sees it: without IDs and states."""
    return [encode({k: v for k, v in item.items() if k not in ("id", "status")}) for item in context]


def invalid(param: str, reason: str) -> Refusal:
    """Return the answer to a value that the API does not allow."""
    return Refusal(400, f"Invalid value for '{param}': {reason}.", code="invalid_value", param=param)


def unknown_item(item_id: Any) -> Refusal:
    """Return the answer to an ID of an item that is not stored here."""
    return Refusal(404, f"Item with id '{item_id}' not found.", param="input")


def _item(item: Any, param: str) -> Item:
    if not isinstance(item, dict):
        raise invalid(param, "expected an object")
    kind = item.get("type", "message" if "role" in item else None)
    if not isinstance(kind, str):
        raise Refusal(400, f"Missing required parameter: '{param}.type'.", code="missing_required_parameter")
    prefix, item_id = ID_KINDS.get(kind), item.get("id")
    if item_id is not None and prefix is not None and not str(item_id).startswith(prefix):
        raise invalid(f"{param}.id", f"expected an ID that begins with '{prefix}', not '{item_id}'")
    if kind == "message":
        return _message(item, param)
    for name in _needed.get(kind, ()):
        if name not in item:
            text = f"Missing required parameter: '{param}.{name}'."
            raise Refusal(400, text, code="missing_required_parameter", param=f"{param}.{name}")
    if kind == "function_call" and not isinstance(item["arguments"], str):
        raise invalid(f"{param}.arguments", "expected a text")
    return {**item, "type": kind}


def _message(item: Item, param: str) -> Item:
    role, content = item.get("role"), item.get("content")
    if role not in (*INPUT_ROLES, "assistant"):
        raise invalid(f"{param}.role", "expected assistant, system, developer or user")
    is_input = role in INPUT_ROLES
    if isinstance(content, str):
        content = [text_part(content) if is_input else output_part(content)]
    if not isinstance(content, list):
        raise invalid(f"{param}.content", "expected a text or a list of parts")
    allowed = INPUT_PARTS if is_input else OUTPUT_PARTS
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in allowed:
            raise invalid(f"{param}.content[{index}]", f"expected one of {', '.join(allowed)}")
    return {**item, "type": "message", "role": role, "content": [_part(part) for part in content]}


def text_part(text: str) -> Item:
    """Return a part of a message to the model."""
    return {"type": "input_text", "text": text}


def output_part(text: str) -> Item:
    """Return a part of a message of the model."""
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


def _part(part: Item) -> Item:
    """Return a part with what a list of items must have and a request may leave out."""
    match part["type"]:
        case "output_text":
            return {"annotations": [], **part}
        case "input_image":
            return {"detail": "auto", **part}
        case _:
            return part


def _is_followed(items: Sequence[Item], index: int) -> bool:
    """Return whether reasoning is followed by what it led to."""
    if index + 1 == len(items):
        return False
    following = items[index + 1]
    return following.get("role") not in INPUT_ROLES and following["type"] not in OUTPUTS
