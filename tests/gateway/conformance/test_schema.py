"""The judge of a conformance run: it names what is wrong, in the schema that was meant."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conformance.recorder import Exchange
from tests.gateway.conformance.run import judge
from tests.gateway.conformance.schema import ApiSchema

TEXT = {"type": "object", "properties": {"type": {"enum": ["text"]}, "text": {"type": "string"}}, "required": ["text"]}
CALL = {"type": "object", "properties": {"type": {"enum": ["call"]}, "id": {"type": "string"}}, "required": ["id"]}
EVENT = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["type", "number"]}
DOCUMENT: dict[str, Any] = {
    "paths": {
        "/responses": {
            "post": {
                "responses": {
                    "200": {
                        "content": {
                            "application/json": {"schema": {"$ref": "#/components/schemas/Thing"}},
                            "text/event-stream": {"schema": {"$ref": "#/components/schemas/Event"}},
                        }
                    }
                }
            }
        },
        "/responses/{id}": {
            "get": {
                "responses": {
                    "200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
                    "404": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}},
                }
            }
        },
    },
    "components": {
        "schemas": {
            "Event": EVENT,
            "Error": {"type": "object", "required": ["message"]},
            "Thing": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "nullable": True},
                    "parts": {
                        "type": "array",
                        "items": {"oneOf": [TEXT, CALL, CALL], "discriminator": {"propertyName": "type"}},
                    },
                },
                "required": ["parts"],
            },
        }
    },
}


def found(
    body: bytes, *, path: str = "/v1/responses/x", method: str = "GET", status: int = 200, media_type: str = ""
) -> list[tuple[str, str, str]]:
    exchange = Exchange(
        play="a play",
        method=method,
        path=path,
        request=b"",
        status=status,
        media_type=media_type or "application/json",
        body=bytearray(body),
    )
    report = judge(ApiSchema(DOCUMENT), [exchange])
    assert report.checked.total() > 0
    return [(one.kind.what, one.violation.path, one.violation.reason) for one in report.found.values()]


def test_what_is_as_described_is_no_violation() -> None:
    assert found(b'{"name": null, "parts": [{"type": "text", "text": "t"}, {"type": "call", "id": "i"}]}') == []


def test_violation_is_named_in_the_schema_that_was_meant() -> None:
    body = b'{"parts": [{"type": "text", "text": "t"}, {"type": "text"}]}'
    assert found(body) == [("body", "$.parts[1]", "'text' is a required property")]


@pytest.mark.parametrize("path", ["/v1/responses/x", "/v1/files", "/files"])
def test_error_is_judged_wherever_it_is_answered(path: str) -> None:
    assert found(b'{"error": {"message": "m"}}', path=path, status=404) == []
    assert found(b'{"error": {}}', path=path, status=404) == [("body", "$", "'message' is a required property")]


@pytest.mark.parametrize(("method", "path"), [("POST", "/responses"), ("GET", "/responses/x")])
def test_every_event_of_a_stream_is_judged(method: str, path: str) -> None:
    stream = b'data: {"type": "a", "number": 0}\n\ndata: {"type": "b"}\n\n'
    violations = found(stream, method=method, path=path, media_type="text/event-stream")
    assert violations == [("b", "$", "'number' is a required property")]
