"""Policy: the limits and lifetimes that the fold applies. It travels in the log, never in a replica's settings.

``PolicyChanged`` carries a whole policy, so a verdict is a function of the log alone. Times are milliseconds of the
partition clock. Every bound has its reason beside it; ``check`` refuses combinations that would contradict a guarantee.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ledger.errors import InvalidInput

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

Span = Annotated[int, msgspec.Meta(ge=0, le=100 * 366 * DAY_MS)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Policy(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """Lifetimes and limits of one ledger; the same in every partition once a change has reached all of them."""

    active_ttl_ms: Span = 30 * DAY_MS
    """How long a response lives. 30 days is what clients know from the Responses API."""
    sliding: bool = False
    """False: from the turn's own append. True: from the last accepted turn of the lineage; a read never refreshes."""
    tombstone_ttl_ms: Span = 30 * DAY_MS
    """How long "gone" stays different from "never existed"."""
    tombstones_per_principal_max: Count = 100_000
    """Above it the principal's oldest tombstones are forgotten early."""
    commit_grace_ms: Span = 15 * MINUTE_MS
    """A turn that began while its parent lived may still be committed this long after the parent went."""
    idempotency_ttl_ms: Span = DAY_MS
    """How long a client's key answers with the first turn."""
    lineage_turns_max: Count = 10_000
    """Turns and item batches kept of one lineage; one more is refused."""
    lineage_bytes_max: Count = 512 * 1024 * 1024
    """Content bytes kept of one lineage; more is refused."""
    principal_records_max: Count = 1_000_000
    """Living responses of one principal; above it its oldest are evicted."""
    principal_bytes_max: Count = 16 * 1024 * 1024 * 1024
    """Content bytes of one principal; above it its least recently active lineages are evicted whole."""
    content_grace_ms: Span = HOUR_MS
    """A content older than this may have been swept as an orphan, so an event that refers to it is refused."""
    clock_step_max_ms: Span = 5 * MINUTE_MS
    """A larger forward step of the append time counts only if the record's own ``written_at`` agrees."""
    event_window_max_ms: Span = DAY_MS
    """``not_after`` may lie at most this far ahead, so that the rows that remember event IDs stay bounded."""
    lease_max_ms: Span = HOUR_MS
    """Longest lease of a started turn; a replica that dies blocks nobody for longer."""


def check(policy: Policy) -> None:
    """Raise ``InvalidInput`` naming the field when the policy contradicts itself."""
    if policy.active_ttl_ms < SECOND_MS:
        raise InvalidInput("active_ttl_ms", "must be at least 1000")
    if policy.tombstone_ttl_ms < policy.commit_grace_ms:
        raise InvalidInput(
            "tombstone_ttl_ms", "must not be below commit_grace_ms: a parent in grace needs its tombstone"
        )
    if policy.event_window_max_ms < MINUTE_MS:
        raise InvalidInput("event_window_max_ms", "must be at least 60000: commits need time to be retried")
    if policy.content_grace_ms < MINUTE_MS:
        raise InvalidInput("content_grace_ms", "must be at least 60000: content is written before its event")
    for name in ("lineage_turns_max", "principal_records_max"):
        if getattr(policy, name) < 1:
            raise InvalidInput(name, "must be at least 1")
