"""The parameters of requests without a body. IDs are opaque and may contain anything, so they are never in a path."""

from __future__ import annotations

import msgspec

from ledger.bodies import Id, KindWord, Natural, ScopePart


class _Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    principal: ScopePart | None = None
    route: ScopePart | None = None


class NoQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing."""


class LookupQuery(_Query, frozen=True, kw_only=True):
    """One opaque ID."""

    kind: KindWord
    id: Id
    token: str | None = None
    """As a commit returned it: the answer is not older."""
    strong: bool = False
    """Pass the barrier whatever the answer."""


class HistoryQuery(_Query, frozen=True, kw_only=True):
    """One opaque ID whose history is wanted."""

    kind: KindWord
    id: Id
    token: str | None = None


class ConversationQuery(_Query, frozen=True, kw_only=True):
    """One conversation."""

    id: Id


class DeleteQuery(_Query, frozen=True, kw_only=True):
    """One response to delete."""

    id: Id
    event_id: Id | None = None


class DeleteConversationQuery(_Query, frozen=True, kw_only=True):
    """One conversation to delete."""

    id: Id
    cascade: bool = False
    """Delete its responses too."""
    event_id: Id | None = None


class DeleteItemQuery(_Query, frozen=True, kw_only=True):
    """One item of a conversation to delete."""

    id: Id
    item_id: Id
    event_id: Id | None = None


class ReplayQuery(_Query, frozen=True, kw_only=True):
    """Which events to show; none given: all that the token allows."""

    kind: KindWord | None = None
    """With ``id``."""
    id: Id | None = None
    """Events that name it, or whose turn lies in its lineage."""
    namespace: ScopePart | None = None
    """Only the token's own."""
    until_offset: Natural | None = None
    """Last offset shown of each partition."""
    until_ms: Natural | None = None
    """Append time after which nothing is shown."""
