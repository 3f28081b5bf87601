"""The shapes that the gateway's description names: what it takes and refuses, and what it sends.

Bounds and item shapes come from the code that enforces them. What a target alone can judge (its models' parameters, its
own tools) has no more than its type here, and what a target answers no more than every response has.
"""

from __future__ import annotations

from typing import Any

import msgspec

from api.gateway.conversations import ITEMS_AT_ONCE_MAX
from api.gateway.item_shapes import CALLS, INPUT_PARTS, KEPT, OUTPUT_PARTS, Kept, Message, Reasoning
from api.gateway.lists import LIMIT_DEFAULT, LIMIT_MAX
from api.gateway.request import (
    COUNTS,
    INPUT_ITEMS_MAX,
    METADATA_KEY_MAX,
    METADATA_PAIRS_MAX,
    METADATA_VALUE_MAX,
    MODEL_BYTES_MAX,
    RANGES,
    TRUNCATIONS,
)
from api.gateway.retrieval import DIGITS_MAX
from ledger.turn import ID_BYTES_MAX

Schema = dict[str, Any]

TEMPLATE = "#/components/schemas/{name}"
NOT_NUL = "^[^\\u0000]*$"


def reference(name: str) -> Schema:
    """Return a schema that is the component ``name``."""
    return {"$ref": TEMPLATE.format(name=name)}


def text(bytes_max: int) -> Schema:
    """Return the schema of a text that the ledger bounds; its bound counts the bytes of UTF-8."""
    return {"type": "string", "minLength": 1, "maxLength": bytes_max, "pattern": NOT_NUL}


def nullable(schema: Schema) -> Schema:
    """Return a schema that also takes null, which is the same as leaving the field out."""
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


ID = text(ID_BYTES_MAX)
MODEL = text(MODEL_BYTES_MAX)
METADATA: Schema = {
    "type": "object",
    "maxProperties": METADATA_PAIRS_MAX,
    "propertyNames": {"maxLength": METADATA_KEY_MAX},
    "additionalProperties": {"type": "string", "maxLength": METADATA_VALUE_MAX},
}
INCLUDE = {"include": {"type": "array", "items": {"type": "string"}}}
PAGE: dict[str, Schema] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT},
    "order": {"enum": ["asc", "desc"], "default": "desc"},
    "after": {"type": "string", "description": "ID of the item before the page."},
    **INCLUDE,
}
STREAM: dict[str, Schema] = {
    "stream": {"type": "boolean", "default": False},
    "starting_after": {
        "type": "integer",
        "minimum": 0,
        "maximum": 10**DIGITS_MAX - 1,
        "description": "The sequence_number of the last event that is known.",
    },
}


def components() -> dict[str, Schema]:
    """Return every component, by its name."""
    return {**_items(), **_requests(), **_answers()}


def _items() -> dict[str, Schema]:
    shapes = {kind: shape for kind, (_, shape, _) in CALLS.items()}
    structs = dict.fromkeys([Message, Reasoning, *shapes.values(), *INPUT_PARTS.values(), *OUTPUT_PARTS.values()])
    _, made = msgspec.json.schema_components(list(structs), ref_template=TEMPLATE)
    # The underscore says that no other module names the class; to a reader of the description it says nothing.
    named: dict[str, Schema] = msgspec.json.decode(msgspec.json.encode(made).replace(b"schemas/_", b"schemas/"))
    found = {name.lstrip("_"): schema for name, schema in named.items()}
    kinds: dict[str, Schema] = {
        "reasoning": reference("Reasoning"),
        **{kind: reference(shape.__name__.lstrip("_")) for kind, shape in shapes.items()},
        **{kind: _kept(rule) for kind, rule in KEPT.items()},
    }
    parts = {**INPUT_PARTS, **OUTPUT_PARTS}
    found["Part"] = {
        "description": "A part of a message or of a tool's output.",
        "oneOf": [_of_kind(kind, reference(shape.__name__.lstrip("_"))) for kind, shape in parts.items()],
    }
    found["Message"]["properties"] |= {
        "type": {"const": "message"},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": reference("Part")}]},
    }
    found["InputItem"] = {
        "description": "What a client sends; an ID is made where none is given.",
        "properties": {"id": nullable(ID)},
        "anyOf": [
            reference("Message"),
            reference("ItemReference"),
            *(_of_kind(kind, schema) for kind, schema in kinds.items()),
        ],
    }
    found["ItemReference"] = {
        "description": "Stands for an item that is stored.",
        "type": "object",
        "properties": {"type": {"enum": ["item_reference", None]}, "id": ID},
        "required": ["id"],
        "additionalProperties": False,
    }
    found["Item"] = {
        "description": "What is stored and listed; its other fields follow from its type.",
        "type": "object",
        "properties": {"type": {"type": "string"}, "id": {"type": "string"}, "status": {"type": "string"}},
        "required": ["type"],
    }
    return found


def _kept(rule: Kept) -> Schema:
    needed: dict[str, Schema] = {name: {"not": {"type": "null"}} for name in rule.required if name != "status"}
    status = {"type": "string" if "status" in rule.required else ["string", "null"]}
    return {"properties": {**needed, "status": status}, "required": list(rule.required)}


def _of_kind(kind: str, schema: Schema) -> Schema:
    return {"allOf": [{"type": "object", "properties": {"type": {"const": kind}}, "required": ["type"]}, schema]}


def _requests() -> dict[str, Schema]:
    items = {"type": "array", "items": reference("InputItem"), "maxItems": ITEMS_AT_ONCE_MAX}
    flag, words, object_ = {"type": ["boolean", "null"]}, {"type": ["string", "null"]}, {"type": ["object", "null"]}
    properties: dict[str, Schema] = {
        "model": MODEL,
        "input": {
            "anyOf": [
                {"type": ["string", "null"]},
                {"type": "array", "items": reference("InputItem"), "maxItems": INPUT_ITEMS_MAX},
            ]
        },
        "instructions": words,
        "previous_response_id": nullable(ID),
        "conversation": {"anyOf": [nullable(ID), {"type": "object", "properties": {"id": ID}, "required": ["id"]}]},
        "stream": flag,
        "store": flag,
        "background": flag,
        "metadata": nullable(METADATA),
        "include": {"type": ["array", "null"], "items": {"type": "string"}},
        "parallel_tool_calls": flag,
        "reasoning": object_,
        "text": object_,
        "tool_choice": {"type": ["string", "object", "null"]},
        "tools": {"type": ["array", "null"], "items": {"type": "object"}},
        "truncation": {"enum": [*TRUNCATIONS, None]},
        **{name: _bounded("number", *bounds) for name, bounds in RANGES.items()},
        **{name: _bounded("integer", *bounds) for name, bounds in COUNTS.items()},
        **dict.fromkeys(("prompt_cache_key", "safety_identifier", "service_tier", "user"), words),
    }
    return {
        "CreateResponse": {
            "type": "object",
            "properties": properties,
            "required": ["model"],
            "not": {
                "anyOf": [
                    _both(previous_response_id={"type": "string"}, conversation={"type": ["string", "object"]}),
                    _both(background={"const": True}, store={"const": False}),
                ]
            },
        },
        "CreateConversation": {
            "type": "object",
            "properties": {"items": nullable(items), "metadata": nullable(METADATA)},
            "additionalProperties": False,
        },
        "UpdateConversation": {
            "type": "object",
            "properties": {"metadata": nullable(METADATA)},
            "required": ["metadata"],
            "additionalProperties": False,
        },
        "CreateItems": {
            "type": "object",
            "properties": {"items": {**items, "minItems": 1}},
            "required": ["items"],
            "additionalProperties": False,
        },
    }


def _bounded(type: str, low: float, high: float) -> Schema:
    return {"type": [type, "null"], "minimum": low, "maximum": high}


def _both(**fields: Schema) -> Schema:
    return {"properties": fields, "required": list(fields)}


def _answers() -> dict[str, Schema]:
    text = {"type": "string"}
    return {
        "Response": _object(
            {
                "id": text,
                "object": {"const": "response"},
                "created_at": {"type": "number"},
                "status": {"enum": ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]},
                "error": nullable(_object({"code": text, "message": text})),
                "incomplete_details": {"type": ["object", "null"]},
                "instructions": {"type": ["string", "array", "null"]},
                "metadata": {"type": ["object", "null"]},
                "model": text,
                "output": {"type": "array", "items": reference("Item")},
                "parallel_tool_calls": {"type": "boolean"},
                "temperature": {"type": ["number", "null"]},
                "tool_choice": {"type": ["string", "object"]},
                "tools": {"type": "array", "items": {"type": "object"}},
                "top_p": {"type": ["number", "null"]},
            },
            background={"type": ["boolean", "null"]},
            completed_at={"type": ["number", "null"]},
            conversation=nullable(_object({"id": text})),
            previous_response_id={"type": ["string", "null"]},
            store={"type": ["boolean", "null"]},
            usage={"type": ["object", "null"]},
        ),
        "Event": _object(
            {"type": text, "sequence_number": {"type": "integer", "minimum": 0}},
            response=reference("Response"),
            item=reference("Item"),
        ),
        "Frame": _object(
            {
                "event": text,
                "data": {**text, "contentMediaType": "application/json", "contentSchema": reference("Event")},
            }
        ),
        "DeletedResponse": _object({"id": text, "object": {"const": "response"}, "deleted": {"const": True}}),
        "Conversation": _object(
            {
                "id": text,
                "object": {"const": "conversation"},
                "created_at": {"type": "integer"},
                "metadata": {"type": ["object", "null"]},
            }
        ),
        "DeletedConversation": _object(
            {"id": text, "object": {"const": "conversation.deleted"}, "deleted": {"const": True}}
        ),
        "ItemList": _object(
            {
                "object": {"const": "list"},
                "data": {"type": "array", "items": reference("Item")},
                "first_id": {"type": ["string", "null"]},
                "last_id": {"type": ["string", "null"]},
                "has_more": {"type": "boolean"},
            }
        ),
        "Model": _object({"id": text, "object": {"const": "model"}, "created": {"type": "integer"}, "owned_by": text}),
        "ModelList": _object({"object": {"const": "list"}, "data": {"type": "array", "items": reference("Model")}}),
        "Error": _object(
            {
                "message": text,
                "type": text,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            reason={"type": "string", "description": "One word for a program, where the code leaves something open."},
        ),
        "ErrorAnswer": _object({"error": reference("Error")}),
    }


def _object(required: dict[str, Schema], **optional: Schema) -> Schema:
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}
