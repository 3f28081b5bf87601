"""How the fold judges turns and responses: start, completion, abandonment, deletion."""

from __future__ import annotations

from msgspec.structs import replace

from ledger.derived import forgets_event_at_ms
from ledger.event import OwnerRef, ResponseDeleted, TurnAbandoned, TurnCompleted, TurnStarted
from ledger.fold_rules import ACCEPTED, Step, refused, same_owner
from ledger.rows import ConversationRow, EventRow, Fate, KeyRow, Kind, LockRow, NodeRow, ResponseRow, Task, TurnRow
from ledger.turn import CONTINUABLE
from ledger.verdict import Code, ContentUnneeded, Outcome

_LEDGER = OwnerRef(native=False, target="ledger", digest=b"")


def turn_completed(step: Step, event: TurnCompleted) -> Outcome:
    rows, clock_ms = step.rows, step.clock_ms
    contradiction = _contradiction(event)
    if contradiction:
        return refused(Code.INVALID, contradiction)
    principal = rows.principal(event.principal)
    if principal.cut_offset and event.begun_at_ms < principal.cut_at_ms:
        return refused(Code.PRINCIPAL_ERASED)
    if event.idempotency is not None:
        refusal = step.judge_key(event.idempotency, event.request_digest, event.turn_id, principal.cut_offset)
        if refusal is not None:
            return refusal
    turn: TurnRow | None = None
    if event.turn_id is not None:
        turn = step.started_turn(event.turn_id)
        if turn is None or turn.response not in (None, event.response):
            return refused(Code.TURN_UNKNOWN)
        if turn.ended:
            return refused(Code.TURN_ENDED)
        if clock_ms >= turn.lease_until_ms:
            return refused(Code.LEASE_EXPIRED)
    refusal = step.judge_claim(event.response, event.owner, event.turn_id)
    if refusal is not None:
        return refusal
    conversation: ConversationRow | None = None
    parent = 0
    lineage_digest = event.response
    if event.conversation is not None:
        found = step.judge_conversation(event.conversation, event.turn_id)
        if isinstance(found, Outcome):
            return found
        conversation = found
        lineage_digest = event.conversation
        if conversation is not None:
            if not same_owner(conversation.owner, event.owner):
                return refused(Code.OWNER_CONFLICT)
            parent = conversation.head
        revision = 0 if conversation is None else conversation.revision
        if event.expected_revision is not None and event.expected_revision != revision:
            return Outcome(code=Code.REVISION_CONFLICT, revision=revision)
    elif event.parent is not None:
        row = step.judge_parent(event.parent, portable=not event.owner.native)
        if isinstance(row, Outcome):
            return row
        if row is not None:
            parent, lineage_digest = row.node, row.lineage
    size_bytes = len(event.sealed) + (0 if event.content is None else event.content.size_bytes)
    lineage = step.lineage_of(lineage_digest, event.principal)
    refusal = step.judge_size(lineage, event.content, size_bytes)
    if refusal is not None:
        return refusal
    is_head = event.conversation is not None and event.status in CONTINUABLE
    step.add_node(
        lineage_digest,
        NodeRow(
            parent=parent,
            principal=event.principal,
            lineage=lineage_digest,
            response=event.response,
            conversation=event.conversation,
            native=event.owner.native,
            content=event.content,
            items=event.items,
            status=event.status,
            size_bytes=size_bytes,
            accepted_at_ms=clock_ms,
            read_revision=event.read_revision,
            idempotency=event.idempotency,
            response_hold=1,
            head_hold=1 if is_head else 0,
            child_holds=0,
        ),
        lineage,
    )
    expires_at_ms = end_at_ms = 0
    if not step.policy.sliding:
        expires_at_ms = clock_ms + step.policy.active_ttl_ms
        end_at_ms = expires_at_ms + step.policy.commit_grace_ms
        step.wake(end_at_ms)
    rows.put(
        Kind.RESPONSE,
        event.response,
        ResponseRow(
            node=step.offset,
            principal=event.principal,
            lineage=lineage_digest,
            owner=event.owner,
            status=event.status,
            accepted_at_ms=clock_ms,
            expires_at_ms=expires_at_ms,
            turn_id=event.turn_id,
            lease_until_ms=0,
            sealed=event.sealed,
            end_at_ms=end_at_ms,
        ),
    )
    revision = 0
    if is_head:
        assert event.conversation is not None
        revision = step.offset
        step.move_head(event.conversation, conversation, event.principal, event.owner, event.sealed)
    if event.idempotency is not None:
        step.bind_key(event.idempotency, event.request_digest, event.turn_id)
    if turn is not None:
        assert event.turn_id is not None
        rows.put(Kind.TURN, event.turn_id, replace(turn, ended=True))
        if turn.conversation is not None:
            step.unlock(turn.conversation, event.turn_id)
        if event.idempotency is None and turn.idempotency is not None:
            step.release_key(turn.idempotency, event.turn_id)
    step.evict(event.principal, lineage_digest, step.offset)
    return Outcome(code=Code.ACCEPTED, node=step.offset, revision=revision)


def turn_started(step: Step, event: TurnStarted) -> Outcome:
    rows, clock_ms = step.rows, step.clock_ms
    if (event.idempotency is None) != (not event.request_digest):
        return refused(Code.INVALID, "request_digest and idempotency must come together")
    principal = rows.principal(event.principal)
    if principal.cut_offset and event.begun_at_ms < principal.cut_at_ms:
        return refused(Code.PRINCIPAL_ERASED)
    lease_until_ms = clock_ms + min(event.lease_ms, step.policy.lease_max_ms)
    turn = step.started_turn(event.turn_id)
    if turn is not None:
        # A router learns the ID of a native response only from its target's answer.
        is_same = event.response == turn.response or turn.response is None
        if not is_same or (event.conversation, event.idempotency) != (turn.conversation, turn.idempotency):
            return refused(Code.INVALID, "a renewal must name what the start named")
        if turn.ended:
            return refused(Code.TURN_ENDED)
        if clock_ms >= turn.lease_until_ms:
            return refused(Code.LEASE_EXPIRED)
        lease_until_ms = max(lease_until_ms, turn.lease_until_ms)
    if event.idempotency is not None:
        refusal = step.judge_key(event.idempotency, event.request_digest, event.turn_id, principal.cut_offset)
        if refusal is not None:
            return refusal
    if event.response is not None:
        refusal = step.judge_claim(event.response, None, event.turn_id)
        if refusal is not None:
            return refusal
    if event.conversation is not None:
        found = step.judge_conversation(event.conversation, event.turn_id)
        if isinstance(found, Outcome):
            return found
    rows.put(
        Kind.TURN,
        event.turn_id,
        TurnRow(
            response=event.response,
            conversation=event.conversation,
            idempotency=event.idempotency,
            lease_until_ms=lease_until_ms,
            ended=False,
        ),
    )
    if turn is None:
        step.enqueue(lease_until_ms + step.policy.event_window_max_ms, Task.FORGET_TURN, event.turn_id)
    if event.response is not None:
        claimed = rows.response(event.response)
        rows.put(
            Kind.RESPONSE,
            event.response,
            ResponseRow(
                node=step.offset if claimed is None else claimed.node,
                principal=event.principal,
                lineage=b"",
                owner=_LEDGER,
                status=event.status,
                accepted_at_ms=clock_ms if claimed is None else claimed.accepted_at_ms,
                expires_at_ms=0,
                turn_id=event.turn_id,
                lease_until_ms=lease_until_ms,
                sealed=event.sealed,
            ),
        )
    if event.conversation is not None and event.exclusive:
        rows.put(Kind.LOCK, event.conversation, LockRow(turn_id=event.turn_id, until_ms=lease_until_ms))
    if event.idempotency is not None:
        key = KeyRow(
            offset=step.offset,
            node=0,
            request_digest=event.request_digest,
            turn_id=event.turn_id,
            until_ms=lease_until_ms,
            answered=False,
        )
        rows.put(Kind.KEY, event.idempotency, key)
        step.wake(lease_until_ms)
    return ACCEPTED


def turn_abandoned(step: Step, event: TurnAbandoned) -> Outcome:
    rows = step.rows
    first = rows.event(event.abandoned)
    if first is None or step.clock_ms > first.until_ms:
        until_ms = step.clock_ms + step.policy.event_window_max_ms
        row = EventRow(offset=step.offset, code=Code.ABANDONED, node=0, revision=0, until_ms=until_ms)
        rows.put(Kind.EVENT, event.abandoned, row)
        step.wake(forgets_event_at_ms(row))
        return ACCEPTED
    if first.code != Code.ACCEPTED:
        return ACCEPTED
    if not first.node:
        return refused(Code.KEPT)
    node = rows.node(first.node)
    if node is None or first.node < rows.principal(node.principal).cut_offset:
        return ACCEPTED
    if node.principal != event.principal or node.child_holds or _was_answered(step, node, first.node):
        return refused(Code.KEPT)
    conversation: ConversationRow | None = None
    if node.conversation is not None and node.status in CONTINUABLE:
        conversation = rows.conversation(node.conversation)
        if (
            conversation is None
            or conversation.revision != first.node
            or step.conversation_gone(node.conversation, conversation) is not None
        ):
            return refused(Code.KEPT)
    _undo(step, first.node, node, conversation)
    rows.put(Kind.EVENT, event.abandoned, replace(first, code=Code.ABANDONED, node=0))
    return ACCEPTED


def _was_answered(step: Step, node: NodeRow, offset: int) -> bool:
    key = None if node.idempotency is None else step.rows.key(node.idempotency)
    return key is not None and key.node == offset and key.answered


def _undo(step: Step, offset: int, node: NodeRow, conversation: ConversationRow | None) -> None:
    """Take an accepted turn or item batch back as if it had not been accepted, except that its ID stays used."""
    rows = step.rows
    if node.idempotency is not None:
        key = rows.key(node.idempotency)
        if key is not None and key.node == offset:
            rows.delete(Kind.KEY, node.idempotency)
    if conversation is not None:
        assert node.conversation is not None
        if conversation.created_offset == offset:
            if conversation.metadata is not None:
                step.facts.append(ContentUnneeded(conversation.metadata))
                step.account_now(node.conversation, -conversation.metadata.size_bytes)
            rows.delete(Kind.CONVERSATION, node.conversation)
        else:
            back = replace(conversation, head=node.parent, revision=step.offset)
            rows.put(Kind.CONVERSATION, node.conversation, back)
            if node.parent:
                step.hold(node.parent, head=1)
        step.hold(offset, head=-1)
    for alias in node.items:
        item = rows.item(alias)
        if item is not None and not item.fate and item.node == offset:
            step.end_item(alias, item, Fate.ABANDONED, step.clock_ms)
    if node.response is not None:
        response = rows.response(node.response)
        if response is not None and response.node == offset:
            if response.fate:
                # In its grace it could still be built on, unlike a turn that was taken back.
                rows.put(Kind.RESPONSE, node.response, replace(response, fate=Fate.ABANDONED))
            else:
                step.end_response(node.response, response, Fate.ABANDONED, step.clock_ms)
    step.remove_node(offset)


def response_deleted(step: Step, event: ResponseDeleted) -> Outcome:
    row = step.rows.response(event.response)
    gone = None if row is None else step.response_gone(row)
    if row is None or step.is_forgotten(gone):
        return refused(Code.RESPONSE_UNKNOWN)
    if gone is not None:
        return refused(Code.ALIAS_GONE)
    step.end_response(event.response, row, Fate.DELETED, step.clock_ms)
    return ACCEPTED


def _contradiction(event: TurnCompleted) -> str:
    """Return what is wrong with a turn that no router of ours would write, or nothing."""
    if event.conversation is not None and event.parent is not None:
        return "conversation and parent exclude each other"
    if event.expected_revision is not None and event.conversation is None:
        return "expected_revision needs a conversation"
    if event.owner.native and event.content is not None:
        return "a native turn has no content in the ledger"
    if not event.owner.native and event.content is None and event.status in CONTINUABLE:
        return "a portable turn that can be continued needs content"
    if (event.idempotency is None) != (not event.request_digest):
        return "request_digest and idempotency must come together"
    return ""
