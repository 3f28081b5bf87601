"""Bytes of events and of sealed parts: one format byte, then msgpack, decoded strictly.

A byte string has one meaning for every build or none: a value is accepted only if encoding what was decoded gives the
same bytes again, so trailing bytes, longer-than-needed integers, strings for bytes and repeated keys are all refused
the same way everywhere. Old formats stay decodable for ever and are raised to the newest events here;
``tests/golden/events`` pins every format's bytes and only grows.
"""

from __future__ import annotations

import msgspec

from ledger.errors import InvalidInput, TooLarge, UndecodableRecord
from ledger.event import SEALED_BYTES_MAX, Event
from ledger.log import RECORD_BYTES_MAX

FORMAT = 1
"""The newest format this build can write and read."""
FOLD_VERSION = 1
"""The newest rules this build can fold."""

_encoder = msgspec.msgpack.Encoder()
_decoder_1 = msgspec.msgpack.Decoder(Event)


class SealedPart(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """What a person, or a duplicate's answer, needs of an event; encrypted once encryption is on."""

    response_id: str | None = None
    conversation_id: str | None = None
    record: bytes = b""
    """The router's own record of a native turn."""


_sealed_decoder = msgspec.msgpack.Decoder(SealedPart)


def encode(event: Event, record_format: int = FORMAT) -> bytes:
    """Return the record value of ``event`` in ``record_format``.

    Raises ``InvalidInput`` when a field breaks its declared bound: structs do not check what our own code puts in.
    """
    if record_format != FORMAT:
        raise InvalidInput("format", f"{record_format} cannot be written by this build; it writes {FORMAT}")
    value = bytes([FORMAT]) + _encoder.encode(event)
    if len(value) > RECORD_BYTES_MAX:
        raise TooLarge("event", f"has {len(value)} bytes; at most {RECORD_BYTES_MAX} are allowed")
    try:
        decode(value)
    except UndecodableRecord as error:
        raise InvalidInput("event", str(error)) from None
    return value


def decode(value: bytes | None, declared_format: int = FORMAT) -> Event:
    """Return the event in ``value``; the caller says which format its partition has declared.

    Raises ``UndecodableRecord`` with the quarantine reason: ``empty``, ``oversized``, ``newer_format``, ``malformed``
    or ``not_canonical``.
    """
    if not value:
        raise UndecodableRecord("empty")
    if len(value) > RECORD_BYTES_MAX:
        raise UndecodableRecord("oversized", f"{len(value)} bytes")
    if value[0] == 0 or value[0] > declared_format:
        raise UndecodableRecord("newer_format", f"format {value[0]}, the partition declares {declared_format}")
    body = value[1:]
    try:
        event: Event = _decoder_1.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableRecord("malformed", str(error)) from None
    if _encoder.encode(event) != body:
        raise UndecodableRecord("not_canonical")
    return event


def encode_sealed(part: SealedPart) -> bytes:
    """Return the sealed bytes; raises ``TooLarge`` naming the field that a caller can shorten."""
    sealed = _encoder.encode(part)
    if len(sealed) > SEALED_BYTES_MAX:
        field = "record" if len(part.record) > SEALED_BYTES_MAX // 2 else "response_id and conversation_id"
        raise TooLarge(
            field, f"together with the rest have {len(sealed)} bytes; at most {SEALED_BYTES_MAX} are allowed"
        )
    return sealed


def decode_sealed(sealed: bytes) -> SealedPart:
    """Return the sealed part, or an empty one when another producer put something else there: it is never judged."""
    try:
        return _sealed_decoder.decode(sealed)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return SealedPart()
