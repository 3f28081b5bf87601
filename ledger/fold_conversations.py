"""How the fold judges conversations and items changed outside a turn."""

from __future__ import annotations

from msgspec.structs import replace

from ledger.event import ConversationCreated, ConversationDeleted, ConversationUpdated, ItemDeleted, ItemsAppended
from ledger.fates import item_fate
from ledger.fold_rules import Step, refused, same_owner
from ledger.rows import ConversationRow, Fate, Kind, ordered
from ledger.verdict import Code, ContentUnneeded, Outcome


def conversation_created(step: Step, event: ConversationCreated) -> Outcome:
    rows = step.rows
    if event.owner.native and (event.content is not None or event.metadata is not None):
        return refused(Code.INVALID, "a native conversation has no content in the ledger")
    if event.items and event.content is None:
        return refused(Code.INVALID, "items without content")
    principal = rows.principal(event.principal)
    if principal.cut_offset and event.begun_at_ms < principal.cut_at_ms:
        return refused(Code.PRINCIPAL_ERASED)
    found = step.judge_conversation(event.conversation, None)
    if isinstance(found, Outcome):
        return refused(Code.ALIAS_GONE) if found.code is Code.CONVERSATION_GONE else found
    if found is not None:
        same = same_owner(found.owner, event.owner)
        return refused(Code.REVISION_CONFLICT if same else Code.OWNER_CONFLICT)
    lineage = step.lineage_of(event.conversation, event.principal)
    sizes = [content.size_bytes for content in (event.content, event.metadata) if content is not None]
    for content in (event.content, event.metadata):
        refusal = step.judge_size(lineage, content, sum(sizes))
        if refusal is not None:
            return refusal
    head = 0
    if event.content is not None:
        head = step.offset
        step.add_node(
            event.conversation,
            step.item_batch(event.conversation, event.principal, event.content, event.items, 0),
            lineage,
        )
    else:
        step.touch(event.conversation, lineage, nodes=0, records=0, size_bytes=0)
    rows.put(
        Kind.CONVERSATION,
        event.conversation,
        ConversationRow(
            head=head,
            revision=step.offset,
            principal=event.principal,
            owner=event.owner,
            created_offset=step.offset,
            created_at_ms=step.clock_ms,
            metadata=event.metadata,
            sealed=event.sealed,
        ),
    )
    if event.metadata is not None:
        step.account_now(event.conversation, event.metadata.size_bytes)
    step.queue_lineage(event.conversation)
    step.evict(event.principal, event.conversation, step.offset)
    return Outcome(code=Code.ACCEPTED, node=head, revision=step.offset)


def conversation_updated(step: Step, event: ConversationUpdated) -> Outcome:
    rows = step.rows
    found = _portable_conversation(step, event)
    if isinstance(found, Outcome):
        return found
    lineage = rows.lineage(event.conversation)
    assert lineage is not None, "a living conversation has its lineage"
    if event.metadata is not None:
        grows_by = event.metadata.size_bytes - (0 if found.metadata is None else found.metadata.size_bytes)
        refusal = step.judge_size(lineage, event.metadata, grows_by, adds_node=False)
        if refusal is not None:
            return refusal
    if found.metadata is not None:
        step.facts.append(ContentUnneeded(found.metadata))
        step.account_now(event.conversation, -found.metadata.size_bytes)
    if event.metadata is not None:
        step.account_now(event.conversation, event.metadata.size_bytes)
    rows.put(Kind.CONVERSATION, event.conversation, replace(found, metadata=event.metadata, revision=step.offset))
    return Outcome(code=Code.ACCEPTED, revision=step.offset)


def conversation_deleted(step: Step, event: ConversationDeleted) -> Outcome:
    row = step.rows.conversation(event.conversation)
    gone = None if row is None else step.conversation_gone(event.conversation, row)
    if row is None or step.is_forgotten(gone):
        return refused(Code.CONVERSATION_UNKNOWN)
    if gone is not None:
        return refused(Code.CONVERSATION_GONE)
    if event.cascade:
        step.cut_lineage(event.conversation, step.offset, Fate.DELETED, step.clock_ms)
    step.end_conversation(event.conversation, row, Fate.DELETED, step.clock_ms)
    return Outcome(code=Code.ACCEPTED, revision=step.offset)


def items_appended(step: Step, event: ItemsAppended) -> Outcome:
    rows = step.rows
    found = _portable_conversation(step, event)
    if isinstance(found, Outcome):
        return found
    lineage = rows.lineage(event.conversation)
    assert lineage is not None, "a living conversation has its lineage"
    refusal = step.judge_size(lineage, event.content, event.content.size_bytes)
    if refusal is not None:
        return refusal
    node = step.item_batch(event.conversation, event.principal, event.content, event.items, found.head)
    step.add_node(event.conversation, node, lineage)
    step.move_head(event.conversation, found, event.principal, found.owner, found.sealed)
    step.evict(event.principal, event.conversation, step.offset)
    return Outcome(code=Code.ACCEPTED, node=step.offset, revision=step.offset)


def item_deleted(step: Step, event: ItemDeleted) -> Outcome:
    rows = step.rows
    found = _existing_conversation(step, event.conversation, event.principal, None)
    if isinstance(found, Outcome):
        return found
    item = rows.item(event.item)
    node = None if item is None else rows.node(item.node)
    gone = None if item is None else item_fate(rows, item, step.clock_ms)
    if gone is not None and not step.is_forgotten(gone):
        return refused(Code.ALIAS_GONE)
    if item is None or gone is not None or node is None or node.conversation != event.conversation:
        return refused(Code.ITEM_UNKNOWN)
    if node.content is None or node.content.id != event.old_content:
        return refused(Code.ITEM_CONFLICT)
    if event.content.id == event.old_content:
        return refused(Code.INVALID, "the content without the item needs an ID of its own")
    if event.content.oldest_at_ms < step.clock_ms - step.policy.content_grace_ms:
        return refused(Code.CONTENT_STALE)
    growth_bytes = event.content.size_bytes - node.content.size_bytes
    if growth_bytes > 0:
        return refused(Code.INVALID, "a content without an item is larger than with it")
    step.facts.append(ContentUnneeded(node.content))
    lineage = rows.lineage(node.lineage)
    assert lineage is not None, "a kept node has its lineage"
    step.account(node.lineage, lineage, item.node, growth_bytes)
    node = replace(node, content=event.content, size_bytes=node.size_bytes + growth_bytes)
    rows.put(Kind.NODE, ordered(item.node), node)
    step.end_item(event.item, item, Fate.DELETED, step.clock_ms)
    rows.put(Kind.CONVERSATION, event.conversation, replace(found, revision=step.offset))
    return Outcome(code=Code.ACCEPTED, revision=step.offset)


def _existing_conversation(
    step: Step, alias: bytes, principal: bytes, begun_at_ms: int | None
) -> ConversationRow | Outcome:
    erased = step.rows.principal(principal)
    if begun_at_ms is not None and erased.cut_offset and begun_at_ms < erased.cut_at_ms:
        return refused(Code.PRINCIPAL_ERASED)
    found = step.judge_conversation(alias, None)
    return refused(Code.CONVERSATION_UNKNOWN) if found is None else found


def _portable_conversation(step: Step, event: ConversationUpdated | ItemsAppended) -> ConversationRow | Outcome:
    """Return the conversation that the event changes, at the revision that it expects."""
    found = _existing_conversation(step, event.conversation, event.principal, event.begun_at_ms)
    if isinstance(found, Outcome):
        return found
    if found.owner.native:
        return refused(Code.OWNER_CONFLICT)
    if event.expected_revision is not None and event.expected_revision != found.revision:
        return Outcome(code=Code.REVISION_CONFLICT, revision=found.revision)
    return found
