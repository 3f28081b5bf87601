"""From the bytes of a request to checked values: strict, bounded while reading, and naming the field that is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request

from ledger.content import CONTENT_BYTES_MAX
from ledger.errors import InvalidInput, TooLarge

CONTENT_BODY_BYTES_MAX = CONTENT_BYTES_MAX + 1024 * 1024
"""Body of a request that may carry content: the largest content and everything around it."""
BODY_BYTES_MAX = 1024 * 1024
"""Body of any other request; 256 selectors with escaped IDs of 512 bytes stay below it."""
QUERY_BYTES_MAX = 16 * 1024
"""Query of a request: its IDs percent-encoded, with room."""

T = TypeVar("T")

JSON, NDJSON = "application/json", "application/x-ndjson"

_PATH = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_NAMED = re.compile(r"Object (?P<what>contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL)


async def read_body(request: Request, bytes_max: int) -> bytes:
    """Return the body. Raises ``TooLarge`` as soon as it is known to be above ``bytes_max``."""
    message = f"has more than {bytes_max} bytes"
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > bytes_max):
        raise TooLarge("body", message)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > bytes_max:
            raise TooLarge("body", message)
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def media_type(request: Request, *allowed: str) -> str:
    """Return the body's media type. Raises ``InvalidInput`` unless it is one of ``allowed``.

    It must be given: a web page of another origin can send any body, but not with this type, unless the service
    consents (Fetch standard, CORS-safelisted request headers).
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in allowed:
        raise InvalidInput("content-type", f"must be {' or '.join(allowed)}")
    return given


async def read_json(request: Request, decoder: msgspec.json.Decoder[T], *, bytes_max: int = BODY_BYTES_MAX) -> T:
    """Return the JSON body. Raises ``InvalidInput`` or ``TooLarge`` naming the field."""
    media_type(request, JSON)
    return decode(await read_body(request, bytes_max), decoder)


def decode(raw: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[T]) -> T:
    """Return the JSON value of ``raw``. Raises ``InvalidInput`` naming the field."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        for field in _surrogate_fields(bytes(raw)):
            raise InvalidInput(field, "must be valid Unicode (it has a lone surrogate)") from None
        raise InvalidInput("body", f"is not JSON: {error}") from None


def read_query(request: Request, query: type[T]) -> T:
    """Return the query's parameters. Raises ``InvalidInput`` naming the parameter."""
    raw: bytes = request.scope["query_string"]
    if len(raw) > QUERY_BYTES_MAX:
        raise TooLarge("query", f"has more than {QUERY_BYTES_MAX} bytes")
    values: dict[str, str] = {}
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise InvalidInput("query", "must be percent-encoded UTF-8") from None
    for name, value in pairs:
        if name in values:
            raise InvalidInput(name, "is given twice")
        values[name] = value
    try:
        return msgspec.convert(values, query, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None


def _invalid(error: msgspec.ValidationError) -> InvalidInput:
    """Return msgspec's complaint with the field apart: ``$.owner.native`` becomes ``owner.native``."""
    message = str(error)
    place = _PATH.search(message)
    path = "" if place is None else place["path"].removeprefix(".")
    reason = message if place is None else message[: place.start()]
    named = _NAMED.fullmatch(reason)
    if named is not None:
        field = f"{path}.{named['name']}" if path else named["name"]
        return InvalidInput(field, "is required" if named["what"] == "missing required" else "is not a known field")
    return InvalidInput(path or "body", reason[:1].lower() + reason[1:])


def _surrogate_fields(raw: bytes) -> Iterator[str]:
    """Yield where text has a lone surrogate, which the fast decoder reports as broken JSON without a place."""
    if len(raw) > BODY_BYTES_MAX:
        return
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return
    yield from _surrogates_in(value, "")


def _surrogates_in(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, str) and not _is_unicode(value):
        yield path or "body"
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _surrogates_in(entry, f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, entry in value.items():
            if not _is_unicode(name):
                yield path or "body"
                return
            yield from _surrogates_in(entry, f"{path}.{name}" if path else name)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
