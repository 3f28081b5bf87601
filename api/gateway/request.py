"""A request for a response, read and checked as far as the gateway itself acts on it.

What only a target can judge (its models' parameters, its own tools) is left to the target, or to the translation for
targets of another format. The rest is refused here, before anything is looked up, called or written.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request

from api.requests import JSON, decode, media_type, read_body
from ledger.continuation import Selectors, detect_selectors
from ledger.errors import InvalidInput, TooLarge
from ledger.turn import ID_BYTES_MAX, ITEMS_MAX, checked_text

MODEL_BYTES_MAX = 256
"""Name of a model; real ones have fewer than 80."""
METADATA_PAIRS_MAX, METADATA_KEY_MAX, METADATA_VALUE_MAX = 16, 64, 512
"""The API's bounds of ``metadata``: pairs, and characters of a key and of a value."""
INPUT_ITEMS_MAX = 10_000
"""Input items of one request; a client that sends its whole history has some hundreds."""
REFERENCES_MAX = ITEMS_MAX
"""Items that one request names: each is a look-up that reads the whole turn it is of. As many as a turn can have."""

_decoder = msgspec.json.Decoder(dict[str, Any])
_sorted = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRequest:
    """One checked ``POST /v1/responses``."""

    raw: bytes = field(repr=False)
    """The body as it came; sent on as it is where nothing must change."""
    body: dict[str, Any] = field(repr=False)
    model: str
    selectors: Selectors
    input: str | list[Any] | None = field(repr=False)
    reference_ids: tuple[str, ...]
    """Items that the input names by reference."""
    stream: bool
    store: bool | None
    """None: not given, which the API takes for true."""
    background: bool
    metadata: dict[str, str]
    idempotency_key: str | None
    headers: dict[str, str] = field(repr=False)
    """Of the client, those that may go to a target."""

    def digest(self) -> bytes:
        """Return the digest of what was asked, the same however it is spelt and whether it is streamed."""
        asked = {name: value for name, value in self.body.items() if name not in ("stream", "stream_options")}
        return hashlib.blake2b(_sorted.encode(asked), digest_size=32).digest()


async def read_create(request: Request, *, body_bytes_max: int, headers: dict[str, str]) -> CreateRequest:
    """Read and check a request for a response. Raises ``InvalidInput`` and ``TooLarge`` naming the field."""
    media_type(request, JSON)
    raw = await read_body(request, body_bytes_max)
    body = decode(raw, _decoder)
    model = body.get("model")
    checked_text("model", model, MODEL_BYTES_MAX)
    assert isinstance(model, str), "just checked"
    key = request.headers.get("idempotency-key")
    checked_text("Idempotency-Key", key, ID_BYTES_MAX, optional=True)
    given = body.get("input")
    _check_input(given)
    background = bool(_flag(body, "background"))
    store = _flag(body, "store")
    if background and store is False:
        raise InvalidInput("store", "must not be false for a background response: it is fetched later")
    if key is not None and store is False:
        raise InvalidInput("store", "must not be false together with an Idempotency-Key: a retry is answered from it")
    _texts(body, "include")
    _check_types(body)
    _check_ranges(body)
    return CreateRequest(
        raw=raw,
        body=body,
        model=model,
        selectors=detect_selectors(body),
        input=given,
        reference_ids=_references(given),
        stream=bool(_flag(body, "stream")),
        store=store,
        background=background,
        metadata=checked_metadata(body.get("metadata")),
        idempotency_key=key,
        headers=headers,
    )


def checked_metadata(value: Any) -> dict[str, str]:
    """Return a request's ``metadata``. Raises ``InvalidInput`` beyond the API's bounds."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput("metadata", "must be an object of strings")
    if len(value) > METADATA_PAIRS_MAX:
        raise InvalidInput("metadata", f"has {len(value)} pairs; at most {METADATA_PAIRS_MAX} are allowed")
    for key, text in value.items():
        if not isinstance(text, str):
            raise InvalidInput(f"metadata.{key[:METADATA_KEY_MAX]}", "must be a string")
        if len(key) > METADATA_KEY_MAX or len(text) > METADATA_VALUE_MAX:
            bounds = f"{METADATA_KEY_MAX} and {METADATA_VALUE_MAX} characters"
            raise InvalidInput("metadata", f"has a key or value that is too long; they may have {bounds}")
    return value


def _check_input(value: Any) -> None:
    if value is None or isinstance(value, str):
        return
    if not isinstance(value, list):
        raise InvalidInput("input", "must be a string or a list of items")
    if len(value) > INPUT_ITEMS_MAX:
        raise TooLarge("input", f"has {len(value)} items; at most {INPUT_ITEMS_MAX} are allowed")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise InvalidInput(f"input[{index}]", "must be an object")


def _references(value: Any) -> tuple[str, ...]:
    """Return the IDs of the input's references; the API lets their type be left out."""
    if not isinstance(value, list):
        return ()
    references = []
    for index, item in enumerate(value):
        if is_reference(item):
            checked_text(f"input[{index}].id", item.get("id"), ID_BYTES_MAX)
            references.append(item["id"])
    if len(references) > REFERENCES_MAX:
        raise TooLarge("input", f"has {len(references)} item references; at most {REFERENCES_MAX} are allowed")
    return tuple(references)


def is_reference(item: dict[str, Any]) -> bool:
    """Return whether an input item names another one."""
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "role" not in item and set(item) <= {"id", "type"})


def _flag(body: dict[str, Any], name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidInput(name, "must be true or false")
    return value


def _texts(body: dict[str, Any], name: str) -> None:
    value = body.get(name)
    if value is None:
        return
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise InvalidInput(name, "must be a list of strings")


_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    **dict.fromkeys(
        ("instructions", "prompt_cache_key", "safety_identifier", "service_tier", "user"), (str, "must be a string")
    ),
    **dict.fromkeys(("reasoning", "text"), (dict, "must be an object")),
    "parallel_tool_calls": (bool, "must be true or false"),
    "tool_choice": ((str, dict), "must be a string or an object"),
    "tools": (list, "must be a list of objects"),
}
"""Of what the gateway echoes: a wrong one would make the answer something that no client can read."""
TRUNCATIONS = ("auto", "disabled")


def _check_types(body: dict[str, Any]) -> None:
    for name, (types, reason) in _TYPES.items():
        if body.get(name) is not None and not isinstance(body[name], types):
            raise InvalidInput(name, reason)
    for index, tool in enumerate(body.get("tools") or ()):
        if not isinstance(tool, dict):
            raise InvalidInput(f"tools[{index}]", "must be an object")
    if body.get("truncation") is not None and body["truncation"] not in TRUNCATIONS:
        raise InvalidInput("truncation", f"must be {' or '.join(TRUNCATIONS)}")


RANGES: dict[str, tuple[float, float]] = {"temperature": (0, 2), "top_p": (0, 1)}
COUNTS = {"max_output_tokens": (16, 2**53), "max_tool_calls": (1, 2**53), "top_logprobs": (0, 20)}
"""The API's own ranges of what the gateway echoes. Beyond 2^53 a client in another language reads another number."""


def _check_ranges(body: dict[str, Any]) -> None:
    for name, (low, high) in RANGES.items():
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise InvalidInput(name, f"must be a number from {low} to {high}")
    for name, (low, high) in COUNTS.items():
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidInput(name, f"must be an integer from {low} to {high}")
