"""Tables: the rows of a partition as records of the topic ``tables``, from which a new replica starts.

Place in the flow: log → fold → rows → **table** → rows of another process. A record's key is a row's key without its
partition, its value the row's bytes; a null record is a deleted row. Index entries that follow from rows (``derived``)
are not in a table: whoever copies it derives them. Every batch of them is closed by a marker, under
one key of its own, and is visible only as a whole (one transaction), so a table is always one of some position.

A marker carries the *row digest*: the sum modulo 2²⁵⁶ of BLAKE2b-256 over each length of a key, key and row. It is
kept up to date by adding new rows and taking old ones away, so it does not depend on the order of writes, and a reader
that holds other rows than the writer held finds that out.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Annotated, NamedTuple

import msgspec

from ledger import codec
from ledger.derived import Entry, derivations, is_derived
from ledger.errors import UndecodableRecord
from ledger.purged import purged_key, unpurged
from ledger.rows import FOLDED_KINDS, Kind, LocalKind, MetaRow
from ledger.table import PREFIX_BYTES, decode_row, folded_rows, partition_prefix
from ledger.turn import Partition
from ledger.view import ViewStore

TABLE_FORMAT = 2
"""First byte of a marker; rows are as ``rows`` has them for the partition's declared fold version."""
MARKER_KEY = b"\xff"
"""Key of the markers, above ``Kind`` and ``LocalKind``. Compaction keeps the last one."""
DIGEST_MODULUS = 1 << 256
DIGEST_BYTES = 32
WIPE_ROWS = 1_000
"""Rows deleted in one write: a few milliseconds."""
DIGEST_ROWS = 1_000
"""Rows digested at once."""
NO_ROWS = bytes(DIGEST_BYTES)
"""Row digest of an empty table."""

Digest32 = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Marker(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """What closes a batch: which rows the table has now, and of which moment of which log."""

    ledger_id: Annotated[bytes, msgspec.Meta(max_length=16)]
    log_id: Annotated[str, msgspec.Meta(max_length=64)]
    """Identity of the event log that was folded: its Kafka topic ID."""
    position: Natural
    """Next offset to fold."""
    clock_ms: Natural
    """Partition clock."""
    chain: Digest32
    """Head of the hash chain over all records below ``position``."""
    chain_before: Digest32
    """The chain without the anchor, so that the anchor alone can be checked against the log."""
    anchor_offset: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
    """Offset of the last folded record, -1 before any."""
    rows_digest: Digest32
    rows_count: Natural


class TableState(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """How far some local rows are a copy of a table; written in one batch with them."""

    tables_id: str
    """Identity of the topic that was read."""
    format: int = TABLE_FORMAT
    """A copy of another format is made anew: it holds, and digests, other rows."""
    position: int = 0
    """Next offset of the topic ``tables`` to read."""
    rows_digest: bytes = NO_ROWS
    """Of the local rows."""
    rows_count: int = 0
    marker: Marker | None = None
    """The last one read, if the rows are exactly those that it closed."""

    @property
    def verified(self) -> bool:
        """Whether the rows are those that the marker's writer had."""
        marker = self.marker
        return marker is not None and (marker.rows_digest, marker.rows_count) == (self.rows_digest, self.rows_count)


class WriterFenced(Exception):
    """Another process has started to write the table: this one can write nothing more."""


class PartitionLost(Exception):
    """The group of processes that share the partitions has given this one to another, or is about to."""


class TableChange(NamedTuple):
    """What some row changes mean for a table."""

    records: list[tuple[bytes, bytes | None]]
    """Key and value of each row that really changes."""
    removed: list[tuple[bytes, bytes]]
    """Key and value before, of those that were there."""
    rows_digest: bytes
    """Afterwards, as is ``rows_count``."""
    rows_count: int


_encoder = msgspec.msgpack.Encoder()
_marker_decoder = msgspec.msgpack.Decoder(Marker)
_state_decoder = msgspec.msgpack.Decoder(TableState)
# Bound once: they run for every row that changes.
_length = struct.Struct(">I").pack
_blake2b, _number = hashlib.blake2b, int.from_bytes


def encode_marker(marker: Marker) -> bytes:
    """Return the record value of a marker."""
    return bytes([TABLE_FORMAT]) + _encoder.encode(marker)


def decode_marker(value: bytes | None) -> Marker:
    """Return the marker in ``value``; decoded as strictly as an event. Raises ``UndecodableRecord``."""
    if not value:
        raise UndecodableRecord("empty")
    if value[0] != TABLE_FORMAT:
        age = "newer" if value[0] > TABLE_FORMAT else "older"
        raise UndecodableRecord(f"{age}_format", f"a table's marker has format {value[0]}, not {TABLE_FORMAT}")
    try:
        marker = _marker_decoder.decode(value[1:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UndecodableRecord("malformed", str(error)) from None
    if _encoder.encode(marker) != value[1:]:
        raise UndecodableRecord("not_canonical")
    return marker


def marker_of(meta: MetaRow, log_id: str, rows_digest: bytes, rows_count: int) -> Marker:
    """Return the marker of rows whose meta row is ``meta``."""
    return Marker(
        ledger_id=meta.ledger_id,
        log_id=log_id,
        position=meta.position,
        clock_ms=meta.clock_ms,
        chain=meta.chain,
        chain_before=meta.chain_before,
        anchor_offset=meta.anchor_offset,
        rows_digest=rows_digest,
        rows_count=rows_count,
    )


def agrees(meta: MetaRow, marker: Marker) -> bool:
    """Return whether the meta row is of the moment that the marker names."""
    return marker == marker_of(meta, marker.log_id, marker.rows_digest, marker.rows_count)


def is_supported(meta: MetaRow) -> bool:
    """Return whether this build knows the format and the rules that the rows were made with."""
    return meta.format <= codec.FORMAT and meta.fold_version <= codec.FOLD_VERSION


def is_row(key: bytes) -> bool:
    """Return whether a record's key is that of a row that tables carry."""
    return key[:1] in FOLDED_KINDS and not is_derived(key)


def pair_digests(rows: Iterable[tuple[bytes, bytes]]) -> int:
    """Return what rows, by key without the partition, add to a row digest."""
    return sum(
        [
            _number(_blake2b(_length(len(key)) + key + row, digest_size=DIGEST_BYTES).digest(), "big")
            for key, row in rows
        ]
    )


def encode_digest(total: int) -> bytes:
    """Return the row digest of what rows have added to it."""
    return (total % DIGEST_MODULUS).to_bytes(DIGEST_BYTES, "big")


def scan_digests(rows: Iterable[tuple[bytes, bytes]]) -> tuple[int, int]:
    """Return what stored rows, by key with the partition, add to a row digest, and how many of them tables carry.

    The others add nothing, if over the whole partition the derived entries are those that follow from the rows; else
    they add the difference, and the digest is that of no table.
    """
    carried: list[tuple[bytes, bytes]] = []
    stored: list[Entry] = []
    derived: list[Entry] = []
    for stored_key, row in rows:
        key = stored_key[PREFIX_BYTES:]
        if is_row(key):
            carried.append((key, row))
            with contextlib.suppress(UndecodableRecord):
                derived += _entries(key, row)
        elif key[:1] in FOLDED_KINDS:
            stored.append((key, row))
    total = pair_digests(carried) + pair_digests(stored) - pair_digests(derived)
    return total, len(carried)


def table_change(
    store: ViewStore,
    changes: Mapping[bytes, bytes | None],
    rows_digest: bytes,
    rows_count: int,
    *,
    new: Mapping[bytes, bytes] = MappingProxyType({}),
) -> TableChange:
    """Return what ``changes`` and ``new`` (by row key, with its partition; no derived entries) will do to the table of
    the rows in ``store``; ``new`` are rows of which it holds none.

    Reads the rows as they are, so call it before the changes are written.
    """
    keys = list(changes)
    added = [(key[PREFIX_BYTES:], row) for key, row in new.items()]
    removed: list[tuple[bytes, bytes]] = []
    deleted: list[tuple[bytes, None]] = []
    for key, before in zip(keys, store.get_many(keys), strict=True):
        after = changes[key]
        if after == before:
            continue
        table_key = key[PREFIX_BYTES:]
        if before is not None:
            removed.append((table_key, before))
        if after is None:
            deleted.append((table_key, None))
        else:
            added.append((table_key, after))
    total = int.from_bytes(rows_digest, "big") + pair_digests(added) - pair_digests(removed)
    return TableChange(
        [*added, *deleted],
        removed,
        encode_digest(total),
        rows_count + len(added) - len(removed),
    )


def digest_of(store: ViewStore, partition: Partition) -> tuple[bytes, int]:
    """Return row digest and number of the rows of a partition that tables carry, by reading all of them."""
    total, count = 0, 0
    rows = folded_rows(store, partition)
    while part := list(islice(rows, DIGEST_ROWS)):
        part_total, part_count = scan_digests(part)
        total += part_total
        count += part_count
    return encode_digest(total), count


def _entries(key: bytes, row: bytes) -> tuple[Entry, ...]:
    """Return the entries that follow from an encoded row. Raises ``UndecodableRecord``."""
    derive = derivations.get(key[0])
    try:
        return () if derive is None else derive(key, decode_row(key, row))
    except struct.error:
        raise UndecodableRecord("malformed", f"a row of kind {key[:1]!r} has a number out of range") from None


class TableCopy:
    """The rows of one partition in a store, as far as they are a copy of its table."""

    def __init__(self, store: ViewStore, partition: Partition) -> None:
        self.store = store
        self.partition = partition
        self._prefix = partition_prefix(partition)

    @property
    def is_begun(self) -> bool:
        """Whether a copy was begun and not finished, by whatever release."""
        return self.store.get(self._prefix + LocalKind.TABLE_STATE) is not None

    def load(self) -> TableState | None:
        """Return the state of the copy; None when there is none, or one of another release."""
        raw = self.store.get(self._prefix + LocalKind.TABLE_STATE)
        try:
            state = None if raw is None else _state_decoder.decode(raw)
        except msgspec.DecodeError:
            return None
        return state if state is not None and state.format == TABLE_FORMAT else None

    def state_change(self, state: TableState | None) -> dict[bytes, bytes | None]:
        """Return the local row of a state, to be written with the rows it speaks of; None: no copy any more."""
        return {self._prefix + LocalKind.TABLE_STATE: None if state is None else _encoder.encode(state)}

    def apply(
        self, state: TableState, rows: Mapping[bytes, bytes | None], position: int, marker: Marker | None
    ) -> TableState:
        """Write rows of the table (by record key), what follows from them and the state after them; return that state.

        Raises ``UndecodableRecord``, before anything is written, for a row that this build cannot read.
        """
        changes = {self._prefix + key: row for key, row in rows.items()}
        change = table_change(self.store, changes, state.rows_digest, state.rows_count)
        after = TableState(
            tables_id=state.tables_id,
            position=position,
            rows_digest=change.rows_digest,
            rows_count=change.rows_count,
            marker=marker,
        )
        self.store.write(changes | self._derived(change) | self.state_change(after))
        return after

    def _derived(self, change: TableChange) -> dict[bytes, bytes | None]:
        """Return the index entries that change with rows."""
        entries: dict[bytes, bytes | None] = {}
        for key, row in change.removed:
            for entry, _ in _entries(key, row):
                entries[self._prefix + entry] = None
        for key, after in change.records:
            if after is not None:
                for entry, value in _entries(key, after):
                    entries[self._prefix + entry] = value
        return entries

    def wipe(self) -> Iterator[None]:
        """Delete every row that was folded or copied, a bounded number at each step.

        First go the meta row and the state, so that the rest is never taken for rows of a position, and what is said of
        purges, since the rows that follow may be erased ones.
        """
        changes = self.state_change(None) | {self._prefix + Kind.META: None}
        was_purged = self.store.get(purged_key(self.partition)) is not None
        if was_purged or next(folded_rows(self.store, self.partition), None) is not None:
            changes |= unpurged(self.partition)
        self.store.write(changes)
        while keys := list(islice((key for key, _ in folded_rows(self.store, self.partition)), WIPE_ROWS)):
            self.store.write(dict.fromkeys(keys))
            yield
