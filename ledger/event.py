"""Events: immutable facts in the past tense, as they are written to the log.

Each is one msgpack array on the wire: a tag, then the fields in the order written here (``docs/event-format.md`` has
the table for producers in other languages, ``codec`` the strict decoding). ``msgspec.Struct`` stands where the house
style says dataclass: frozen, slotted and keyword-only as well, and validated while it is decoded, at a twentieth of
the cost.

Digests come from ``alias``. A header holds no raw ID and no content; what a person or a duplicate's answer needs is
in ``sealed`` (at most 1 KiB).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ledger.content import ContentRef, Digest20, Id16, Natural
from ledger.policy import Policy
from ledger.turn import ITEMS_MAX, TARGET_BYTES_MAX

SEALED_BYTES_MAX = 1024
"""Two raw IDs and the router's small record; anything larger is content."""

Sealed = Annotated[bytes, msgspec.Meta(max_length=SEALED_BYTES_MAX)]
ShortDigest = Annotated[bytes, msgspec.Meta(max_length=32)]
Items = Annotated[tuple[Digest20, ...], msgspec.Meta(max_length=ITEMS_MAX)]
TargetName = Annotated[str, msgspec.Meta(max_length=TARGET_BYTES_MAX)]


class _Wire(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """What all structs of the wire share: an array of exactly the declared fields."""


class OwnerRef(_Wire, frozen=True, kw_only=True):
    """An owner as the log has it."""

    native: bool
    """True: only the target can continue."""
    target: TargetName
    """Name in the router's configuration; for a portable turn the target that served it (a hint)."""
    digest: ShortDigest
    """Of the target's endpoint and account, so that a change under the same name is seen."""


class LedgerFormatted(_Wire, frozen=True, kw_only=True, tag=1):
    """First record of every partition: which ledger this is."""

    ledger_id: Id16
    """Random; partition 0's is canonical."""
    partition: Annotated[int, msgspec.Meta(ge=0, lt=65536)]
    """The partition this was written for."""
    partition_count: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    """Fixed for the ledger's life: principals are placed by it."""
    digest_version: Natural
    """``alias.DIGEST_VERSION`` of the writer."""
    key_check: Id16
    """Check value of the alias key."""
    format: Natural
    """Format in which writers encode from here on."""
    fold_version: Natural
    """Rules by which the following records are judged."""
    written_at_ms: Natural
    """Wall clock of the writer."""
    policy: Policy
    """The first policy."""


class FormatRaised(_Wire, frozen=True, kw_only=True, tag=2):
    """Later records may be in a newer format and are judged by newer rules."""

    generation: Natural
    """Number of the admin command, so that it can be run again to finish."""
    written_at_ms: Natural
    format: Natural
    fold_version: Natural


class PolicyChanged(_Wire, frozen=True, kw_only=True, tag=3):
    """The policy from here on."""

    generation: Natural
    """Of two changes the higher generation wins, so that an interrupted command can be run again."""
    written_at_ms: Natural
    policy: Policy


class ClockTicked(_Wire, frozen=True, kw_only=True, tag=4):
    """Time passed in an idle partition."""

    written_at_ms: Natural
    """Must agree with the append time for a large step to count."""


class ScopedEvent(_Wire, frozen=True, kw_only=True):
    """What every event of a principal carries."""

    event_id: Id16
    """The router's name for this append: the same again is a duplicate."""
    principal: Digest20
    """Of namespace and principal; decides the partition."""
    written_at_ms: Natural
    """Wall clock of the writer when it appended."""
    not_after_ms: Natural
    """By partition clock: a later arrival is refused, so event IDs need to be remembered only until then."""


class TurnStarted(ScopedEvent, frozen=True, kw_only=True, tag=5):
    """A turn that others must see before it ends: background, with an idempotency key, or exclusive in its
    conversation."""

    begun_at_ms: Natural
    """When the request arrived; compared with erasures."""
    turn_id: Id16
    """Names the turn over start, renewals and its terminal."""
    lease_ms: Natural
    """How long, by partition clock from this record on, the turn is alive without a renewal."""
    status: Annotated[int, msgspec.Meta(ge=5, le=6)]
    """In progress or queued."""
    response: Digest20 | None
    """Alias that the turn will claim, so that any replica can be asked about it."""
    conversation: Digest20 | None
    """Conversation that it will extend."""
    exclusive: bool
    """While leased, no other turn may extend the conversation."""
    idempotency: Digest20 | None
    """Digest of the client's key."""
    request_digest: ShortDigest
    """Of the client's request; empty without a key."""
    sealed: Sealed


class TurnCompleted(ScopedEvent, frozen=True, kw_only=True, tag=6):
    """A turn ended: completed, incomplete, failed or cancelled."""

    begun_at_ms: Natural
    """When the request arrived; compared with erasures."""
    status: Annotated[int, msgspec.Meta(ge=1, le=4)]
    """``turn.Status``."""
    response: Digest20
    """Alias that the turn claims."""
    parent: Digest20 | None
    """Alias of the response that it continues."""
    conversation: Digest20 | None
    """Conversation that it extends; excludes ``parent``."""
    items: Items
    """Item aliases that it claims."""
    owner: OwnerRef
    """Who can continue it."""
    content: ContentRef | None
    """Of a portable turn: its items."""
    expected_revision: Natural | None
    """Compare-and-set on the conversation; 0: it must not exist."""
    read_revision: Natural | None
    """What the router had read; for audit."""
    idempotency: Digest20 | None
    """Digest of the client's key."""
    request_digest: ShortDigest
    """Of the client's request; empty without a key."""
    turn_id: Id16 | None
    """Of the ``TurnStarted`` before it."""
    sealed: Sealed


class TurnAbandoned(ScopedEvent, frozen=True, kw_only=True, tag=7):
    """The router gave a commit up and told its client so."""

    abandoned: Id16
    """Event ID of the commit."""


class ResponseDeleted(ScopedEvent, frozen=True, kw_only=True, tag=8):
    """A client deleted a response."""

    response: Digest20


class ConversationCreated(ScopedEvent, frozen=True, kw_only=True, tag=9):
    """A conversation was made outside a turn, perhaps with first items."""

    begun_at_ms: Natural
    conversation: Digest20
    owner: OwnerRef
    """The ledger, or the target at which it was made."""
    metadata: ContentRef | None
    items: Items
    content: ContentRef | None
    """The first items."""
    sealed: Sealed


class ConversationUpdated(ScopedEvent, frozen=True, kw_only=True, tag=10):
    """The metadata of a conversation was replaced."""

    begun_at_ms: Natural
    conversation: Digest20
    metadata: ContentRef | None
    expected_revision: Natural | None


class ConversationDeleted(ScopedEvent, frozen=True, kw_only=True, tag=11):
    """A conversation was deleted; with ``cascade`` its whole lineage."""

    conversation: Digest20
    cascade: bool


class ItemsAppended(ScopedEvent, frozen=True, kw_only=True, tag=12):
    """Items were added to a conversation outside a turn."""

    begun_at_ms: Natural
    conversation: Digest20
    items: Items
    content: ContentRef
    expected_revision: Natural | None


class ItemDeleted(ScopedEvent, frozen=True, kw_only=True, tag=13):
    """One item was deleted from a conversation: its node's content was written anew without it."""

    conversation: Digest20
    item: Digest20
    old_content: Id16
    """ID of the content that held the item; no longer current: conflict, retry."""
    content: ContentRef
    """The content without the item."""


class PrincipalErased(ScopedEvent, frozen=True, kw_only=True, tag=14):
    """Everything of the principal before this is gone."""


PartitionEvent = LedgerFormatted | FormatRaised | PolicyChanged | ClockTicked
PrincipalEvent = (
    TurnStarted
    | TurnCompleted
    | TurnAbandoned
    | ResponseDeleted
    | ConversationCreated
    | ConversationUpdated
    | ConversationDeleted
    | ItemsAppended
    | ItemDeleted
    | PrincipalErased
)
Event = PartitionEvent | PrincipalEvent
