"""Lifecycle rules of the fold: fates, holds, cuts, tombstones and the queue that carries them out.

Verdicts compare times (``response_fate`` and its siblings), never the queue's progress. The queue does the physical
part, a bounded number of tasks per record, so that no record costs more than a bound:

- A *tombstone* replaces a gone alias's row, without its sealed part, until ``forget_at_ms``.
- A *cut* ends everything of a lineage (or, for erasure, of a principal) below an offset at once; a sweep follows.
- A *hold* keeps a node: its living response, the conversation whose head it is, its kept children. When the last one
  goes, the node goes, its parent loses a child, and its content is reported as unneeded, which is final.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from msgspec.structs import replace

from ledger.fates import NEVER_MS, Gone, conversation_fate, item_fate, response_fate
from ledger.rows import ConversationRow, Fate, ItemRow, Kind, LineageRow, ResponseRow, Task, TurnRow, ordered
from ledger.table import Rows
from ledger.turn import RUNNING
from ledger.verdict import ContentUnneeded, Fact

QUEUE_EVERY_RECORDS = 16
"""The queue is looked at once per so many offsets: a scan costs as much as half a fold. A function of the offset, so
that batch boundaries do not matter."""
QUEUE_TASKS_MAX = 128
"""Tasks per look: each costs a few row changes, so a look stays near a millisecond; above the steady rate of three new
tasks per record, so that a backlog shrinks."""
SWEEP_NODES_MAX = 32
"""Nodes or lineages that one sweep task ends before it queues itself again."""
EVICTIONS_MAX = 4
"""Evictions per accepted turn: one keeps pace, four shrink an overhang after a policy change."""
FIRST_KEY = b""
LAST_KEY = b"\xff" * 48


class Lifecycle:
    """Physical lifecycle changes of one record: the rows they go to, the clock they use, the facts they yield."""

    def __init__(self, rows: Rows, clock_ms: int) -> None:
        self.rows = rows
        self.clock_ms = clock_ms
        self.policy = rows.meta.policy
        self.facts: list[Fact] = []
        self.queue_due_ms = rows.meta.queue_due_ms
        self.nodes_swept = 0
        """Nodes or lineages that the task of the queue under way has looked at."""

    def is_forgotten(self, gone: Gone | None) -> bool:
        return gone is not None and self.clock_ms >= gone.forget_at_ms

    def response_gone(self, row: ResponseRow) -> Gone | None:
        lineage = self.rows.lineage(row.lineage) if row.lineage else None
        return response_fate(row, lineage, self.rows.principal(row.principal), self.clock_ms, self.policy)

    def conversation_gone(self, alias: bytes, row: ConversationRow) -> Gone | None:
        principal = self.rows.principal(row.principal)
        return conversation_fate(row, self.rows.lineage(alias), principal, self.clock_ms, self.policy)

    def enqueue(self, due_ms: int, task: bytes, subject: bytes) -> None:
        """Have ``task`` done for ``subject`` at ``due_ms`` or soon after."""
        self.rows.enqueue(ordered(due_ms) + task + subject)
        self.wake(due_ms)

    def wake(self, due_ms: int) -> None:
        """Have the queue looked at by ``due_ms``: a row that was written has a task then (``derived``)."""
        if due_ms < self.queue_due_ms:
            self.queue_due_ms = due_ms

    def end_response(self, alias: bytes, row: ResponseRow, fate: Fate, at_ms: int) -> None:
        """Turn a living response into a tombstone and let its hold go, after its grace if the fate has one."""
        rows = self.rows
        self._bury(Kind.RESPONSE, alias, row, fate, at_ms)
        if row.status in RUNNING:
            return
        lineage = rows.lineage(row.lineage)
        if lineage is not None and row.node >= lineage.cut_offset:
            rows.put(Kind.LINEAGE, row.lineage, replace(lineage, records=lineage.records - 1))
            principal = rows.principal(row.principal)
            if row.node >= principal.cut_offset:
                rows.put(Kind.PRINCIPAL, row.principal, replace(principal, records=principal.records - 1))
        release_at_ms = at_ms + self.policy.commit_grace_ms if fate.has_grace else 0
        if release_at_ms > self.clock_ms:
            self.enqueue(release_at_ms, Task.RELEASE_RESPONSE, ordered(row.node))
        else:
            self.hold(row.node, response=-1)

    def end_conversation(self, alias: bytes, row: ConversationRow, fate: Fate, at_ms: int) -> None:
        """Turn a living conversation into a tombstone and let the hold on its head go, after its grace if it has
        one."""
        self._bury(Kind.CONVERSATION, alias, row, fate, at_ms)
        if row.metadata is not None:
            self.facts.append(ContentUnneeded(row.metadata))
            lineage = self.rows.lineage(alias)
            if lineage is not None:
                self.account(alias, lineage, row.revision, -row.metadata.size_bytes)
        if row.head:
            release_at_ms = at_ms + self.policy.commit_grace_ms if fate.has_grace else 0
            if release_at_ms > self.clock_ms:
                self.enqueue(release_at_ms, Task.RELEASE_HEAD, ordered(row.head))
            else:
                self.hold(row.head, head=-1)
        else:
            self.drop_empty_lineage(alias)

    def end_item(self, alias: bytes, row: ItemRow, fate: Fate, at_ms: int) -> None:
        """Turn a living item into a tombstone."""
        self._bury(Kind.ITEM, alias, row, fate, at_ms)

    def _bury(
        self, kind: bytes, alias: bytes, row: ResponseRow | ConversationRow | ItemRow, fate: Fate, at_ms: int
    ) -> None:
        rows = self.rows
        forget_at_ms = at_ms + self.policy.tombstone_ttl_ms
        changes: dict[str, object] = {"fate": fate, "gone_at_ms": at_ms, "forget_at_ms": forget_at_ms}
        if isinstance(row, ResponseRow):
            changes |= {"sealed": b""}
        elif isinstance(row, ConversationRow):
            changes |= {"sealed": b"", "metadata": None}
        rows.put(kind, alias, replace(row, **changes))
        self.wake(forget_at_ms)
        principal = rows.principal(row.principal)
        rows.put(Kind.PRINCIPAL, row.principal, replace(principal, tombstones=principal.tombstones + 1))
        if principal.tombstones >= self.policy.tombstones_per_principal_max:
            oldest = rows.scan(Kind.TOMBSTONE, row.principal, row.principal + LAST_KEY, 1)
            if oldest:
                self.forget_tombstone(oldest[0][0][28:29], oldest[0][0][29:])

    def forget_tombstone(self, kind: bytes, alias: bytes) -> None:
        """Make a gone alias one that never existed."""
        rows = self.rows
        row: ResponseRow | ConversationRow | ItemRow | None
        if kind == Kind.RESPONSE:
            row = rows.response(alias)
        elif kind == Kind.CONVERSATION:
            row = rows.conversation(alias)
        else:
            row = rows.item(alias)
        if row is None or not row.fate:
            return
        rows.delete(kind, alias)
        principal = rows.principal(row.principal)
        rows.put(Kind.PRINCIPAL, row.principal, replace(principal, tombstones=principal.tombstones - 1))

    def hold(self, offset: int, *, response: int = 0, head: int = 0, child: int = 0) -> None:
        """Add to the holds of a node; without any left it is queued for removal."""
        node = self.rows.node(offset)
        if node is None:
            return
        node = replace(
            node,
            response_hold=node.response_hold + response,
            head_hold=node.head_hold + head,
            child_holds=node.child_holds + child,
        )
        assert min(node.response_hold, node.head_hold, node.child_holds) >= 0, "a hold was released twice"
        self.rows.put(Kind.NODE, ordered(offset), node)
        if not (node.response_hold or node.head_hold or node.child_holds):
            self.enqueue(0, Task.REMOVE_NODE, ordered(offset))

    def account(self, lineage: bytes, row: LineageRow, offset: int, size_bytes: int) -> None:
        """Add bytes of something written at ``offset`` to its lineage and principal, unless a cut has taken it out."""
        if offset < row.cut_offset or not size_bytes:
            return
        rows = self.rows
        rows.put(Kind.LINEAGE, lineage, replace(row, size_bytes=row.size_bytes + size_bytes))
        principal = rows.principal(row.principal)
        if offset >= principal.cut_offset:
            rows.put(Kind.PRINCIPAL, row.principal, replace(principal, size_bytes=principal.size_bytes + size_bytes))

    def drop_empty_lineage(self, digest: bytes) -> None:
        """Delete the row of a lineage that holds nothing any more."""
        rows = self.rows
        row = rows.lineage(digest)
        if row is None or row.nodes:
            return
        conversation = rows.conversation(digest)
        if conversation is not None and not conversation.fate:
            return
        rows.delete(Kind.LINEAGE, digest)

    def cut_lineage(self, digest: bytes, offset: int, fate: Fate, at_ms: int) -> None:
        """End everything of a lineage below ``offset`` at once; its sweep is queued."""
        rows = self.rows
        row = rows.lineage(digest)
        if row is None:
            return
        principal = rows.principal(row.principal)
        if row.active_offset >= principal.cut_offset:
            rows.put(
                Kind.PRINCIPAL,
                row.principal,
                replace(
                    principal, records=principal.records - row.records, size_bytes=principal.size_bytes - row.size_bytes
                ),
            )
        rows.put(
            Kind.LINEAGE,
            digest,
            replace(row, records=0, size_bytes=0, active_offset=0, cut_offset=offset, cut_fate=fate, cut_at_ms=at_ms),
        )
        self.enqueue(0, Task.SWEEP_LINEAGE, digest + ordered(0))

    def cut_erased(self, digest: bytes) -> LineageRow | None:
        """Cut what was erased of a lineage, if that has not been done; return its row."""
        row = self.rows.lineage(digest)
        if row is None:
            return None
        erased = self.rows.principal(row.principal)
        if not 0 < row.active_offset < erased.cut_offset:
            return row
        self.cut_lineage(digest, erased.cut_offset, Fate.ERASED, erased.cut_at_ms)
        return self.rows.lineage(digest)

    def evict(self, principal_digest: bytes, lineage: bytes, offset: int) -> None:
        """Bring a principal back under its budgets, without touching what is being written."""
        rows, policy = self.rows, self.policy
        principal = rows.principal(principal_digest)
        unerased = principal_digest + ordered(principal.cut_offset)
        if principal.records > policy.principal_records_max:
            surplus = min(principal.records - policy.principal_records_max, EVICTIONS_MAX)
            for _, alias in rows.scan(Kind.LIVING, unerased, principal_digest + ordered(offset), surplus):
                row = rows.response(alias)
                assert row is not None, "the index of living responses names one without a row"
                assert not row.fate, "the index of living responses names a tombstone"
                gone = self.response_gone(row) or Gone(Fate.EVICTED, self.clock_ms, 0)
                self.end_response(alias, row, gone.fate, gone.at_ms)
        if principal.size_bytes > policy.principal_bytes_max:
            for _ in range(EVICTIONS_MAX):
                idle = rows.scan(Kind.ACTIVITY, unerased, principal_digest + LAST_KEY, 2)
                victim = next((digest for _, digest in idle if digest != lineage), None)
                if victim is None or rows.principal(principal_digest).size_bytes <= policy.principal_bytes_max:
                    return
                self.cut_lineage(victim, offset, Fate.EVICTED, self.clock_ms)

    def run_queue(self) -> None:
        """Do up to ``QUEUE_TASKS_MAX`` of the tasks due by the partition clock; a sweep counts by its nodes."""
        rows = self.rows
        if self.queue_due_ms > self.clock_ms:
            return
        budget = QUEUE_TASKS_MAX
        while budget > 0 and self.queue_due_ms <= self.clock_ms:
            # Tasks queue others that are due at once: a removed node releases its parent.
            for key, _ in rows.scan(Kind.QUEUE, FIRST_KEY, ordered(self.clock_ms + 1), budget):
                self.nodes_swept = 0
                # One that follows from a row goes with what is done to the row; an older build may have left others.
                rows.dequeue(key)
                self._tasks[key[8:9]](self, key[9:], int.from_bytes(key[:8], "big"))
                budget -= 1 + self.nodes_swept
                if budget <= 0:
                    break
            following = rows.scan(Kind.QUEUE, FIRST_KEY, LAST_KEY, 1)
            self.queue_due_ms = int.from_bytes(following[0][0][:8], "big") if following else NEVER_MS

    def _forget_event(self, subject: bytes, due_ms: int) -> None:
        row = self.rows.event(subject)
        if row is not None and row.until_ms < due_ms:
            self.rows.delete(Kind.EVENT, subject)

    def _forget_key(self, subject: bytes, due_ms: int) -> None:
        row = self.rows.key(subject)
        if row is not None and row.until_ms <= due_ms:
            self.rows.delete(Kind.KEY, subject)

    def _forget_turn(self, subject: bytes, due_ms: int) -> None:
        row = self.rows.turn(subject)
        if row is None:
            return
        forget_at_ms = row.lease_until_ms + self.policy.event_window_max_ms
        if forget_at_ms > due_ms:
            self.enqueue(forget_at_ms, Task.FORGET_TURN, subject)
        else:
            self.forget_turn(subject, row)

    def started_turn(self, turn_id: bytes) -> TurnRow | None:
        """Return the turn that was started, unless that was so long ago that it is forgotten."""
        row = self.rows.turn(turn_id)
        if row is None or self.clock_ms < row.lease_until_ms + self.policy.event_window_max_ms:
            return row
        self.forget_turn(turn_id, row)
        return None

    def forget_turn(self, turn_id: bytes, row: TurnRow) -> None:
        """Make a turn whose lease ended long ago one that was never started; its response expired with the lease."""
        rows = self.rows
        rows.delete(Kind.TURN, turn_id)
        if row.conversation is not None:
            self.unlock(row.conversation, turn_id)
        response = None if row.ended or row.response is None else rows.response(row.response)
        if row.response is not None and response is not None and not response.fate and response.turn_id == turn_id:
            gone = self.response_gone(response)
            assert gone is not None, "a response in progress lives no longer than its turn"
            self.end_response(row.response, response, gone.fate, gone.at_ms)

    def unlock(self, conversation: bytes, turn_id: bytes) -> None:
        """Release the conversation if this turn has it."""
        lock = self.rows.lock(conversation)
        if lock is not None and lock.turn_id == turn_id:
            self.rows.delete(Kind.LOCK, conversation)

    def _forget_tombstone(self, subject: bytes, due_ms: int) -> None:
        row = {Kind.RESPONSE: self.rows.response, Kind.CONVERSATION: self.rows.conversation, Kind.ITEM: self.rows.item}[
            subject[:1]
        ](subject[1:])
        if row is not None and row.forget_at_ms == due_ms:
            self.forget_tombstone(subject[:1], subject[1:])

    def _end_response(self, subject: bytes, due_ms: int) -> None:
        row = self.rows.response(subject)
        if row is None or row.fate or not row.expires_at_ms:
            return
        if row.expires_at_ms > due_ms:
            return
        gone = self.response_gone(row)
        assert gone is not None, "a response lives no longer than until it expires"
        self.end_response(subject, row, gone.fate, gone.at_ms)

    def _end_lineage(self, subject: bytes, due_ms: int) -> None:
        row = self.rows.lineage(subject)
        if row is None:
            return
        ends_at_ms = row.expires_at_ms + self.policy.commit_grace_ms
        if ends_at_ms > due_ms:
            self.enqueue(ends_at_ms, Task.END_LINEAGE, subject)
            return
        self.rows.put(Kind.LINEAGE, subject, replace(row, queued=False))
        conversation = self.rows.conversation(subject)
        if conversation is not None and not conversation.fate:
            gone = self.conversation_gone(subject, conversation)
            assert gone is not None, "a conversation lives no longer than its lineage"
            self.end_conversation(subject, conversation, gone.fate, gone.at_ms)
        self.enqueue(0, Task.SWEEP_LINEAGE, subject + ordered(0))

    def _release_response(self, subject: bytes, due_ms: int) -> None:
        self.hold(int.from_bytes(subject, "big"), response=-1)

    def _release_head(self, subject: bytes, due_ms: int) -> None:
        self.hold(int.from_bytes(subject, "big"), head=-1)

    def _remove_node(self, subject: bytes, due_ms: int) -> None:
        self.remove_node(int.from_bytes(subject, "big"))

    def remove_node(self, offset: int) -> None:
        """Remove a node that nothing holds."""
        rows = self.rows
        node = rows.node(offset)
        if node is None or node.response_hold or node.head_hold or node.child_holds:
            return
        for alias in node.items:
            item = rows.item(alias)
            if item is not None and not item.fate and item.node == offset:
                gone = item_fate(rows, item, self.clock_ms) or Gone(Fate.DELETED, self.clock_ms, NEVER_MS)
                if self.is_forgotten(gone):
                    rows.delete(Kind.ITEM, alias)
                else:
                    self.end_item(alias, item, gone.fate, gone.at_ms)
        rows.delete(Kind.NODE, ordered(offset))
        if node.content is not None:
            self.facts.append(ContentUnneeded(node.content))
        lineage = rows.lineage(node.lineage)
        if lineage is not None:
            lineage = replace(lineage, nodes=lineage.nodes - 1)
            rows.put(Kind.LINEAGE, node.lineage, lineage)
            self.account(node.lineage, lineage, offset, -node.size_bytes)
            self.drop_empty_lineage(node.lineage)
        if node.parent:
            self.hold(node.parent, child=-1)

    def _sweep_lineage(self, subject: bytes, due_ms: int) -> None:
        """End what a cut or the lineage's expiry has ended already, a bounded number of nodes at a time."""
        rows = self.rows
        digest, cursor = subject[:20], subject[20:]
        lineage = rows.lineage(digest)
        if lineage is None:
            return
        conversation = rows.conversation(digest)
        if conversation is not None and not conversation.fate:
            gone = self.conversation_gone(digest, conversation)
            if gone is not None and not self._is_in_grace(gone):
                self.end_conversation(digest, conversation, gone.fate, gone.at_ms)
        members = rows.scan(Kind.MEMBER, digest + cursor, digest + LAST_KEY, SWEEP_NODES_MAX)
        self.nodes_swept = len(members)
        for key, _ in members:
            node = rows.node(int.from_bytes(key[20:], "big"))
            if node is None or node.response is None:
                continue
            row = rows.response(node.response)
            if row is None or row.fate or ordered(row.node) != key[20:]:
                continue
            gone = self.response_gone(row)
            if gone is None or self._is_in_grace(gone):
                continue
            self.end_response(node.response, row, gone.fate, gone.at_ms)
        if len(members) == SWEEP_NODES_MAX:
            following = ordered(int.from_bytes(members[-1][0][20:], "big") + 1)
            self.enqueue(0, Task.SWEEP_LINEAGE, digest + following)
        else:
            self.drop_empty_lineage(digest)

    def _is_in_grace(self, gone: Gone) -> bool:
        return gone.fate is Fate.EXPIRED and gone.at_ms + self.policy.commit_grace_ms > self.clock_ms

    def _sweep_principal(self, subject: bytes, due_ms: int) -> None:
        """Cut the lineages of an erased principal, a bounded number at a time."""
        rows = self.rows
        principal = rows.principal(subject)
        active = rows.scan(Kind.ACTIVITY, subject, subject + ordered(principal.cut_offset), SWEEP_NODES_MAX)
        self.nodes_swept = len(active)
        for _, digest in active:
            self.cut_erased(digest)
        if len(active) == SWEEP_NODES_MAX:
            self.enqueue(0, Task.SWEEP_PRINCIPAL, subject)

    _tasks: ClassVar[dict[bytes, Callable[[Lifecycle, bytes, int], None]]] = {
        Task.FORGET_EVENT: _forget_event,
        Task.FORGET_KEY: _forget_key,
        Task.FORGET_TURN: _forget_turn,
        Task.FORGET_TOMBSTONE: _forget_tombstone,
        Task.END_RESPONSE: _end_response,
        Task.END_LINEAGE: _end_lineage,
        Task.RELEASE_RESPONSE: _release_response,
        Task.RELEASE_HEAD: _release_head,
        Task.REMOVE_NODE: _remove_node,
        Task.SWEEP_LINEAGE: _sweep_lineage,
        Task.SWEEP_PRINCIPAL: _sweep_principal,
    }
