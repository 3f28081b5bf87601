"""Bytes of lifecycle facts on the topic ``lifecycle``: one format byte, then a tagged msgpack array.

Facts follow from the log, so one that is written twice, or in a transaction that was aborted, is true all the same;
what is done about it must be idempotent.
"""

from __future__ import annotations

from typing import Annotated, assert_never

import msgspec

from ledger.content import ContentRef
from ledger.errors import UndecodableRecord
from ledger.verdict import ContentUnneeded, ErasureOrdered, Fact

FACT_FORMAT = 1


class _Unneeded(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    content: ContentRef


class _Ordered(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    principal: Annotated[bytes, msgspec.Meta(min_length=20, max_length=20)]
    offset: Annotated[int, msgspec.Meta(ge=0)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Unneeded | _Ordered)


def encode_fact(fact: Fact) -> bytes:
    """Return the record value of a fact."""
    return bytes([FACT_FORMAT]) + _encoder.encode(_wire(fact))


def _wire(fact: Fact) -> _Unneeded | _Ordered:
    match fact:
        case ContentUnneeded():
            return _Unneeded(fact.content)
        case ErasureOrdered():
            return _Ordered(fact.principal, fact.offset)
        case _:
            assert_never(fact)


def fact_key(fact: Fact) -> bytes:
    """Return the record key of a fact: what it is about."""
    return fact.content.scope if isinstance(fact, ContentUnneeded) else fact.principal


def decode_fact(value: bytes | None) -> Fact:
    """Return the fact in ``value``. Raises ``UndecodableRecord``."""
    if not value:
        raise UndecodableRecord("empty")
    if value[0] != FACT_FORMAT:
        raise UndecodableRecord("newer_format", f"a fact has format {value[0]}")
    try:
        wire = _decoder.decode(value[1:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UndecodableRecord("malformed", str(error)) from None
    return ContentUnneeded(wire.content) if isinstance(wire, _Unneeded) else ErasureOrdered(wire.principal, wire.offset)
