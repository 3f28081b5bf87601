"""The OpenAPI description, made from the table of operations: what is documented is what is served."""

from __future__ import annotations

from typing import Any

import msgspec

from api.operations import OPERATIONS, Operation
from api.queries import NoQuery
from api.requests import JSON, NDJSON
from ledger.bodies import BATCH_TURNS_MAX, ErrorAnswer

_TEMPLATE = "#/components/schemas/{name}"
_ERRORS = {
    400: "The request is wrong; `field` names where.",
    401: "No valid token was sent.",
    403: "The token does not allow it.",
    413: "Something is above its bound; `field` names it.",
    421: "Another replica holds the partition, and the maps of the replicas disagree; or all partitions are needed.",
    503: "The ledger cannot answer truthfully now; nothing was changed. Retry.",
}
_ANSWERS = {
    200: "The answer.",
    202: "On disk and retried; not in the log yet.",
    404: "It never existed here.",
    409: "Refused.",
    410: "It existed: why it is gone, and since when.",
    503: "Not now.",
}
DESCRIPTION = (
    "Who owns a response or a conversation, and what is its history? One event for every turn, one order for every "
    "principal, verdicts from the log. Bytes (digests, `record`) travel as lower-case hexadecimal. IDs are opaque. The "
    "namespace comes from the token; `principal` and `route` must be named when the token allows several."
)


def describe(title: str, version: str) -> dict[str, Any]:
    """Return the description of every operation as JSON values."""
    types = {_type(value) for operation in OPERATIONS for value in (operation.body, *operation.answers.values())}
    structs: set[type[msgspec.Struct]] = {kind for kind in types if issubclass(kind, msgspec.Struct)}
    ordered = sorted(structs | {ErrorAnswer}, key=lambda kind: kind.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template=_TEMPLATE)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": (operation.handle.__doc__ or "").strip(),
        # Without an auth file no token is needed; the empty requirement says so.
        "security": [] if operation.is_open else [{"token": []}, {}],
        "parameters": _parameters(operation),
        "responses": _responses(operation),
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _body(operation)}
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    if operation.query is NoQuery:
        return []
    (_,), components = msgspec.json.schema_components([operation.query], ref_template=_TEMPLATE)
    schema = components[operation.query.__name__]
    parameters = []
    for name, declared in schema["properties"].items():
        parameter: dict[str, Any] = {"name": name, "in": "query", "schema": _without_null(declared)}
        parameter["required"] = name in schema.get("required", [])
        if name in operation.query_example:
            parameter["example"] = operation.query_example[name]
        parameters.append(parameter)
    return parameters


def _without_null(declared: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter: one that may be absent is absent, never null."""
    choices = [choice for choice in declared.get("anyOf", []) if choice != {"type": "null"}]
    return choices[0] if choices else declared


def _body(operation: Operation) -> dict[str, Any]:
    example = msgspec.to_builtins(operation.body)
    schema = _reference(operation.body)
    if not operation.takes_many:
        return {JSON: {"schema": schema, "example": example}}
    line = msgspec.json.encode(operation.body).decode() + "\n"
    return {
        JSON: {"schema": {"type": "array", "items": schema, "maxItems": BATCH_TURNS_MAX}, "example": [example]},
        NDJSON: {"schema": {"type": "string"}, "example": line},
    }


def _responses(operation: Operation) -> dict[str, Any]:
    errors = {} if operation.is_open else {**_ERRORS}
    if operation.changes:
        errors[504] = "It may or may not be in the log: retry with the same `event_id`, or abandon it."
    described: dict[str, Any] = {
        str(status): {"description": text, "content": {JSON: {"schema": _reference(ErrorAnswer)}}}
        for status, text in errors.items()
    }
    for status, example in operation.answers.items():
        content: dict[str, Any]
        if operation.answers_text is not None:
            content = {operation.answers_text: {"schema": {"type": "string"}, "example": example}}
        else:
            content = {JSON: {"schema": _reference(example), "example": msgspec.to_builtins(example)}}
        described[str(status)] = {"description": _ANSWERS[status], "content": content}
    return described


def _type(value: object) -> type:
    return value if isinstance(value, type) else type(value)


def _reference(value: object) -> dict[str, str]:
    return {"$ref": _TEMPLATE.format(name=_type(value).__name__)}
