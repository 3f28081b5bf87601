"""Fates: whether an alias lives, and why not, by the partition clock.

Verdicts and answers compare times here, never the progress of the queue that carries a fate out (``lifecycle``).
"""

from __future__ import annotations

from typing import NamedTuple

from ledger.policy import Policy
from ledger.rows import ConversationRow, Fate, ItemRow, LineageRow, PrincipalRow, ResponseRow
from ledger.table import Rows
from ledger.turn import CONTINUABLE, RUNNING

NEVER_MS = 2**63 - 1


class Gone(NamedTuple):
    """That an alias is gone: why, since when, and until when that is remembered (partition clock, ms)."""

    fate: Fate
    at_ms: int
    forget_at_ms: int


def response_fate(
    row: ResponseRow, lineage: LineageRow | None, principal: PrincipalRow, clock_ms: int, policy: Policy
) -> Gone | None:
    """Return why the response is gone, or None while it lives."""
    if row.fate:
        return Gone(Fate(row.fate), row.gone_at_ms, row.forget_at_ms)
    if row.status in RUNNING:
        ends_at_ms, gone = row.lease_until_ms + policy.event_window_max_ms, None
        if clock_ms >= ends_at_ms:
            gone = Gone(Fate.EXPIRED, row.lease_until_ms, row.lease_until_ms + policy.tombstone_ttl_ms)
    else:
        gone = None
        if lineage is not None:
            expires_at_ms = row.expires_at_ms or _lasts_until_ms(row.node, lineage)
            gone = _cut_or_expired(row.node, expires_at_ms, lineage, clock_ms, policy)
        ends_at_ms = NEVER_MS if gone is None else gone.at_ms
    return _erased_before(row.node, ends_at_ms, principal, policy) or gone


def conversation_fate(
    row: ConversationRow, lineage: LineageRow | None, principal: PrincipalRow, clock_ms: int, policy: Policy
) -> Gone | None:
    """Return why the conversation is gone, or None while it lives."""
    if row.fate:
        return Gone(Fate(row.fate), row.gone_at_ms, row.forget_at_ms)
    gone = None
    if lineage is not None:
        expires_at_ms = _lasts_until_ms(row.created_offset, lineage)
        gone = _cut_or_expired(row.created_offset, expires_at_ms, lineage, clock_ms, policy)
    ends_at_ms = NEVER_MS if gone is None else gone.at_ms
    return _erased_before(row.created_offset, ends_at_ms, principal, policy) or gone


def _lasts_until_ms(offset: int, lineage: LineageRow) -> int:
    """Return when sliding retention ends what was written at ``offset``: a lineage begun anew does not revive it."""
    return lineage.lapsed_at_ms if offset < lineage.lapsed_offset else lineage.expires_at_ms


def _erased_before(offset: int, ends_at_ms: int, principal: PrincipalRow, policy: Policy) -> Gone | None:
    """Return an erasure as the fate if it came before the end that was due anyway: the first end is the fate."""
    if offset >= principal.cut_offset or principal.cut_at_ms >= ends_at_ms:
        return None
    return Gone(Fate.ERASED, principal.cut_at_ms, principal.cut_at_ms + policy.tombstone_ttl_ms)


def _cut_or_expired(offset: int, expires_at_ms: int, lineage: LineageRow, clock_ms: int, policy: Policy) -> Gone | None:
    if offset < lineage.cut_offset and lineage.cut_at_ms < expires_at_ms:
        return Gone(Fate(lineage.cut_fate), lineage.cut_at_ms, lineage.cut_at_ms + policy.tombstone_ttl_ms)
    if clock_ms >= expires_at_ms:
        return Gone(Fate.EXPIRED, expires_at_ms, expires_at_ms + policy.tombstone_ttl_ms)
    return None


def item_fate(rows: Rows, row: ItemRow, clock_ms: int) -> Gone | None:
    """Return why an item is gone, or None while its response or the conversation that it is a part of lives."""
    if row.fate:
        return Gone(Fate(row.fate), row.gone_at_ms, row.forget_at_ms)
    node = rows.node(row.node)
    if node is None:
        return None
    policy = rows.meta.policy
    lineage, principal = rows.lineage(node.lineage), rows.principal(node.principal)
    last = Gone(Fate.EXPIRED, 0, 0)
    response = None if node.response is None else rows.response(node.response)
    if response is not None and response.node == row.node:
        gone = response_fate(response, lineage, principal, clock_ms, policy)
        if gone is None:
            return None
        last = gone
    conversation = None if node.conversation is None else rows.conversation(node.conversation)
    is_part = conversation is not None and conversation.created_offset <= row.node and node.status in CONTINUABLE
    if conversation is not None and is_part:
        gone = conversation_fate(conversation, lineage, principal, clock_ms, policy)
        if gone is None:
            return None
        last = max(last, gone, key=lambda fate: fate.forget_at_ms)
    return last
