"""Contract of the port ``ViewStore``, on every adapter."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.adapters.memory import MemoryViewStore
from ledger.adapters.rocks import RocksViewStore
from ledger.view import ViewStore


def test_written_rows_are_read_at_once(store: ViewStore) -> None:
    store.write({b"a": b"1", b"b": b""})
    assert store.get(b"a") == b"1"
    assert store.get(b"b") == b""
    assert store.get(b"c") is None


def test_later_row_replaces_the_earlier(store: ViewStore) -> None:
    store.write({b"a": b"1"})
    store.write({b"a": b"2"})
    assert store.get(b"a") == b"2"
    assert list(store.scan(b"a", b"b")) == [(b"a", b"2")]


def test_none_deletes_a_row_and_is_harmless_where_there_is_none(store: ViewStore) -> None:
    store.write({b"a": b"1", b"b": b"2"})
    store.write({b"a": None, b"never": None})
    assert store.get(b"a") is None
    assert list(store.scan(b"", b"z")) == [(b"b", b"2")]


def test_empty_write_changes_nothing(store: ViewStore) -> None:
    store.write({b"a": b"1"})
    store.write({})
    assert list(store.scan(b"", b"z")) == [(b"a", b"1")]


def test_rows_are_returned_in_the_order_of_the_keys_asked_for(store: ViewStore) -> None:
    store.write({b"a": b"1", b"b": b"2", b"c": b"3"})
    assert store.get_many([b"c", b"none", b"a", b"c"]) == [b"3", None, b"1", b"3"]
    assert store.get_many((b"b",)) == [b"2"]
    assert store.get_many([]) == []


def test_keys_sort_as_unsigned_bytes(store: ViewStore) -> None:
    keys = [b"", b"\x00", b"\x00\x00", b"\x01", b"\x7f", b"\x80", b"\xfe", b"\xff", b"\xff\x00"]
    store.write(dict.fromkeys(reversed(keys), b"row"))
    assert [key for key, _ in store.scan(b"", b"\xff\xff")] == keys


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (b"b", b"d", [b"b", b"c"]),
        (b"b\x00", b"c\x00", [b"c"]),
        (b"", b"b", [b"a"]),
        (b"c", b"c", []),
        (b"d", b"b", []),
        (b"e", b"z", []),
        (b"d", b"z", [b"d"]),
    ],
)
def test_scan_includes_its_lower_bound_and_not_its_upper(
    store: ViewStore, lower: bytes, upper: bytes, expected: list[bytes]
) -> None:
    store.write(dict.fromkeys((b"a", b"b", b"c", b"d"), b"row"))
    assert [key for key, _ in store.scan(lower, upper)] == expected


def test_scan_of_many_rows_ends_at_its_bound(store: ViewStore) -> None:
    store.write({number.to_bytes(8, "big"): b"row" for number in range(2_000)})
    for upper in (1, 255, 256, 257, 1_999, 2_000):
        rows = list(store.scan((0).to_bytes(8, "big"), upper.to_bytes(8, "big")))
        assert len(rows) == upper


def test_scan_sees_the_rows_as_they_were_when_it_began(store: ViewStore) -> None:
    store.write({b"a": b"1", b"b": b"2", b"c": b"3"})
    not_yet_read = store.scan(b"a", b"z")
    half_read = store.scan(b"a", b"z")
    assert next(half_read) == (b"a", b"1")
    store.write({b"a": b"new", b"b": None, b"bb": b"new", b"d": b"new"})
    assert list(not_yet_read) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    assert list(half_read) == [(b"b", b"2"), (b"c", b"3")]
    assert list(store.scan(b"a", b"z")) == [(b"a", b"new"), (b"bb", b"new"), (b"c", b"3"), (b"d", b"new")]


def test_rows_may_be_written_while_they_are_scanned(store: ViewStore) -> None:
    store.write({bytes([number]): b"old" for number in range(10)})
    for key, _ in store.scan(b"\x00", b"\xff"):
        store.write({key: None, key + b"\x00": b"new"})
    assert list(store.scan(b"\x00", b"\xff")) == [(bytes([number, 0]), b"new") for number in range(10)]


def test_large_rows_are_kept_whole(store: ViewStore) -> None:
    row = bytes(range(256)) * 4_096
    store.write({b"a": row})
    assert store.get(b"a") == row


keys = st.binary(max_size=3)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.dictionaries(keys, st.one_of(st.none(), st.binary(max_size=4)), max_size=6)),
        st.tuples(st.just("get_many"), st.lists(keys, max_size=6)),
        st.tuples(st.just("scan"), st.tuples(keys, keys)),
        st.tuples(st.just("begin_scan"), st.tuples(keys, keys)),
        st.tuples(st.just("flush"), st.none()),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(operations=operations)
def test_rocks_answers_as_the_reference_does(operations: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "view"
        rocks, reference = RocksViewStore(path), MemoryViewStore()
        begun: list[tuple[Iterator[tuple[bytes, bytes]], Iterator[tuple[bytes, bytes]]]] = []
        for operation in operations:
            match operation:
                case ("write", dict(changes)):
                    rocks.write(changes)
                    reference.write(changes)
                case ("get_many", list(asked)):
                    assert rocks.get_many(asked) == reference.get_many(asked)
                    assert [rocks.get(key) for key in asked] == reference.get_many(asked)
                case ("scan", (bytes(lower), bytes(upper))):
                    assert list(rocks.scan(lower, upper)) == list(reference.scan(lower, upper))
                case ("begin_scan", (bytes(lower), bytes(upper))):
                    begun.append((rocks.scan(lower, upper), reference.scan(lower, upper)))
                case ("flush", _):
                    rocks.flush()
                case ("reopen", _):
                    for scanned, expected in begun:
                        assert list(scanned) == list(expected)
                    begun.clear()
                    rocks.close()
                    rocks = RocksViewStore(path)
        for scanned, expected in begun:
            assert list(scanned) == list(expected)
        assert list(rocks.scan(b"", b"\xff" * 4)) == list(reference.scan(b"", b"\xff" * 4))
        rocks.close()
