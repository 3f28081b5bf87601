"""A turn and its names, as a router hands them in: the start of turn → event → log → fold → view → query.

Scopes come from authentication and configuration, never from what a client controls. Everything here is validated once,
when it is made; code behind it does not check again.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, NewType

import msgspec

from ledger.errors import InvalidInput, TooLarge

Partition = NewType("Partition", int)
"""Number of a partition, from 0."""
Offset = NewType("Offset", int)
"""Place of a record in its partition, from 0."""
Position = NewType("Position", int)
"""The next offset to read."""
Revision = NewType("Revision", int)
"""Offset of the record that last changed a conversation; 0 means that it never existed (offset 0 is
``LedgerFormatted``)."""

SCOPE_BYTES_MAX = 256
"""Per part of a scope: they come from configuration, so a longer one is a mistake."""
ID_BYTES_MAX = 512
"""A provider's opaque ID; routers wrap several parts into one base64 word, 10 kB is an attack."""
RECORD_BYTES_MAX = 512
"""The router's own record of a native turn, which lives in the event's sealed part."""
ITEMS_MAX = 256
"""Item IDs of one turn: each is an alias row, written in one batch."""
TARGET_BYTES_MAX = 128
"""Name of a target in the router's configuration."""


class SelectorKind(enum.IntEnum):
    """What an opaque ID names."""

    RESPONSE = 1
    CONVERSATION = 2
    ITEM = 3


class Status(enum.IntEnum):
    """How a turn ended, or that it has not; only the first two can be continued."""

    COMPLETED = 1
    INCOMPLETE = 2
    FAILED = 3
    CANCELLED = 4
    IN_PROGRESS = 5
    QUEUED = 6

    @property
    def continuable(self) -> bool:
        return self in CONTINUABLE


CONTINUABLE = frozenset({Status.COMPLETED, Status.INCOMPLETE})
RUNNING = frozenset({Status.IN_PROGRESS, Status.QUEUED})
TERMINAL = frozenset(Status) - RUNNING


def checked_text(name: str, value: object, bytes_max: int, *, optional: bool = False) -> None:
    """Refuse ``value`` unless it is non-empty UTF-8 text of at most ``bytes_max`` bytes without NUL.

    Raises ``InvalidInput`` or ``TooLarge`` naming the field; the value itself is never repeated.
    """
    if value is None and optional:
        return
    if not isinstance(value, str):
        raise InvalidInput(name, f"must be a string, not {type(value).__name__}")
    if not value:
        raise InvalidInput(name, "must not be empty")
    if "\0" in value:
        raise InvalidInput(name, "must not contain NUL")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput(name, "must be valid Unicode (it has a lone surrogate)") from None
    if size > bytes_max:
        raise TooLarge(name, f"has {size} bytes; at most {bytes_max} are allowed")


def checked_int(name: str, value: object, low: int, high: int, *, optional: bool = False) -> None:
    """Refuse ``value`` unless it is an integer in ``low … high``; raises ``InvalidInput`` naming the field."""
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(name, f"must be an integer, not {type(value).__name__}")
    if not low <= value <= high:
        raise InvalidInput(name, f"must be from {low} to {high}")


INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The trusted part of every key; no principal, no scope."""

    namespace: str
    """Stable across replicas of one deployment."""
    route: str
    """A state domain named in the configuration (one per gateway by default), not the model."""
    principal: str
    """Who owns everything under this scope; from authentication."""

    def __post_init__(self) -> None:
        checked_text("namespace", self.namespace, SCOPE_BYTES_MAX)
        checked_text("route", self.route, SCOPE_BYTES_MAX)
        checked_text("principal", self.principal, SCOPE_BYTES_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """One opaque ID of a client, within a scope."""

    scope: Scope
    kind: SelectorKind
    id: str

    def __post_init__(self) -> None:
        checked_text(f"{self.kind.name.lower()}_id", self.id, ID_BYTES_MAX)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds the state that a continuation needs. Checked where a caller hands it in (``check_owner``)."""

    native: bool
    """True: only ``target`` can continue. False: the ledger holds the items, ``target`` is only a hint."""
    target: str
    """The target's name in the router's configuration."""
    digest: bytes = b""
    """Digest of the target's endpoint and account, never the secret; up to 32 bytes. A change of it is a change of
    owner."""


def check_owner(owner: Owner) -> None:
    """Refuse an owner with an invalid target name or a digest of more than 32 bytes."""
    if not isinstance(owner.native, bool):
        raise InvalidInput("owner.native", "must be true or false")
    checked_text("owner.target", owner.target, TARGET_BYTES_MAX)
    if not isinstance(owner.digest, bytes):
        raise InvalidInput("owner.digest", "must be bytes")
    if len(owner.digest) > 32:
        raise TooLarge("owner.digest", "has more than 32 bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a portable turn adds; JSON values only. Stored outside the event log, erasable."""

    input: list[Any] = field(default_factory=list)
    """Canonical input items of this turn alone."""
    output: list[Any] = field(default_factory=list)
    """Canonical output items of this turn."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """The client's metadata."""
    record: Any = None
    """The router's opaque record of the turn: any JSON value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One completed request and answer."""

    scope: Scope
    event_id: str
    """The router's name for this append, kept over its retries."""
    response_id: str
    """The provider's or the gateway's ID of the answer."""
    owner: Owner
    status: Status = Status.COMPLETED
    conversation_id: str | None = None
    """Excludes ``previous_response_id``: one parent chain."""
    previous_response_id: str | None = None
    item_ids: tuple[str, ...] = ()
    """Items a client may later name by reference."""
    content: Content | None = None
    """Portable turns only: their canonical items."""
    record: bytes = b""
    """The router's record of a native turn, in the sealed part of the event."""
    begun_at_ms: int
    """Wall clock of the router when the request arrived, milliseconds since 1970."""
    expected_revision: Revision | None = None
    """Compare-and-set on the conversation."""
    read_revision: Revision | None = None
    """The revision the router had read; recorded for audit, never compared."""
    idempotency_key: str | None = None
    """The client's key for the request."""
    request_digest: bytes = b""
    """Digest of the client's request, up to 32 bytes; needed with ``idempotency_key``."""
    turn_id: str | None = None
    """Set when a ``start`` preceded this turn."""

    def __post_init__(self) -> None:
        checked_text("event_id", self.event_id, ID_BYTES_MAX)
        checked_text("response_id", self.response_id, ID_BYTES_MAX)
        checked_text("conversation_id", self.conversation_id, ID_BYTES_MAX, optional=True)
        checked_text("previous_response_id", self.previous_response_id, ID_BYTES_MAX, optional=True)
        checked_text("idempotency_key", self.idempotency_key, ID_BYTES_MAX, optional=True)
        checked_text("turn_id", self.turn_id, ID_BYTES_MAX, optional=True)
        checked_int("begun_at_ms", self.begun_at_ms, 0, INT64_MAX)
        checked_int("expected_revision", self.expected_revision, 0, INT64_MAX, optional=True)
        checked_int("read_revision", self.read_revision, 0, INT64_MAX, optional=True)
        check_item_ids(self.item_ids)
        check_owner(self.owner)
        if self.conversation_id is not None and self.previous_response_id is not None:
            raise InvalidInput("previous_response_id", "cannot be given together with conversation_id")
        if self.conversation_id is None and self.expected_revision is not None:
            raise InvalidInput("expected_revision", "needs a conversation_id")
        if self.status not in TERMINAL:
            raise InvalidInput("status", "of a turn must be completed, incomplete, failed or cancelled")
        if self.owner.native and self.content is not None:
            raise InvalidInput("content", "is for portable turns; the state of a native turn lives at its owner only")
        if not self.owner.native and self.content is None and self.status.continuable:
            raise InvalidInput("content", "is required for a portable turn that can be continued")
        check_request_digest(self.idempotency_key, self.request_digest)
        check_record(self.record)


def check_record(record: bytes) -> None:
    """Refuse a router's record that does not fit the sealed part."""
    if len(record) > RECORD_BYTES_MAX:
        raise TooLarge("record", f"has {len(record)} bytes; at most {RECORD_BYTES_MAX} are allowed")


def check_item_ids(item_ids: tuple[str, ...]) -> None:
    """Refuse more than ``ITEMS_MAX`` item IDs, an invalid one or a repeated one."""
    if len(item_ids) > ITEMS_MAX:
        raise TooLarge("item_ids", f"has {len(item_ids)} entries; at most {ITEMS_MAX} are allowed")
    for index, item_id in enumerate(item_ids):
        checked_text(f"item_ids[{index}]", item_id, ID_BYTES_MAX)
    if len(set(item_ids)) != len(item_ids):
        raise InvalidInput("item_ids", "names one item twice")


def check_request_digest(idempotency_key: str | None, request_digest: bytes) -> None:
    """A key without a digest of its request could answer one request with another's turn."""
    if len(request_digest) > 32:
        raise TooLarge("request_digest", "has more than 32 bytes")
    if (idempotency_key is None) != (not request_digest):
        raise InvalidInput("request_digest", "and idempotency_key must be given together")
