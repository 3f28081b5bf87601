"""Rows of one partition: what the fold writes and the query reads.

A row is one msgpack array under ``partition (2 bytes, big endian) + kind (1) + key``; ``table`` reads and writes them.
Byte-identical rows on every replica (design rule 2) are compared over ``FOLDED_KINDS``.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec

from ledger.content import ContentRef
from ledger.event import OwnerRef
from ledger.policy import Policy


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


class Task:
    """Second part of a queue key: what is due."""

    FORGET_EVENT = b"e"
    FORGET_KEY = b"k"
    FORGET_TURN = b"t"
    FORGET_TOMBSTONE = b"d"
    END_RESPONSE = b"r"
    END_LINEAGE = b"l"
    RELEASE_RESPONSE = b"h"
    RELEASE_HEAD = b"H"
    REMOVE_NODE = b"n"
    SWEEP_LINEAGE = b"s"
    SWEEP_PRINCIPAL = b"S"


class LocalKind:
    """Third byte of a key that only this process's database has: not folded, so not compared between replicas, nor in
    the tables.

    All lie above the kinds of ``Kind`` and below ``tables.MARKER_KEY``. But for the outbox one row of a partition each.
    """

    RELEASED = b"\xf9"
    """``holding``, in views and copies of contents; empty: the partition's rows are deleted here, and their bytes may
    still be on the disk."""
    PURGED = b"\xfa"
    """``purged``, in every database: position (8), up to where what was erased has left the disk."""
    SWEPT = b"\xfb"
    """``processors.orphans``, in a worker's rows: position (8), up to where the topic ``content`` was looked through.
    Lost, it is looked through again, which is harmless."""
    TABLE_STATE = b"\xfc"
    """``tables.TableCopy``: how far the rows are a copy of the table, as ``TableState``."""
    OUTBOX = b"\xfd"
    """``outbox``, in the view of a replica: event ID (16) → an event that must yet reach the log."""
    LOG_ID = b"\xfe"
    """``replica``, in its view: identity of the log that the rows were folded from, as text."""


ordered = struct.Struct(">Q").pack
"""Return 8 bytes of a key that sort as the non-negative number does (a C function: it runs several times per record).
Raises ``struct.error`` for any other number."""

INDEX_KINDS = frozenset({Kind.QUEUE, Kind.ACTIVITY, Kind.MEMBER, Kind.LIVING, Kind.TOMBSTONE})
INDEX_GROUP_BYTES = {kind: 0 if kind == Kind.QUEUE else 20 for kind in INDEX_KINDS}
"""Entries of one principal or lineage, whose digest their keys begin with, are scanned together; of the queue all."""


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
    end_at_ms: int = 0
    """When the queue ends it: ``expires_at_ms`` and the grace that was the policy's then. 0: its lineage does."""


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
    """The conversation and sliding responses below this offset expired at ``lapsed_at_ms``, before the lineage began
    anew."""
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
