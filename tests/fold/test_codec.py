"""The bytes of events: one meaning or none, the same for every producer."""

from __future__ import annotations

from typing import Any, get_args

import msgpack  # type: ignore[import-untyped]  # It ships no annotations.
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from ledger import codec
from ledger.codec import SealedPart
from ledger.errors import InvalidInput, TooLarge, UndecodableRecord
from ledger.event import SEALED_BYTES_MAX, ClockTicked, Event
from ledger.log import RECORD_BYTES_MAX

EVENT_TYPES: tuple[type[msgspec.Struct], ...] = get_args(Event)


def values_of(declared: inspect.Type) -> st.SearchStrategy[Any]:
    """Return a strategy of the values that a declared type allows."""
    match declared:
        case inspect.IntType():
            low, high = declared.ge or 0, declared.le if declared.lt is None else declared.lt - 1
            return st.integers(low, 2**63 - 1 if high is None else high)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.BytesType():
            return st.binary(min_size=declared.min_length or 0, max_size=min(declared.max_length or 0, 64))
        case inspect.StrType():
            return st.text(max_size=32)
        case inspect.VarTupleType():
            return st.lists(values_of(declared.item_type), max_size=3).map(tuple)
        case inspect.UnionType():
            return st.one_of([values_of(each) for each in declared.types])
        case inspect.StructType():
            fields = {part.name: values_of(part.type) for part in declared.fields}
            return st.builds(declared.cls, **fields)
        case _:
            raise NotImplementedError(f"events have no fields of type {declared}")


def events() -> st.SearchStrategy[Any]:
    return st.one_of([values_of(inspect.type_info(event_type)) for event_type in EVENT_TYPES])


def as_plain(value: Any) -> Any:
    """Return what the documented format says of an event: arrays, its tag first."""
    if isinstance(value, msgspec.Struct):
        tag = [value.__struct_config__.tag] if isinstance(value, EVENT_TYPES) else []
        return tag + [as_plain(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, tuple):
        return [as_plain(each) for each in value]
    return value


@given(event=events())
def test_decoding_gives_back_what_was_encoded(event: Event) -> None:
    assert codec.decode(codec.encode(event)) == event


@given(event=events())
def test_independent_encoder_writes_the_same_bytes(event: Event) -> None:
    value = codec.encode(event)
    plain = as_plain(event)
    assert value == bytes([codec.FORMAT]) + msgpack.packb(plain)
    assert msgpack.unpackb(value[1:]) == plain


@given(event=events(), data=st.data())
def test_mutated_bytes_are_refused_or_mean_exactly_themselves(event: Event, data: st.DataObject) -> None:
    value = codec.encode(event)
    place = data.draw(st.integers(0, len(value) - 1))
    cut = data.draw(st.integers(0, 2))
    mutated = value[:place] + data.draw(st.binary(max_size=3)) + value[place + cut :]
    try:
        decoded = codec.decode(mutated)
    except UndecodableRecord:
        return
    assert codec.encode(decoded) == mutated


@given(value=st.binary(max_size=200))
def test_any_bytes_are_refused_or_mean_exactly_themselves(value: bytes) -> None:
    try:
        decoded = codec.decode(b"\x01" + value)
    except UndecodableRecord:
        return
    assert codec.encode(decoded) == b"\x01" + value


def test_unknown_fields_are_refused() -> None:
    value = bytes([codec.FORMAT]) + msgpack.packb([4, 1, 2])
    with pytest.raises(UndecodableRecord, match="malformed"):
        codec.decode(value)


@pytest.mark.parametrize(
    "body",
    [b"\x92\x04\xd3" + (5).to_bytes(8, "big"), b"\xdc\x00\x02\x04\x05", b"\x92\xcc\x04\x05"],
    ids=["signed integer", "long array", "long tag"],
)
def test_second_spelling_of_an_event_is_refused(body: bytes) -> None:
    assert msgpack.unpackb(body) == [4, 5]
    with pytest.raises(UndecodableRecord, match="not_canonical"):
        codec.decode(b"\x01" + body)


def test_field_out_of_its_bound_is_not_encoded() -> None:
    with pytest.raises(InvalidInput):
        codec.encode(ClockTicked(written_at_ms=-1))
    with pytest.raises(InvalidInput):
        codec.encode(ClockTicked(written_at_ms=2**63))


def test_format_that_this_build_cannot_write_is_refused() -> None:
    with pytest.raises(InvalidInput, match="format"):
        codec.encode(ClockTicked(written_at_ms=1), codec.FORMAT + 1)


@pytest.mark.parametrize(
    ("size_bytes", "reason"), [(RECORD_BYTES_MAX, "malformed"), (RECORD_BYTES_MAX + 1, "oversized")]
)
def test_record_is_read_up_to_its_bound(size_bytes: int, reason: str) -> None:
    with pytest.raises(UndecodableRecord, match=reason):
        codec.decode(b"\x01" * size_bytes)


@pytest.mark.parametrize("over", [0, 1])
def test_sealed_part_is_written_up_to_its_bound(over: int) -> None:
    overhead = len(codec.encode_sealed(SealedPart(response_id="r" * 400, record=b"x" * 512))) - 912
    part = SealedPart(response_id="r" * (SEALED_BYTES_MAX - overhead - 512 + over), record=b"x" * 512)
    if over:
        with pytest.raises(TooLarge, match="response_id"):
            codec.encode_sealed(part)
    else:
        assert len(codec.encode_sealed(part)) == SEALED_BYTES_MAX
        assert codec.decode_sealed(codec.encode_sealed(part)) == part


@given(sealed=st.binary(max_size=64))
def test_sealed_part_of_another_producer_is_never_an_error(sealed: bytes) -> None:
    assert isinstance(codec.decode_sealed(sealed), SealedPart)
