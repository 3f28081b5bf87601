"""Changes outside a turn: conversations, their items, deletions, and the erasure of a principal.

Each builds one event and goes through ``commit``; verdicts and errors are the same as for a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ledger import codec
from ledger.alias import AliasKey
from ledger.answer import Found, Verdict
from ledger.commit import Committer, owner_ref
from ledger.errors import InvalidInput
from ledger.event import (
    ConversationCreated,
    ConversationDeleted,
    ConversationUpdated,
    ItemDeleted,
    ItemsAppended,
    PrincipalErased,
    PrincipalEvent,
    ResponseDeleted,
)
from ledger.query import Reader
from ledger.replica import Replica
from ledger.settings import LedgerSettings
from ledger.turn import (
    ID_BYTES_MAX,
    INT64_MAX,
    Owner,
    Revision,
    Scope,
    Selector,
    SelectorKind,
    check_item_ids,
    check_owner,
    checked_int,
    checked_text,
)
from ledger.verdict import Code

ITEM_DELETE_ATTEMPTS_MAX = 8
"""Deleting an item rewrites its node's content; that many others may rewrite the same node meanwhile."""
LEDGER_OWNER = Owner(native=False, target="ledger")


class Conversations:
    """Changes outside a turn. One per process."""

    def __init__(
        self,
        committer: Committer,
        reader: Reader,
        replica: Replica,
        alias_key: AliasKey,
        settings: LedgerSettings,
        now_ms: Callable[[], int],
    ) -> None:
        self._committer = committer
        self._reader = reader
        self._replica = replica
        self._alias_key = alias_key
        self._settings = settings
        self._now_ms = now_ms

    async def delete_response(self, selector: Selector, *, event_id: str, timeout_s: float | None = None) -> Verdict:
        """Delete a response; its children keep their histories. ``response_unknown`` or ``alias_gone``: there is
        none."""
        _expect_kind(selector, SelectorKind.RESPONSE)
        scope = selector.scope
        event = ResponseDeleted(response=self._alias_key.alias(selector), **self._header(scope, event_id))
        return await self._submit(scope, event_id, lambda: event, timeout_s)

    async def create(
        self,
        selector: Selector,
        *,
        event_id: str,
        owner: Owner = LEDGER_OWNER,
        metadata: dict[str, Any] | None = None,
        items: list[Any] | None = None,
        item_ids: tuple[str, ...] = (),
        timeout_s: float | None = None,
    ) -> Verdict:
        """Create a conversation, with metadata and first items if given, all in one event."""
        _expect_kind(selector, SelectorKind.CONVERSATION)
        check_item_ids(item_ids)
        check_owner(owner)
        if owner.native and (metadata or items):
            raise InvalidInput("items", "and metadata of a native conversation live at its owner only")
        if item_ids and not items:
            raise InvalidInput("item_ids", "needs items")
        alias, scope = self._alias_key, selector.scope
        deadline_s = self._deadline_s(timeout_s)
        partition = self._committer.partition(scope)
        metadata_ref = None
        if metadata:
            metadata_ref = await self._committer.put_content(scope, partition, {"metadata": metadata}, deadline_s)
        header = self._header(scope, event_id)
        return await self._committer.submit(
            scope,
            event_id,
            header["event_id"],
            lambda content: ConversationCreated(
                begun_at_ms=self._now_ms(),
                conversation=alias.alias(selector),
                owner=owner_ref(owner),
                metadata=metadata_ref,
                items=tuple(alias.alias_of(scope, SelectorKind.ITEM, item_id) for item_id in item_ids),
                content=content,
                sealed=codec.encode_sealed(codec.SealedPart(conversation_id=selector.id)),
                **header,
            ),
            {"input": items} if items else None,
            timeout_s=timeout_s,
        )

    async def update(
        self,
        selector: Selector,
        *,
        event_id: str,
        metadata: dict[str, Any],
        expected_revision: Revision | None = None,
        timeout_s: float | None = None,
    ) -> Verdict:
        """Replace the metadata of a conversation."""
        _expect_kind(selector, SelectorKind.CONVERSATION)
        checked_int("expected_revision", expected_revision, 0, INT64_MAX, optional=True)
        header = self._header(selector.scope, event_id)
        return await self._committer.submit(
            selector.scope,
            event_id,
            header["event_id"],
            lambda content: ConversationUpdated(
                begun_at_ms=self._now_ms(),
                conversation=self._alias_key.alias(selector),
                metadata=content,
                expected_revision=expected_revision,
                **header,
            ),
            {"metadata": metadata},
            timeout_s=timeout_s,
        )

    async def delete(
        self, selector: Selector, *, event_id: str, cascade: bool = False, timeout_s: float | None = None
    ) -> Verdict:
        """Delete a conversation; with ``cascade`` its whole lineage, else its responses live on."""
        _expect_kind(selector, SelectorKind.CONVERSATION)
        scope = selector.scope
        event = ConversationDeleted(
            conversation=self._alias_key.alias(selector), cascade=cascade, **self._header(scope, event_id)
        )
        return await self._submit(scope, event_id, lambda: event, timeout_s)

    async def append_items(
        self,
        selector: Selector,
        *,
        event_id: str,
        items: list[Any],
        item_ids: tuple[str, ...] = (),
        expected_revision: Revision | None = None,
        timeout_s: float | None = None,
    ) -> Verdict:
        """Append items to a conversation outside a turn."""
        _expect_kind(selector, SelectorKind.CONVERSATION)
        check_item_ids(item_ids)
        checked_int("expected_revision", expected_revision, 0, INT64_MAX, optional=True)
        if not items:
            raise InvalidInput("items", "must not be empty")
        alias, scope = self._alias_key, selector.scope
        header = self._header(scope, event_id)

        def build(content: Any) -> PrincipalEvent:
            return ItemsAppended(
                begun_at_ms=self._now_ms(),
                conversation=alias.alias(selector),
                items=tuple(alias.alias_of(scope, SelectorKind.ITEM, item_id) for item_id in item_ids),
                content=content,
                expected_revision=expected_revision,
                **header,
            )

        return await self._committer.submit(
            scope, event_id, header["event_id"], build, {"input": items}, timeout_s=timeout_s
        )

    async def delete_item(
        self, conversation: Selector, item: Selector, *, event_id: str, timeout_s: float | None = None
    ) -> Verdict:
        """Delete one item of a conversation: its content is written anew without it.

        Items carry their ID in their ``id`` field. Others may rewrite the same content meanwhile; then it is tried
        again.
        """
        _expect_kind(conversation, SelectorKind.CONVERSATION)
        _expect_kind(item, SelectorKind.ITEM)
        deadline_s = self._deadline_s(timeout_s)
        attempt = 0
        while True:
            verdict = await self._delete_item_once(conversation, item, f"{event_id}#{attempt}", deadline_s)
            attempt += 1
            if verdict.code is not Code.ITEM_CONFLICT or attempt == ITEM_DELETE_ATTEMPTS_MAX:
                return verdict

    async def _delete_item_once(
        self, conversation: Selector, item: Selector, event_id: str, deadline_s: float
    ) -> Verdict:
        scope = conversation.scope
        alias = self._alias_key
        partition = self._committer.partition(scope)
        timeout_s = max(0.001, deadline_s - asyncio.get_running_loop().time())
        found = await self._reader.load(item, strong=True, timeout_s=timeout_s)
        rows = self._replica.rows(partition)
        node = rows.node(found.node) if isinstance(found, Found) else None
        header = self._header(scope, event_id)
        # Without a content the fold names the reason: unknown, gone, or of another conversation.
        document: dict[str, Any] = {"input": []}
        old_content = b"\0" * 16
        if node is not None and node.content is not None:
            document = await self._reader.document(partition, node.content, deadline_s)
            old_content = node.content.id
            for part in ("input", "output"):
                # A part that was not there must not come to be: the new content may not be larger than the old one.
                if document.get(part):
                    document[part] = [entry for entry in document[part] if not _has_id(entry, item.id)]

        def build(content: Any) -> PrincipalEvent:
            return ItemDeleted(
                conversation=alias.alias(conversation),
                item=alias.alias(item),
                old_content=old_content,
                content=content,
                **header,
            )

        timeout_s = max(0.001, deadline_s - asyncio.get_running_loop().time())
        return await self._committer.submit(scope, event_id, header["event_id"], build, document, timeout_s=timeout_s)

    async def erase_principal(self, scope: Scope, *, event_id: str, timeout_s: float | None = None) -> Verdict:
        """Erase everything of the scope's principal in its namespace, on every route."""
        event = PrincipalErased(**self._header(scope, event_id))
        return await self._submit(scope, event_id, lambda: event, timeout_s)

    async def metadata(self, found: Found, scope: Scope, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the metadata of a conversation that was found."""
        if found.metadata is None:
            return {}
        partition = self._committer.partition(scope)
        document = await self._reader.document(partition, found.metadata, self._deadline_s(timeout_s))
        metadata: dict[str, Any] = document.get("metadata") or {}
        return metadata

    async def _submit(
        self, scope: Scope, event_id: str, build: Callable[[], PrincipalEvent], timeout_s: float | None
    ) -> Verdict:
        digest = self._alias_key.event_id(scope, event_id)
        return await self._committer.submit(scope, event_id, digest, lambda _: build(), None, timeout_s=timeout_s)

    def _header(self, scope: Scope, event_id: str) -> dict[str, Any]:
        checked_text("event_id", event_id, ID_BYTES_MAX)
        now_ms = self._now_ms()
        return {
            "event_id": self._alias_key.event_id(scope, event_id),
            "principal": self._alias_key.principal(scope),
            "written_at_ms": now_ms,
            "not_after_ms": self._committer.not_after_ms(now_ms),
        }

    def _deadline_s(self, timeout_s: float | None) -> float:
        limit_s = self._settings.commit_timeout_s if timeout_s is None else timeout_s
        return asyncio.get_running_loop().time() + limit_s


def _has_id(entry: Any, item_id: str) -> bool:
    return isinstance(entry, dict) and entry.get("id") == item_id


def _expect_kind(selector: Selector, kind: SelectorKind) -> None:
    if selector.kind is not kind:
        raise InvalidInput("selector", f"must name a {kind.name.lower()}, not a {selector.kind.name.lower()}")
