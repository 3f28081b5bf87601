"""An API's description, as far as a conformance run needs it: which schema an answer has, and what in it is wrong.

OpenAPI's own words beside JSON Schema are made JSON Schema: ``nullable``, and ``oneOf`` with a ``discriminator``, which
says which one is meant however many would fit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import referencing
from jsonschema.exceptions import ValidationError, best_match
from referencing.jsonschema import DRAFT202012

JSON, EVENTS = "application/json", "text/event-stream"
_URI = "urn:api"
ERROR = "/components/schemas/Error"
_TELLING = ("type", "object", "role", "status")
"""Fields by which one of several schemas is told from the others."""

Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is not as the schema says."""

    path: str
    """JSON path below the body or the event."""
    reason: str


class ApiSchema:
    """The description of an API."""

    def __init__(self, document: Node) -> None:
        self._document = document
        resource = DRAFT202012.create_resource(_plain(document))
        self._registry: referencing.Registry[Any] = referencing.Registry().with_resource(_URI, resource)
        self._validators: dict[str, jsonschema.Draft202012Validator] = {}
        # Clients name the version in their base URL.
        self._paths = [
            (re.compile("(?:/v1)?" + re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)).removeprefix("/v1")), path)
            for path in document["paths"]
        ]

    @classmethod
    def from_file(cls, path: Path) -> ApiSchema:
        """Read a description. Raises ``OSError`` and ``ValueError``."""
        return cls(json.loads(path.read_text()))

    def operation(self, method: str, path: str) -> str | None:
        """Return the template of a path, None where the API has no such operation."""
        for pattern, template in self._paths:
            if pattern.fullmatch(path) and method.lower() in self._document["paths"][template]:
                return template
        return None

    def of_answer(self, method: str, template: str, status: int, media_type: str) -> str | None:
        """Return the pointer to the schema of an answer, None where the API says nothing of it.

        An error that its operation does not name has the shape of all errors; an event is one wherever it is sent.
        """
        answers = self._document["paths"][template][method.lower()]["responses"]
        described = answers.get(str(status), {}).get("content", {}).get(media_type)
        if described is not None and described["schema"] != {"$ref": f"#{ERROR}"}:
            parts = ("paths", template, method.lower(), "responses", str(status), "content", media_type, "schema")
            pointer = _pointer(*parts)
            return self._of_data(described["schema"], pointer) if media_type == EVENTS else pointer
        if media_type == EVENTS and (method, template) != ("POST", "/responses"):
            return self.of_answer("POST", "/responses", 200, EVENTS)
        return self.of_error() if status >= 400 and media_type == JSON else None

    def of_error(self) -> str | None:
        """Return the pointer to the schema of any error."""
        return ERROR if "Error" in self._document["components"]["schemas"] else None

    def _of_data(self, frame: Node, pointer: str) -> str:
        """Return the pointer to the schema of an event; some descriptions have the frame around it."""
        if "$ref" in frame:
            pointer = frame["$ref"].removeprefix("#")
            frame = self._document["components"]["schemas"][pointer.rpartition("/")[2]]
        is_frame = "contentSchema" in frame.get("properties", {}).get("data", {})
        return f"{pointer}/properties/data/contentSchema" if is_frame else pointer

    def of_request(self, method: str, template: str) -> str | None:
        """Return the pointer to the schema of a request's body."""
        operation = self._document["paths"][template][method.lower()]
        if "requestBody" not in operation:
            return None
        return _pointer("paths", template, method.lower(), "requestBody", "content", JSON, "schema")

    def as_described(self, pointer: str, value: Any) -> Any:
        """Return the part of an answer that a schema is about: an error comes in a field of that name."""
        return value["error"] if pointer == ERROR and isinstance(value, dict) and "error" in value else value

    def violations(self, pointer: str, value: Any) -> Iterator[Violation]:
        """Yield what in ``value`` is not as the schema at ``pointer`` says."""
        if pointer not in self._validators:
            schema = {"$ref": f"{_URI}#{pointer}"}
            self._validators[pointer] = jsonschema.Draft202012Validator(schema, registry=self._registry)
        for error in self._validators[pointer].iter_errors(value):
            closest = _closest(error)
            yield Violation(closest.json_path, closest.message[:400])


def _pointer(*parts: str) -> str:
    return "".join(
        "/" + part.replace("~", "~0").replace("/", "~1").replace("{", "%7B").replace("}", "%7D") for part in parts
    )


def _plain(node: Any) -> Any:
    """Return a description in the words of JSON Schema alone."""
    if isinstance(node, list):
        return [_plain(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    plain = {name: _plain(value) for name, value in node.items()}
    if "oneOf" in plain and "discriminator" in plain:
        plain["anyOf"] = plain.pop("oneOf")
    if plain.pop("nullable", None) is True:
        return {"anyOf": [plain, {"type": "null"}]}
    return plain


def _closest(error: ValidationError) -> ValidationError:
    """Return what is wrong in that one of several schemas which was meant."""
    while error.context:
        branches: dict[Any, list[ValidationError]] = {}
        for inner in error.context:
            branches.setdefault(inner.schema_path[0], []).append(inner)
        meant = [errors for errors in branches.values() if not any(map(_is_another, errors))]
        if len(meant) != 1:
            return best_match([error]) or error
        error = meant[0][0]
    return error


def _is_another(error: ValidationError) -> bool:
    """Return whether an error says that a schema is for something else altogether."""
    path: Sequence[Any] = list(error.relative_path)
    if error.context:
        return False
    if not path:
        return error.validator == "type"
    return len(path) == 1 and path[0] in _TELLING and error.validator in ("enum", "const")
