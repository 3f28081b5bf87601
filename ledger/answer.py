"""What callers get: ``Found``, ``Missing`` or ``Gone`` for a read, ``Verdict`` for a commit, ``Token`` to read after
it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from ledger.content import ContentRef
from ledger.errors import InvalidInput
from ledger.rows import Fate
from ledger.turn import Offset, Owner, Partition, Revision, SelectorKind, Status
from ledger.verdict import Code

_REASONS = {
    Fate.EXPIRED: "expired",
    Fate.DELETED: "deleted",
    Fate.EVICTED: "evicted",
    Fate.ERASED: "deleted",
    Fate.ABANDONED: "deleted",
}


def gone_reason(fate: Fate) -> str:
    """Return the word that callers see: ``expired``, ``deleted`` or ``evicted``."""
    return _REASONS[fate]


@dataclass(frozen=True, slots=True)
class Token:
    """Place of a committed event; a read that carries it sees that event."""

    partition: Partition
    offset: Offset

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """Read ``partition:offset``. Raises ``InvalidInput``."""
        partition, _, offset = text.partition(":")
        if not (partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit()):
            raise InvalidInput("token", "must be <partition>:<offset> as a commit returned it")
        if len(partition) > 5 or len(offset) > 18:
            raise InvalidInput("token", "is out of range")
        return cls(Partition(int(partition)), Offset(int(offset)))


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The ID is known and lives."""

    kind: SelectorKind
    owner: Owner
    """Who holds the state that a continuation needs."""
    status: Status
    node: Offset
    """Offset of the event that made it; of a conversation, of its head (0: empty)."""
    lineage: bytes
    created_at_ms: int
    expires_at_ms: int
    """By partition clock; moves with later turns where retention slides."""
    revision: Revision = Revision(0)
    """Conversations only."""
    record: bytes = b""
    """The router's record of a native turn."""
    response_id: str | None = None
    conversation_id: str | None = None
    turn_id_digest: bytes | None = None
    """Responses that were started: which turn."""
    metadata: ContentRef | None = None
    """Conversations only: where their metadata is."""
    history: History | None = None
    """When it was asked for."""


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """The ID never existed here, as far as anybody remembers; said only by a view that has caught up."""

    kind: SelectorKind


class Gone(msgspec.Struct, frozen=True, kw_only=True):
    """The ID existed: why it is gone, and since when."""

    kind: SelectorKind
    reason: str
    """``expired``, ``deleted`` or ``evicted``."""
    at_ms: int
    """By partition clock."""


Answer = Found | Missing | Gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One turn or item batch of a history."""

    node: Offset
    status: Status
    accepted_at_ms: int
    response_id: str | None
    """None for an item batch, or when the response itself is gone."""
    content: ContentRef | None = field(repr=False)
    input: list[Any] = field(default_factory=list, repr=False)
    output: list[Any] = field(default_factory=list, repr=False)
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)
    record: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A whole history, oldest entry first."""

    entries: tuple[Entry, ...]
    revision: Revision = Revision(0)
    """Of the conversation, when it was read by conversation."""

    def items(self) -> list[Any]:
        """Return all items in order: of each entry its input, then its output."""
        return [item for entry in self.entries for item in (*entry.input, *entry.output)]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the log decided about a commit."""

    code: Code
    token: Token
    """Where the deciding record is; reads that carry it see the effect."""
    first: Code | None = None
    """Of a duplicate: the first verdict."""
    revision: Revision = Revision(0)
    """Of the conversation, where one was named."""
    reason: str = ""
    """Which limit or contradiction."""
    response_id: str | None = None
    """Of a duplicate of an accepted turn: the response that answers the request."""

    @property
    def accepted(self) -> bool:
        """Whether the event has its effect: accepted now, or by the first attempt of the same event or key."""
        if self.code is Code.DUPLICATE:
            # A first verdict ``duplicate`` was by key: it was answered from an accepted turn then as well.
            return self.first in (Code.ACCEPTED, Code.DUPLICATE)
        return self.code is Code.ACCEPTED
