"""What several events are judged by: keys, claims, conversations, parents, sizes; and the rows of an accepted entry.

The rule numbers are those of ``fold``. A judgement returns a refusal, or what the handler goes on with.
"""

from __future__ import annotations

from msgspec.structs import replace

from ledger.content import ContentRef
from ledger.event import OwnerRef
from ledger.fates import item_fate
from ledger.lifecycle import Lifecycle
from ledger.log import Record
from ledger.rows import (
    ConversationRow,
    EventRow,
    Fate,
    ItemRow,
    KeyRow,
    Kind,
    LineageRow,
    NodeRow,
    ResponseRow,
    Task,
    ordered,
)
from ledger.table import Rows
from ledger.turn import CONTINUABLE, RUNNING, Status
from ledger.verdict import Code, Outcome

ACCEPTED = Outcome(code=Code.ACCEPTED)


def refused(code: Code, reason: str = "") -> Outcome:
    """Return a refusal."""
    return Outcome(code=code, reason=reason)


def duplicate_of(event_digest: bytes, row: EventRow) -> Outcome:
    """Return the outcome of an event ID that is remembered."""
    return Outcome(
        code=Code.DUPLICATE,
        event_id=event_digest,
        first=Code(row.code),
        first_offset=row.offset,
        node=row.node,
        revision=row.revision,
    )


def same_owner(left: OwnerRef, right: OwnerRef) -> bool:
    """Portable turns share one owner, the ledger; their targets are hints."""
    if left.native != right.native:
        return False
    return not left.native or (left.target == right.target and left.digest == right.digest)


class Step(Lifecycle):
    """The judgement of one record."""

    def __init__(self, rows: Rows, record: Record, clock_ms: int) -> None:
        super().__init__(rows, clock_ms)
        self.record = record
        self.offset: int = record.offset

    def lineage_of(self, digest: bytes, principal: bytes) -> LineageRow:
        """Return the lineage's row, or a new one. What was erased of it is cut first, before anything is added."""
        return self.cut_erased(digest) or LineageRow(principal=principal)

    def judge_key(self, key: bytes, request_digest: bytes, turn_id: bytes | None, cut_offset: int) -> Outcome | None:
        """Rule 7."""
        row = self.rows.key(key)
        if row is None or self.clock_ms >= row.until_ms or row.offset < cut_offset:
            return None
        if not row.node and row.turn_id == turn_id:
            return None
        if row.request_digest != request_digest:
            return refused(Code.IDEMPOTENCY_CONFLICT)
        if not row.node:
            return refused(Code.KEY_IN_PROGRESS)
        self.rows.put(Kind.KEY, key, replace(row, answered=True))
        return Outcome(code=Code.DUPLICATE, first=Code.ACCEPTED, first_offset=row.offset, node=row.node)

    def bind_key(self, key: bytes, request_digest: bytes, turn_id: bytes | None) -> None:
        until_ms = self.clock_ms + self.policy.idempotency_ttl_ms
        row = KeyRow(
            offset=self.offset,
            node=self.offset,
            request_digest=request_digest,
            turn_id=turn_id,
            until_ms=until_ms,
            answered=False,
        )
        self.rows.put(Kind.KEY, key, row)
        self.wake(until_ms)

    def release_key(self, key: bytes, turn_id: bytes) -> None:
        """A turn ended without its key: another attempt may run at once."""
        row = self.rows.key(key)
        if row is not None and not row.node and row.turn_id == turn_id:
            self.rows.delete(Kind.KEY, key)

    def judge_claim(self, alias: bytes, owner: OwnerRef | None, turn_id: bytes | None) -> Outcome | None:
        """Rule 9 for a response; ``owner`` is None for a start, which cannot know it yet."""
        row = self.rows.response(alias)
        if row is None:
            return None
        gone = self.response_gone(row)
        if gone is not None:
            if not self.is_forgotten(gone):
                return refused(Code.ALIAS_GONE)
            if not row.fate:
                self.end_response(alias, row, gone.fate, gone.at_ms)
            self.forget_tombstone(Kind.RESPONSE, alias)
            return None
        if row.status in RUNNING and row.turn_id == turn_id:
            return None
        if owner is None or row.status in RUNNING or same_owner(row.owner, owner):
            return refused(Code.RESPONSE_EXISTS)
        return refused(Code.OWNER_CONFLICT)

    def judge_conversation(self, alias: bytes, turn_id: bytes | None) -> ConversationRow | Outcome | None:
        """Rule 10 without the revision; None when the conversation does not exist."""
        lock = self.rows.lock(alias)
        if lock is not None and lock.turn_id != turn_id and self.clock_ms < lock.until_ms:
            return refused(Code.CONVERSATION_LOCKED)
        row = self.rows.conversation(alias)
        if row is None:
            return None
        gone = self.conversation_gone(alias, row)
        if gone is None:
            return row
        if self.is_forgotten(gone):
            if not row.fate:
                self.end_conversation(alias, row, gone.fate, gone.at_ms)
            self.forget_tombstone(Kind.CONVERSATION, alias)
            return None
        is_erased = row.created_offset < self.rows.principal(row.principal).cut_offset
        in_grace = not row.fate and gone.fate is Fate.EXPIRED and not is_erased
        if in_grace and self.clock_ms < gone.at_ms + self.policy.commit_grace_ms:
            return row
        return refused(Code.CONVERSATION_GONE)

    def judge_parent(self, alias: bytes, *, portable: bool) -> ResponseRow | Outcome | None:
        """Rule 11; None when a native turn's parent is not known."""
        row = self.rows.response(alias)
        gone = None if row is None else self.response_gone(row)
        if row is None or self.is_forgotten(gone):
            return refused(Code.PARENT_UNKNOWN) if portable else None
        if gone is not None:
            in_grace = gone.fate.has_grace and self.clock_ms < gone.at_ms + self.policy.commit_grace_ms
            is_erased = row.node < self.rows.principal(row.principal).cut_offset
            if not in_grace or is_erased or self.rows.node(row.node) is None:
                return refused(Code.PARENT_GONE)
        if row.status not in CONTINUABLE:
            return refused(Code.PARENT_UNFINISHED)
        if portable and row.owner.native:
            return refused(Code.PARENT_NOT_PORTABLE)
        return row

    def judge_size(
        self, lineage: LineageRow, content: ContentRef | None, size_bytes: int, *, adds_node: bool = True
    ) -> Outcome | None:
        """Rule 12; ``size_bytes`` is what the lineage grows by."""
        policy = self.policy
        if content is not None and content.oldest_at_ms < self.clock_ms - policy.content_grace_ms:
            return refused(Code.CONTENT_STALE)
        if adds_node and lineage.nodes >= policy.lineage_turns_max:
            return refused(Code.LIMIT_EXCEEDED, "lineage_turns_max")
        if lineage.size_bytes + size_bytes > policy.lineage_bytes_max:
            return refused(Code.LIMIT_EXCEEDED, "lineage_bytes_max")
        if size_bytes > policy.principal_bytes_max:
            return refused(Code.LIMIT_EXCEEDED, "principal_bytes_max")
        return None

    def item_batch(
        self, conversation: bytes, principal: bytes, content: ContentRef, items: tuple[bytes, ...], parent: int
    ) -> NodeRow:
        return NodeRow(
            parent=parent,
            principal=principal,
            lineage=conversation,
            response=None,
            conversation=conversation,
            native=False,
            content=content,
            items=items,
            status=Status.COMPLETED,
            size_bytes=content.size_bytes,
            accepted_at_ms=self.clock_ms,
            read_revision=None,
            idempotency=None,
            response_hold=0,
            head_hold=1,
            child_holds=0,
        )

    def add_node(self, digest: bytes, node: NodeRow, lineage: LineageRow) -> None:
        rows, offset = self.rows, ordered(self.offset)
        rows.put(Kind.NODE, offset, node)
        if node.parent:
            self.hold(node.parent, child=1)
        for alias in node.items:
            row = rows.item(alias)
            gone = None if row is None else item_fate(rows, row, self.clock_ms)
            if row is None or self.is_forgotten(gone):
                self.forget_tombstone(Kind.ITEM, alias)
                rows.put(Kind.ITEM, alias, ItemRow(node=self.offset, principal=node.principal))
        self.touch(digest, lineage, nodes=1, records=0 if node.response is None else 1, size_bytes=node.size_bytes)
        if self.policy.sliding:
            self.queue_lineage(digest)

    def touch(self, digest: bytes, lineage: LineageRow, *, nodes: int, records: int, size_bytes: int) -> None:
        """Make the lineage the principal's most recently active one, refresh it and count what was added."""
        rows = self.rows
        if 0 < lineage.expires_at_ms <= self.clock_ms - self.policy.commit_grace_ms:
            lineage = replace(lineage, lapsed_offset=self.offset, lapsed_at_ms=lineage.expires_at_ms)
            self.enqueue(0, Task.SWEEP_LINEAGE, digest + ordered(0))
        rows.put(
            Kind.LINEAGE,
            digest,
            replace(
                lineage,
                nodes=lineage.nodes + nodes,
                records=lineage.records + records,
                size_bytes=lineage.size_bytes + size_bytes,
                active_offset=self.offset,
                expires_at_ms=self.clock_ms + self.policy.active_ttl_ms,
            ),
        )
        principal = rows.principal(lineage.principal)
        rows.put(
            Kind.PRINCIPAL,
            lineage.principal,
            replace(principal, records=principal.records + records, size_bytes=principal.size_bytes + size_bytes),
        )

    def account_now(self, digest: bytes, size_bytes: int) -> None:
        lineage = self.rows.lineage(digest)
        assert lineage is not None, "bytes are counted for a lineage that exists"
        self.account(digest, lineage, self.offset, size_bytes)

    def queue_lineage(self, digest: bytes) -> None:
        lineage = self.rows.lineage(digest)
        assert lineage is not None, "a lineage is queued after it was written"
        if not lineage.queued:
            self.rows.put(Kind.LINEAGE, digest, replace(lineage, queued=True))
            self.enqueue(lineage.expires_at_ms + self.policy.commit_grace_ms, Task.END_LINEAGE, digest)

    def move_head(
        self, alias: bytes, conversation: ConversationRow | None, principal: bytes, owner: OwnerRef, sealed: bytes
    ) -> None:
        """Make this record's node the head; the old head keeps the child hold it has just been given."""
        rows = self.rows
        if conversation is None:
            row = ConversationRow(
                head=self.offset,
                revision=self.offset,
                principal=principal,
                owner=owner,
                created_offset=self.offset,
                created_at_ms=self.clock_ms,
                metadata=None,
                sealed=sealed,
            )
        else:
            if conversation.head:
                self.hold(conversation.head, head=-1)
            row = replace(conversation, head=self.offset, revision=self.offset)
        rows.put(Kind.CONVERSATION, alias, row)
        self.queue_lineage(alias)
