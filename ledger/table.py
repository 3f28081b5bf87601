"""The fold's window on one partition's rows: an overlay of uncommitted changes on the store.

Reads fall through to the store, changes collect until ``changes`` is written together with the position. Decoded rows
are kept between batches, which is safe because rows are frozen and one process owns a store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from ledger.content import ContentRef
from ledger.derived import derivations, is_derived
from ledger.errors import UndecodableRecord
from ledger.index import Index
from ledger.rows import (
    FOLDED_KINDS,
    INDEX_GROUP_BYTES,
    ROW_TYPES,
    ConversationRow,
    EventRow,
    ItemRow,
    KeyRow,
    Kind,
    LineageRow,
    LockRow,
    MetaRow,
    NodeRow,
    PrincipalRow,
    ResponseRow,
    TurnRow,
    ordered,
)
from ledger.turn import Partition, Position
from ledger.view import ViewStore

KNOWN_ROWS_MAX = 8192
"""Decoded rows kept per partition between batches: about 4 MB, enough for the conversations active at one moment."""

ABSENT_KEYS_MAX = 8192
"""Keys known not to be in the store: more than a transaction asks for. Of others the store is asked once more."""

_decode = {kind[0]: msgspec.msgpack.Decoder(row_type).decode for kind, row_type in ROW_TYPES.items()}
_encode = msgspec.msgpack.Encoder().encode
_UNKNOWN = object()
_EVENT, _NODE, _QUEUE = Kind.EVENT[0], Kind.NODE[0], Kind.QUEUE[0]
PREFIX_BYTES = 2
"""Of a key: those that name the partition."""


def partition_prefix(partition: Partition) -> bytes:
    """Return the first bytes of every key of a partition."""
    return partition.to_bytes(PREFIX_BYTES, "big")


class Changes(NamedTuple):
    """Row changes by row key, with its partition; in no particular order."""

    new: dict[bytes, bytes]
    """Rows that are certainly not in the store yet."""
    other: dict[bytes, bytes | None]
    """Rows that may be in the store; None: deleted."""
    derived: dict[bytes, bytes | None]
    """Index entries that follow from other rows; None: deleted."""


class Rows:
    """One partition's rows: an overlay of uncommitted changes on the store. Used by one task at a time."""

    def __init__(self, store: ViewStore, partition: Partition) -> None:
        self.store = store
        self._prefix = partition_prefix(partition)
        self._known: dict[bytes, msgspec.Struct | None] = {}
        self._changed: dict[bytes, msgspec.Struct | None] = {}
        self._absent: set[bytes] = set()
        """Keys that were looked for since the last commit and are not in the store."""
        self._underived: dict[bytes, msgspec.Struct | None] = {}
        """Rows that changed since their index entries were last brought up to date, as they were then."""
        self._indexes = {
            kind[0]: Index(store, self._prefix + kind, group_bytes=group_bytes)
            for kind, group_bytes in sorted(INDEX_GROUP_BYTES.items())
        }
        self.partition = partition
        self.meta = self._stored_meta = self._load_meta()
        self._stored_position = ordered(self.meta.position)
        self.anchor_trimmed = False
        """Whether the log no longer holds the anchor, so that it cannot be compared."""
        self.has_skipped = False
        """Whether the position passed control records since the last commit."""

    @property
    def position(self) -> Position:
        """The next offset to fold."""
        return Position(self.meta.position)

    @property
    def stored_meta(self) -> MetaRow:
        """The meta row as the store has it."""
        return self._stored_meta

    def skip_to(self, position: Position) -> None:
        """Move the position over offsets that hold no records (transaction markers)."""
        if position > self.meta.position:
            self.meta = replace(self.meta, position=position)
            self.has_skipped = True

    def _load_meta(self) -> MetaRow:
        raw = self.store.get(self._prefix + Kind.META)
        return MetaRow() if raw is None else cast(MetaRow, _decode[Kind.META[0]](raw))

    def _get(self, key: bytes) -> Any:
        row: Any = self._known.get(key, _UNKNOWN)
        if row is _UNKNOWN:
            raw = self.store.get(self._prefix + key)
            if raw is None:
                # Readers look here too, for whatever their callers ask.
                if len(self._absent) < ABSENT_KEYS_MAX:
                    self._absent.add(key)
                return None
            row = self._known[key] = _decode[key[0]](raw)
        return row

    def response(self, alias: bytes) -> ResponseRow | None:
        row: ResponseRow | None = self._get(b"r" + alias)
        return row

    def conversation(self, alias: bytes) -> ConversationRow | None:
        row: ConversationRow | None = self._get(b"c" + alias)
        return row

    def item(self, alias: bytes) -> ItemRow | None:
        row: ItemRow | None = self._get(b"i" + alias)
        return row

    def node(self, offset: int) -> NodeRow | None:
        row: NodeRow | None = self._get(b"n" + ordered(offset))
        return row

    def lineage(self, digest: bytes) -> LineageRow | None:
        row: LineageRow | None = self._get(b"l" + digest)
        return row

    def principal(self, digest: bytes) -> PrincipalRow:
        row: PrincipalRow | None = self._get(b"p" + digest)
        return row or _NO_PRINCIPAL

    def event(self, event_id: bytes) -> EventRow | None:
        row: EventRow | None = self._get(b"e" + event_id)
        return row

    def key(self, digest: bytes) -> KeyRow | None:
        row: KeyRow | None = self._get(b"k" + digest)
        return row

    def turn(self, turn_id: bytes) -> TurnRow | None:
        row: TurnRow | None = self._get(b"t" + turn_id)
        return row

    def lock(self, conversation: bytes) -> LockRow | None:
        row: LockRow | None = self._get(b"j" + conversation)
        return row

    def put(self, kind: bytes, key: bytes, row: msgspec.Struct) -> None:
        """Write a row of a point kind; its index entries follow."""
        self._change(kind + key, row)

    def delete(self, kind: bytes, key: bytes) -> None:
        """Delete a row of a point kind; its index entries follow."""
        self._change(kind + key, None)

    def _change(self, key: bytes, row: msgspec.Struct | None) -> None:
        if key not in self._underived:
            before: Any = self._known.get(key, _UNKNOWN)
            if before is _UNKNOWN:
                is_new = key in self._absent or self._is_new_node(key)
                before = None if is_new else self._get(key)
            self._underived[key] = before
        self._changed[key] = self._known[key] = row

    def _is_new_node(self, key: bytes) -> bool:
        """Return whether the key is of a node whose record lies behind what is stored."""
        return key[0] == _NODE and key[1:] >= self._stored_position

    def _derive(self) -> None:
        """Bring the index entries of all rows that have changed up to date."""
        indexes, known = self._indexes, self._known
        prefix = self._prefix
        for key, before in self._underived.items():
            derive = derivations.get(key[0])
            if derive is None:
                continue
            after = known[key]
            new = () if after is None else derive(key, after)
            if before is not None:
                old = derive(key, before)
                if old == new:
                    continue
                # Before the others are put: a key that stays may get another value.
                for entry, _ in old:
                    indexes[entry[0]].delete(prefix + entry)
            for entry, value in new:
                indexes[entry[0]].put(prefix + entry, value)
        self._underived.clear()

    def enqueue(self, key: bytes) -> None:
        """Put a task that follows from no row into the queue; ``key``: due time, task, subject."""
        self._indexes[_QUEUE].put(self._prefix + Kind.QUEUE + key, b"")

    def dequeue(self, key: bytes) -> None:
        """Take a task out of the queue."""
        self._indexes[_QUEUE].delete(self._prefix + Kind.QUEUE + key)

    def scan(self, kind: bytes, lower: bytes, upper: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` entries of an index kind with ``lower <= key < upper``, ascending, changes
        included; both bounds are of one principal, lineage or queue."""
        if self._underived:
            self._derive()
        return self._indexes[kind[0]].scan(lower, upper, limit)

    @property
    def changes_count(self) -> int:
        """Number of changes since the last ``committed``, without the meta row and entries not derived yet."""
        return len(self._changed) + sum(len(index.changed) for index in self._indexes.values())

    def changes(self) -> dict[bytes, bytes | None]:
        """Return all changes since the last ``committed``, with the meta row, as the store takes them."""
        new, other, derived = self.changes_apart()
        return {**new, **other, **derived}

    def changes_apart(self) -> Changes:
        """Return ``changes`` with those apart that certainly add a row, and those that follow from others."""
        self._derive()
        prefix, absent = self._prefix, self._absent
        new: dict[bytes, bytes] = {}
        other: dict[bytes, bytes | None] = {prefix + Kind.META: _encode(self.meta)}
        for key, row in self._changed.items():
            if key in absent or self._is_new_node(key):
                if row is not None:
                    new[prefix + key] = _encode(row)
            else:
                other[prefix + key] = None if row is None else _encode(row)
        derived: dict[bytes, bytes | None] = {}
        for kind, index in self._indexes.items():
            if kind != _QUEUE:
                derived.update(index.changed)
                continue
            for key, value in index.changed.items():
                (derived if is_derived(key, PREFIX_BYTES) else other)[key] = value
        return Changes(new, other, derived)

    def committed(self) -> None:
        """The store has taken ``changes``: forget them, keep the decoded rows."""
        assert not self._underived, "changes were asked for before they were committed"
        known = self._known
        for key, row in self._changed.items():
            # An event ID is looked up again by a retry only, and what is gone hardly ever.
            if row is None or key[0] == _EVENT:
                del known[key]
        self._changed.clear()
        self._absent.clear()
        self._stored_meta = self.meta
        self._stored_position = ordered(self.meta.position)
        self.has_skipped = False
        if len(known) > KNOWN_ROWS_MAX:
            known.clear()
        for index in self._indexes.values():
            index.committed()

    def discard(self) -> None:
        """The store refused ``changes``: go back to what it has, without asking it, since it may refuse that too."""
        self._changed.clear()
        self._known.clear()
        self._absent.clear()
        self._underived.clear()
        self.has_skipped = False
        for index in self._indexes.values():
            index.discard()
        self.meta = self._stored_meta


_NO_PRINCIPAL = PrincipalRow()


def decode_row(key: bytes, row: bytes) -> msgspec.Struct:
    """Return the row of a point kind with ``key`` (kind and rest). Raises ``UndecodableRecord``."""
    try:
        return _decode[key[0]](row)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UndecodableRecord("malformed", f"a row of kind {key[:1]!r} cannot be read: {error}") from None


def folded_rows(store: ViewStore, partition: Partition) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, bytes) of all rows that the fold made of a partition; equal on every replica at equal positions."""
    prefix = partition_prefix(partition)
    for key, value in store.scan(prefix, prefix + b"\xff"):
        if key[2:3] in FOLDED_KINDS:
            yield key, value


def referenced_contents(store: ViewStore, partition: Partition) -> set[bytes]:
    """Return the IDs of all contents that the rows of a partition refer to, by reading every node and conversation."""
    prefix = partition_prefix(partition)
    referenced: set[bytes] = set()
    for kind in (Kind.NODE, Kind.CONVERSATION):
        for _, raw in store.scan(prefix + kind, prefix + kind + b"\xff" * 21):
            row: Any = _decode[kind[0]](raw)
            content: ContentRef | None = row.content if kind == Kind.NODE else row.metadata
            if content is not None:
                referenced.add(content.id)
    return referenced
