"""The gateway's OpenAPI description, made from the table of operations: what is documented is what is served."""

from __future__ import annotations

import re
from typing import Any

from api.gateway.operations import OPERATIONS, Operation, Shape
from api.gateway.schemas import ID, MODEL, components, reference, text
from api.gateway.sse import MEDIA_TYPE
from api.requests import JSON
from ledger.turn import ID_BYTES_MAX

PREFIX = "/v1"
PATH = f"{PREFIX}/openapi.json"
DESCRIPTION = (
    "The Responses and Conversations API in front of several targets: any replica continues any conversation. A "
    "response or conversation that a target holds is asked of that target, and its answer is passed on as it is; "
    "anything else is answered from the ledger. Errors have the API's shape, with a `reason` in one word where the "
    "code leaves something open. Bounds of texts count the bytes of UTF-8, those of metadata characters. The same "
    "paths are served without `/v1`."
)

_ERRORS = {
    401: "No API key that is known was sent.",
    404: "It never existed here, or not any more: `reason` says which.",
    "4XX": "The target refused; its answer is passed on.",
    "5XX": "The target failed; its answer is passed on.",
}
_STATE_ERRORS = {
    400: "The request is wrong, or needs what cannot be continued; `param` names where.",
    409: "It was changed, ended or asked for by another request; or its owner is not the one it was.",
    413: "Something is above its bound.",
    421: "Another replica has the state, and the maps of the replicas disagree about which.",
    502: "The target broke off its answer, or answered something else than a response.",
    503: "The ledger or the only target that could answer is not available. Retry.",
    504: "The target did not answer in time, or another replica not to the end: then it may have been carried out.",
}
_PARAMETER = re.compile(r"\{(\w+)\}")


def describe(title: str, version: str) -> dict[str, Any]:
    """Return the description of every operation as JSON values."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": DESCRIPTION},
        "servers": [{"url": PREFIX}],
        "paths": paths,
        "components": {
            "schemas": components(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": (operation.handle.__doc__ or "").partition("\n")[0],
        # Without configured keys none is needed; the empty requirement says so.
        "security": [{"key": []}, {}],
        "parameters": _parameters(operation),
        "responses": _answers(operation),
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {JSON: _content(operation.body)}}
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": MODEL if name == "model" else ID}
        for name in _PARAMETER.findall(operation.path)
    ]
    in_query = [{"name": name, "in": "query", "schema": dict(schema)} for name, schema in operation.query.items()]
    if not operation.takes_key:
        return [*in_path, *in_query]
    description = "A repeated request under the same key is answered from the response of the first."
    key = {"name": "Idempotency-Key", "in": "header", "schema": text(ID_BYTES_MAX), "description": description}
    return [key]


def _answers(operation: Operation) -> dict[str, Any]:
    content = {JSON: _content(operation.answer)}
    if operation.frame is not None:
        content[MEDIA_TYPE] = _content(operation.frame)
    texts = _ERRORS | _STATE_ERRORS if operation.needs_state else {status: _ERRORS[status] for status in (401, 404)}
    error = {JSON: {"schema": reference("ErrorAnswer")}}
    refused = {str(status): {"description": text, "content": error} for status, text in texts.items()}
    return {"200": {"description": "The answer.", "content": content}, **refused}


def _content(shape: Shape) -> dict[str, Any]:
    return {"schema": reference(shape.schema), "example": dict(shape.example)}
