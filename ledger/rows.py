"""Rows of one partition: what the fold writes and the query reads.

A row is one msgpack array under ``partition (2 bytes, big endian) + kind (1) + key``. ``Rows`` is the fold's window on
them: reads fall through to the store, changes collect until ``changes`` is written together with the position. It keeps
decoded rows between batches, which is safe because rows are frozen and one process owns a store.

Byte-identical rows on every replica (design rule 2) are compared over ``FOLDED_KINDS``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from ledger.content import ContentRef
from ledger.event import OwnerRef
from ledger.policy import Policy
from ledger.turn import Partition, Position
from ledger.view import ViewStore

KNOWN_ROWS_MAX = 8192
"""Decoded rows kept per partition between batches: about 4 MB, enough for the conversations active at one moment."""


class Kind:
    """Third byte of a row's key. Point kinds hold a row; index kinds hold order in their key."""

    META = b"m"
    RESPONSE = b"r"
    CONVERSATION = b"c"
    ITEM = b"i"
    NODE = b"n"
    LINEAGE = b"l"
    PRINCIPAL = b"p"
    EVENT = b"e"
    KEY = b"k"
    TURN = b"t"
    LOCK = b"j"
    QUARANTINE = b"z"
    QUEUE = b"q"
    """Index: due time (8), task (1), subject. What is to be done when."""
    ACTIVITY = b"a"
    """Index: principal (20), offset of the last activity (8) → lineage."""
    MEMBER = b"g"
    """Index: lineage (20), node offset (8)."""
    LIVING = b"o"
    """Index: principal (20), node offset (8) → response alias. Only living responses, oldest first."""
    TOMBSTONE = b"d"
    """Index: principal (20), time to forget (8), kind (1), alias (20)."""


INDEX_KINDS = frozenset({Kind.QUEUE, Kind.ACTIVITY, Kind.MEMBER, Kind.LIVING, Kind.TOMBSTONE})
WRITTEN_ONCE_KINDS = frozenset({Kind.ACTIVITY, Kind.MEMBER, Kind.LIVING})
"""Their keys end in the offset of the record that makes them: one made and deleted in the same batch was never
stored."""


class Fate(IntEnum):
    """Why an alias is gone."""

    LIVING = 0
    EXPIRED = 1
    DELETED = 2
    EVICTED = 3
    ERASED = 4
    """Its principal was erased; callers see ``deleted``."""
    ABANDONED = 5
    """Its commit was undone; callers see ``deleted``."""

    @property
    def has_grace(self) -> bool:
        """Whether a turn that began before may still be committed for ``commit_grace_ms``."""
        return self in (Fate.EXPIRED, Fate.DELETED)


class _Row(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """What all rows share: an array of exactly the declared fields. Frozen, so no cycle for the collector to find."""


class MetaRow(_Row, frozen=True, kw_only=True):
    """Where the fold of the partition stands. Written with every batch."""

    position: int = 0
    """Next offset to fold."""
    clock_ms: int = 0
    """Partition clock."""
    chain: bytes = b"\0" * 32
    """Hash chain over offset, time, key and bytes of all records."""
    chain_before: bytes = b"\0" * 32
    """The chain without the last record, so that the record alone can be checked against the log."""
    anchor_offset: int = -1
    """Offset of the last folded record, -1 before any; the log must still hold it unchanged."""
    ledger_id: bytes = b""
    """Empty until the partition is formatted."""
    partition_count: int = 0
    digest_version: int = 0
    key_check: bytes = b""
    format: int = 1
    fold_version: int = 1
    generation: int = 0
    """Of the last policy or format change."""
    policy: Policy = Policy()
    queue_due_ms: int = 2**63 - 1
    """No queued task is due before this time: saves a scan per record."""
    quarantined: int = 0
    """Records refused as unreadable, ever."""


class ResponseRow(_Row, frozen=True, kw_only=True):
    """A claimed response alias: living, in progress, or its tombstone."""

    node: int
    """Offset of the record that claimed it; of the start while it is in progress."""
    principal: bytes
    lineage: bytes
    """Empty while in progress."""
    owner: OwnerRef
    status: int
    accepted_at_ms: int
    """Append time of the claim."""
    expires_at_ms: int
    """0: follows the lineage (sliding)."""
    turn_id: bytes | None
    """Of the started turn it belongs to."""
    lease_until_ms: int
    """While in progress: when the turn counts as failed."""
    sealed: bytes
    """Empty in a tombstone."""
    fate: int = Fate.LIVING
    gone_at_ms: int = 0
    forget_at_ms: int = 0
    """When the tombstone ends."""


class ConversationRow(_Row, frozen=True, kw_only=True):
    """A conversation alias, or its tombstone. Its alias is its lineage."""

    head: int
    """Node of its last entry; 0: none yet."""
    revision: int
    """Offset of the record that last changed it."""
    principal: bytes
    owner: OwnerRef
    created_offset: int
    created_at_ms: int
    metadata: ContentRef | None
    sealed: bytes
    fate: int = Fate.LIVING
    gone_at_ms: int = 0
    forget_at_ms: int = 0


class ItemRow(_Row, frozen=True, kw_only=True):
    """A claimed item alias, or its tombstone."""

    node: int
    principal: bytes
    fate: int = Fate.LIVING
    gone_at_ms: int = 0
    forget_at_ms: int = 0


class NodeRow(_Row, frozen=True, kw_only=True):
    """One accepted turn or item batch, keyed by its offset; kept while it has a hold."""

    parent: int
    """Offset of the parent node; 0: none."""
    principal: bytes
    lineage: bytes
    response: bytes | None
    """None for an item batch."""
    conversation: bytes | None
    """The conversation that the entry was made in."""
    native: bool
    content: ContentRef | None
    items: tuple[bytes, ...]
    status: int
    size_bytes: int
    accepted_at_ms: int
    read_revision: int | None
    """The revision that the router had read; for audit."""
    idempotency: bytes | None
    response_hold: int
    """1 while its response is alive or in grace."""
    head_hold: int
    """1 while a living (or in grace) conversation has it as head."""
    child_holds: int
    """Number of kept children."""


class LineageRow(_Row, frozen=True, kw_only=True):
    """Unit of limits and of sliding retention."""

    principal: bytes
    nodes: int = 0
    """Nodes kept, gone or not."""
    records: int = 0
    """Living responses."""
    size_bytes: int = 0
    """Of nodes and metadata that are not cut."""
    active_offset: int = 0
    """Of the last accepted turn or item batch; 0: not in the activity index."""
    expires_at_ms: int = 0
    lapsed_offset: int = 0
    """Sliding responses below this offset expired at ``lapsed_at_ms``, before the lineage began anew."""
    lapsed_at_ms: int = 0
    queued: bool = False
    """Whether the queue holds its expiry."""
    cut_offset: int = 0
    """Nodes below this offset are gone."""
    cut_fate: int = Fate.LIVING
    cut_at_ms: int = 0


class PrincipalRow(_Row, frozen=True, kw_only=True):
    """Counts and the last erasure of one principal. Never deleted: the erasure must be remembered."""

    records: int = 0
    """Living responses."""
    size_bytes: int = 0
    tombstones: int = 0
    cut_offset: int = 0
    """Everything below this offset was erased."""
    cut_at_ms: int = 0


class EventRow(_Row, frozen=True, kw_only=True):
    """A remembered event ID."""

    offset: int
    """Where it was first folded."""
    code: int
    """Its first verdict."""
    node: int
    """The node that answers it; 0: none."""
    revision: int
    until_ms: int
    """Last moment at which it is remembered, well beyond the event's ``not_after``."""


class KeyRow(_Row, frozen=True, kw_only=True):
    """A client's idempotency key: bound to a turn, or leased by one that has started."""

    offset: int
    """Of the record that bound or leased it."""
    node: int
    """0 while only leased."""
    request_digest: bytes
    turn_id: bytes | None
    until_ms: int
    answered: bool
    """Somebody was answered from the bound turn, so it can no longer be undone."""


class TurnRow(_Row, frozen=True, kw_only=True):
    """A started turn."""

    response: bytes | None
    conversation: bytes | None
    idempotency: bytes | None
    lease_until_ms: int
    ended: bool


class LockRow(_Row, frozen=True, kw_only=True):
    """An exclusive turn on a conversation."""

    turn_id: bytes
    until_ms: int


class QuarantineRow(_Row, frozen=True, kw_only=True):
    """A record that was refused as unreadable."""

    digest: bytes
    reason: str


ROW_TYPES: dict[bytes, type[msgspec.Struct]] = {
    Kind.META: MetaRow,
    Kind.RESPONSE: ResponseRow,
    Kind.CONVERSATION: ConversationRow,
    Kind.ITEM: ItemRow,
    Kind.NODE: NodeRow,
    Kind.LINEAGE: LineageRow,
    Kind.PRINCIPAL: PrincipalRow,
    Kind.EVENT: EventRow,
    Kind.KEY: KeyRow,
    Kind.TURN: TurnRow,
    Kind.LOCK: LockRow,
    Kind.QUARANTINE: QuarantineRow,
}
FOLDED_KINDS = frozenset(ROW_TYPES) | INDEX_KINDS

_decode = {kind[0]: msgspec.msgpack.Decoder(row_type).decode for kind, row_type in ROW_TYPES.items()}
_encode = msgspec.msgpack.Encoder().encode
_UNKNOWN = object()
_EVENT = Kind.EVENT[0]


def partition_prefix(partition: Partition) -> bytes:
    """Return the first two bytes of every key of a partition."""
    return partition.to_bytes(2, "big")


ordered = struct.Struct(">Q").pack
"""Return 8 bytes that sort as the non-negative number does (a C function: it runs several times per record)."""


class Rows:
    """One partition's rows: an overlay of uncommitted changes on the store. Used by one task at a time."""

    def __init__(self, store: ViewStore, partition: Partition) -> None:
        self.store = store
        self._prefix = partition_prefix(partition)
        self._known: dict[bytes, msgspec.Struct | None] = {}
        self._changed: dict[bytes, msgspec.Struct | None] = {}
        self._indexes: dict[bytes, dict[bytes, bytes | None]] = {kind: {} for kind in INDEX_KINDS}
        self.partition = partition
        self.meta = self._stored_meta = self._load_meta()
        self.anchor_trimmed = False
        """Whether the log no longer holds the anchor, so that it cannot be compared."""
        self.has_skipped = False
        """Whether the position passed control records since the last commit."""

    @property
    def position(self) -> Position:
        """The next offset to fold."""
        return Position(self.meta.position)

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
        """Write a row of a point kind."""
        self._changed[kind + key] = self._known[kind + key] = row

    def delete(self, kind: bytes, key: bytes) -> None:
        """Delete a row of a point kind."""
        self._changed[kind + key] = self._known[kind + key] = None

    def put_index(self, kind: bytes, key: bytes, value: bytes = b"") -> None:
        self._indexes[kind][key] = value

    def delete_index(self, kind: bytes, key: bytes) -> None:
        entries = self._indexes[kind]
        if kind in WRITTEN_ONCE_KINDS and entries.get(key) is not None:
            del entries[key]
        else:
            entries[key] = None

    def scan(self, kind: bytes, lower: bytes, upper: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` entries of an index kind with ``lower <= key < upper``, ascending, changes
        included."""
        overlay = {key: value for key, value in self._indexes[kind].items() if lower <= key < upper}
        fresh = iter(sorted((key, value) for key, value in overlay.items() if value is not None))
        prefix_bytes = len(self._prefix) + 1
        stored = self.store.scan(self._prefix + kind + lower, self._prefix + kind + upper)
        kept = ((key[prefix_bytes:], value) for key, value in stored if key[prefix_bytes:] not in overlay)
        found: list[tuple[bytes, bytes]] = []
        try:
            for entry in _merged(fresh, kept):
                found.append(entry)
                if len(found) == limit:
                    break
        finally:
            kept.close()
            close = getattr(stored, "close", None)
            if close is not None:
                close()
        return found

    def changes(self) -> dict[bytes, bytes | None]:
        """Return all changes since the last ``committed``, with the meta row, as the store takes them."""
        prefix = self._prefix
        batch: dict[bytes, bytes | None] = {
            prefix + key: None if row is None else _encode(row) for key, row in self._changed.items()
        }
        for kind, entries in self._indexes.items():
            if entries:
                start = prefix + kind
                for key, value in entries.items():
                    batch[start + key] = value
        batch[prefix + Kind.META] = _encode(self.meta)
        return batch

    def committed(self) -> None:
        """The store has taken ``changes``: forget them, keep the decoded rows."""
        known = self._known
        for key, row in self._changed.items():
            # An event ID is looked up again by a retry only, and what is gone hardly ever.
            if row is None or key[0] == _EVENT:
                del known[key]
        self._changed.clear()
        self._stored_meta = self.meta
        self.has_skipped = False
        if len(known) > KNOWN_ROWS_MAX:
            known.clear()
        for entries in self._indexes.values():
            entries.clear()

    def discard(self) -> None:
        """The store refused ``changes``: go back to what it has, without asking it, since it may refuse that too."""
        self._changed.clear()
        self._known.clear()
        self.has_skipped = False
        for entries in self._indexes.values():
            entries.clear()
        self.meta = self._stored_meta


_NO_PRINCIPAL = PrincipalRow()


def _merged(left: Iterator[tuple[bytes, bytes]], right: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield two ascending, disjoint iterators as one."""
    a, b = next(left, None), next(right, None)
    while a is not None or b is not None:
        if b is None or (a is not None and a[0] < b[0]):
            assert a is not None
            yield a
            a = next(left, None)
        else:
            yield b
            b = next(right, None)


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
