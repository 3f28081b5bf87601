"""The fold: (rows, record) → (row changes, verdict, lifecycle facts). The one place where anything is decided.

Pure in the sense that matters: it reads and writes only the ``Rows`` it is given and the record; no clock, no
randomness, no I/O, no setting of a replica. Every replica that has folded a partition to a position has the same
rows.

Rules (design §3 and §5), in the order in which they are applied:

 1. *Chain.* Every record, readable or not, extends the hash chain and becomes the anchor.
 2. *Quarantine.* Undecodable, newer than declared, before the partition is formatted, or of another partition's
    principal: a quarantine row, identical everywhere, and on.
 3. *Clock.* The partition clock is the highest plausible append time; a large step needs the record's own
    ``written_at``.
 4. *Queue.* Expiry, cascades and removals that are due are carried out, a bounded number (``lifecycle``).
 5. *Idempotence.* A remembered event ID is a duplicate of its first verdict. After ``not_after`` it is too late.
 6. *Erasure.* What began before its principal's erasure is refused.
 7. *Keys.* An idempotency key binds to the first accepted turn; refusals bind nothing.
 8. *Turns.* The first terminal of a started turn wins, within its lease.
 9. *Aliases.* A response alias is claimed once; a tombstone is not revived; an item keeps its first node.
10. *Conversations.* Not when deleted, not when locked, compare-and-set on request, one owner; the head is the last
    accepted turn that names it and can be continued.
11. *Parents.* A portable turn needs a living (or in grace) portable parent that can be continued; a native one may
    have an unknown parent, not a gone one.
12. *Contents and limits.* A stale content or what can never fit is refused before anything is written.
13. *Acceptance.* All rows of the record, then evictions.
"""

from __future__ import annotations

import hashlib
from typing import assert_never

from msgspec.structs import replace

from ledger import codec, fold_conversations, fold_turns
from ledger.alias import partition_of
from ledger.derived import forgets_event_at_ms
from ledger.errors import FatalError, UndecodableRecord
from ledger.event import (
    ClockTicked,
    ConversationCreated,
    ConversationDeleted,
    ConversationUpdated,
    Event,
    FormatRaised,
    ItemDeleted,
    ItemsAppended,
    LedgerFormatted,
    PolicyChanged,
    PrincipalErased,
    ResponseDeleted,
    TurnAbandoned,
    TurnCompleted,
    TurnStarted,
)
from ledger.fold_rules import ACCEPTED, Step, duplicate_of, refused
from ledger.lifecycle import QUEUE_EVERY_RECORDS, Lifecycle
from ledger.log import Record
from ledger.rows import EventRow, Kind, MetaRow, QuarantineRow, Task, ordered
from ledger.table import Rows
from ledger.verdict import Code, ErasureOrdered, Fact, Outcome

_WINDOW = "not_after lies further ahead than event_window_max_ms"


class UnsupportedUpgrade(FatalError):
    """The partition was raised to a format or to rules that this build does not know: its view stops here."""

    advice = "upgrade this process"


def fold(rows: Rows, record: Record) -> tuple[Outcome, list[Fact]]:
    """Fold one record; its changes are in ``rows`` afterwards. Raises ``UnsupportedUpgrade`` before changing
    anything."""
    assert record.offset >= rows.meta.position, "records are folded in order, each once"
    meta = rows.meta
    digest = _digest(meta.chain, record)
    try:
        event = codec.decode(record.value, meta.format)
    except UndecodableRecord as error:
        return _quarantine(rows, record, digest, error.reason), []
    _check_supported(meta, record, event)
    if not meta.ledger_id and not isinstance(event, LedgerFormatted):
        return _quarantine(rows, record, digest, "not_formatted"), []
    clock_ms = _advanced(meta, record.appended_at_ms, event.written_at_ms)
    step = _Judge(rows, record, clock_ms)
    if isinstance(event, ClockTicked) or record.offset % QUEUE_EVERY_RECORDS == 0:
        step.run_queue()
    outcome = step.judge(event)
    if outcome.code is Code.QUARANTINED:
        return _quarantine(rows, record, digest, outcome.reason, step), step.facts
    rows.meta = replace(
        rows.meta,
        position=record.offset + 1,
        clock_ms=clock_ms,
        chain=digest,
        chain_before=meta.chain,
        anchor_offset=record.offset,
        queue_due_ms=step.queue_due_ms,
    )
    return outcome, step.facts


def is_anchor(meta: MetaRow, record: Record) -> bool:
    """Return whether ``record`` is, byte for byte, the last one that was folded: else the log is not what it was."""
    return record.offset == meta.anchor_offset and _digest(meta.chain_before, record) == meta.chain


def _digest(chain: bytes, record: Record) -> bytes:
    key, value = record.key or b"", record.value or b""
    head = b"%d|%d|%d|%d|" % (record.offset, record.appended_at_ms, len(key), len(value))
    return hashlib.blake2b(chain + head + key + value, digest_size=32).digest()


def _advanced(meta: MetaRow, appended_at_ms: int, written_at_ms: int) -> int:
    """Return the partition clock after a record (rule 3)."""
    step_max_ms = meta.policy.clock_step_max_ms
    if appended_at_ms <= meta.clock_ms:
        return meta.clock_ms
    if appended_at_ms - meta.clock_ms <= step_max_ms or written_at_ms >= appended_at_ms - step_max_ms:
        return appended_at_ms
    return meta.clock_ms


def _check_supported(meta: MetaRow, record: Record, event: Event) -> None:
    """Refuse what sets a format or rules that this build does not know."""
    if not isinstance(event, FormatRaised | LedgerFormatted) or (isinstance(event, LedgerFormatted) and meta.ledger_id):
        return
    if event.format > codec.FORMAT or event.fold_version > codec.FOLD_VERSION:
        raise UnsupportedUpgrade(
            f"partition {record.partition} was raised to format {event.format}, rules {event.fold_version} at offset "
            f"{record.offset}; this build knows format {codec.FORMAT}, rules {codec.FOLD_VERSION}"
        )


def _quarantine(rows: Rows, record: Record, digest: bytes, reason: str, step: Lifecycle | None = None) -> Outcome:
    meta = rows.meta
    rows.put(Kind.QUARANTINE, ordered(record.offset), QuarantineRow(digest=_digest(b"", record)[:16], reason=reason))
    rows.meta = replace(
        meta,
        position=record.offset + 1,
        clock_ms=meta.clock_ms if step is None else step.clock_ms,
        queue_due_ms=meta.queue_due_ms if step is None else step.queue_due_ms,
        chain=digest,
        chain_before=meta.chain,
        anchor_offset=record.offset,
        quarantined=meta.quarantined + 1,
    )
    return Outcome(code=Code.QUARANTINED, reason=reason)


class _Judge(Step):
    """Step with the match over all events."""

    def judge(self, event: Event) -> Outcome:
        """Apply rules 5 to 13."""
        match event:
            case LedgerFormatted():
                return self._ledger_formatted(event)
            case FormatRaised():
                return self._format_raised(event)
            case PolicyChanged():
                return self._policy_changed(event)
            case ClockTicked():
                return ACCEPTED
            case _:
                pass
        meta, rows = self.rows.meta, self.rows
        if partition_of(event.principal, meta.partition_count) != self.record.partition:
            return refused(Code.QUARANTINED, "wrong_partition")
        first = rows.event(event.event_id)
        if first is not None and self.clock_ms <= first.until_ms:
            return duplicate_of(event.event_id, first)
        outcome = replace(self._judge_new(event), event_id=event.event_id)
        if outcome.code is not Code.TOO_LATE and outcome.reason != _WINDOW:
            # Remembered beyond its own window, so that it can still be abandoned by whoever waited that long.
            until_ms = event.not_after_ms + self.policy.event_window_max_ms
            row = EventRow(
                offset=self.offset,
                code=outcome.code,
                node=outcome.node,
                revision=outcome.revision,
                until_ms=until_ms,
            )
            rows.put(Kind.EVENT, event.event_id, row)
            self.wake(forgets_event_at_ms(row))
        return outcome

    def _judge_new(
        self,
        event: TurnStarted
        | TurnCompleted
        | TurnAbandoned
        | ResponseDeleted
        | ConversationCreated
        | ConversationUpdated
        | ConversationDeleted
        | ItemsAppended
        | ItemDeleted
        | PrincipalErased,
    ) -> Outcome:
        if self.clock_ms > event.not_after_ms:
            return refused(Code.TOO_LATE)
        latest_ms = max(self.clock_ms, self.record.appended_at_ms) + self.policy.event_window_max_ms
        if event.not_after_ms > latest_ms:
            return refused(Code.INVALID, _WINDOW)
        match event:
            case TurnCompleted():
                return fold_turns.turn_completed(self, event)
            case TurnStarted():
                return fold_turns.turn_started(self, event)
            case TurnAbandoned():
                return fold_turns.turn_abandoned(self, event)
            case ResponseDeleted():
                return fold_turns.response_deleted(self, event)
            case ConversationCreated():
                return fold_conversations.conversation_created(self, event)
            case ConversationUpdated():
                return fold_conversations.conversation_updated(self, event)
            case ConversationDeleted():
                return fold_conversations.conversation_deleted(self, event)
            case ItemsAppended():
                return fold_conversations.items_appended(self, event)
            case ItemDeleted():
                return fold_conversations.item_deleted(self, event)
            case PrincipalErased():
                return self._principal_erased(event)
            case _:
                assert_never(event)

    # Partition events

    def _ledger_formatted(self, event: LedgerFormatted) -> Outcome:
        rows, meta = self.rows, self.rows.meta
        if event.partition != self.record.partition:
            return refused(Code.QUARANTINED, "wrong_partition")
        if meta.ledger_id:
            same = (meta.ledger_id, meta.partition_count) == (event.ledger_id, event.partition_count)
            return refused(Code.DUPLICATE if same else Code.STALE_GENERATION)
        rows.meta = replace(
            meta,
            ledger_id=event.ledger_id,
            partition_count=event.partition_count,
            digest_version=event.digest_version,
            key_check=event.key_check,
            format=event.format,
            fold_version=event.fold_version,
            policy=event.policy,
        )
        return ACCEPTED

    def _format_raised(self, event: FormatRaised) -> Outcome:
        meta = self.rows.meta
        if event.generation <= meta.generation or event.format < meta.format or event.fold_version < meta.fold_version:
            return refused(Code.STALE_GENERATION)
        self.rows.meta = replace(
            meta, generation=event.generation, format=event.format, fold_version=event.fold_version
        )
        return ACCEPTED

    def _policy_changed(self, event: PolicyChanged) -> Outcome:
        meta = self.rows.meta
        if event.generation <= meta.generation:
            return refused(Code.STALE_GENERATION)
        self.rows.meta = replace(meta, generation=event.generation, policy=event.policy)
        return ACCEPTED

    def _principal_erased(self, event: PrincipalErased) -> Outcome:
        rows = self.rows
        principal = rows.principal(event.principal)
        rows.put(
            Kind.PRINCIPAL,
            event.principal,
            replace(principal, records=0, size_bytes=0, cut_offset=self.offset, cut_at_ms=self.clock_ms),
        )
        self.enqueue(0, Task.SWEEP_PRINCIPAL, event.principal)
        self.facts.append(ErasureOrdered(event.principal, self.offset))
        return ACCEPTED
