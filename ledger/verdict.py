"""Verdicts: what the fold decided about one event. Values, not exceptions."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from ledger.content import ContentRef


class Code(IntEnum):
    """The decision; numbers are stored in rows and never reused."""

    ACCEPTED = 0
    DUPLICATE = 1
    """Same event ID, or same idempotency key and request: ``first`` is what was decided then."""
    RESPONSE_EXISTS = 2
    """The response ID was claimed before, by the same owner."""
    OWNER_CONFLICT = 3
    """The ID belongs to another owner."""
    REVISION_CONFLICT = 4
    """The conversation is not at ``expected_revision``."""
    IDEMPOTENCY_CONFLICT = 5
    """The key belongs to another request."""
    KEY_IN_PROGRESS = 6
    """Another attempt with this key is running: wait and ask again."""
    TOO_LATE = 7
    """It arrived after its ``not_after``."""
    ALIAS_GONE = 8
    """The ID was used and is gone; a tombstone is not revived."""
    PARENT_UNKNOWN = 9
    PARENT_NOT_PORTABLE = 10
    """The parent's state lives at its owner only."""
    PARENT_GONE = 11
    PARENT_UNFINISHED = 12
    """The parent failed, was cancelled, or has not ended."""
    CONVERSATION_UNKNOWN = 13
    CONVERSATION_GONE = 14
    CONVERSATION_LOCKED = 15
    """An exclusive turn is running on it."""
    LEASE_EXPIRED = 16
    """The started turn counts as failed already."""
    TURN_UNKNOWN = 17
    """No such turn was started, or for another response."""
    TURN_ENDED = 18
    """The turn has its terminal already."""
    ABANDONED = 19
    """It was given up before."""
    KEPT = 20
    """An abandonment came after something was built on the turn: the turn stays."""
    LIMIT_EXCEEDED = 21
    """It can never fit; ``reason`` names the policy field."""
    PRINCIPAL_ERASED = 22
    """It began before its principal was erased."""
    CONTENT_STALE = 23
    """Its content is older than ``content_grace_ms`` and may have been swept: write it again."""
    RESPONSE_UNKNOWN = 24
    ITEM_UNKNOWN = 25
    ITEM_CONFLICT = 26
    """The content changed meanwhile: read it again and retry."""
    STALE_GENERATION = 27
    """An admin command with the same or a higher generation came first."""
    INVALID = 28
    """Its fields contradict each other; ``reason`` says which."""
    QUARANTINED = 29
    """No build may give the record a meaning; ``reason`` says why."""

    @property
    def word(self) -> str:
        """The code as the API spells it."""
        return self.name.lower()


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The fold's decision about one record."""

    code: Code
    event_id: bytes | None = None
    """None where the record has none."""
    reason: str = ""
    """For ``invalid``, ``limit_exceeded`` and ``quarantined``."""
    first: Code | None = None
    """Of a duplicate: the first verdict."""
    first_offset: int = -1
    """Of a duplicate: where the first was folded."""
    node: int = 0
    """The node that answers; 0: none."""
    revision: int = 0
    """Of the conversation afterwards (or as found, for a conflict); 0: not applicable."""


class ContentUnneeded(msgspec.Struct, frozen=True):
    """Lifecycle fact: no node can ever refer to this content again; erasing it late or twice is harmless."""

    content: ContentRef


class ErasureOrdered(msgspec.Struct, frozen=True):
    """Lifecycle fact: a principal was erased at ``offset``."""

    principal: bytes
    offset: int


Fact = ContentUnneeded | ErasureOrdered
