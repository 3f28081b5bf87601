"""Conversations of one instance: their items, in order, and whether a turn is under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cli.loopback.exchange import Exchange
from cli.loopback.instance import Instance
from cli.loopback.items import Item, check_reasoning, complete, input_items, invalid
from cli.loopback.lists import page
from ledger.refusal import CONVERSATION, Refusal

ITEMS_MAX = 20
"""Items of one create or add."""


@dataclass(slots=True, kw_only=True)
class Conversation:
    """One conversation."""

    id: str
    created_at: int
    metadata: dict[str, str]
    items: list[Item] = field(default_factory=list)
    is_busy: bool = False
    """A turn is under way; another one is refused."""

    def body(self) -> dict[str, Any]:
        """Return what GET answers."""
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": self.created_at,
            "metadata": self.metadata,
        }


class Conversations:
    """The endpoints under ``/v1/conversations``."""

    def __init__(self, instance: Instance, known: dict[str, Item]) -> None:
        """``known``: all items of the instance by ID."""
        self._instance = instance
        self._known = known
        self._conversations: dict[str, Conversation] = {}

    def lock(self, value: Any) -> Conversation:
        """Return the conversation that a request names, busy from now on. Raises ``Refusal``."""
        conversation_id = value.get("id") if isinstance(value, dict) else value
        if not isinstance(conversation_id, str):
            raise invalid(CONVERSATION, "expected an ID, or an object with one")
        conversation = self.named(conversation_id)
        if conversation.is_busy:
            text = "Another process is currently operating on this conversation. Please retry in a few seconds."
            raise Refusal(400, text, code="conversation_locked", param=CONVERSATION)
        conversation.is_busy = True
        return conversation

    def named(self, conversation_id: str) -> Conversation:
        """Return a conversation. Raises ``Refusal``."""
        conversation = self._conversations.get(conversation_id)
        if conversation is None:
            raise Refusal(404, f"Conversation with id '{conversation_id}' not found.", param=CONVERSATION)
        return conversation

    def add(self, conversation: Conversation, items: list[Item]) -> None:
        """Append items that have IDs."""
        conversation.items.extend(items)
        self._known.update((item["id"], item) for item in items)

    async def create(self, exchange: Exchange) -> None:
        """POST /v1/conversations."""
        request = exchange.request()
        items = self._checked(request["items"]) if request.get("items") else []
        conversation = Conversation(
            id=self._instance.new_id("conv"),
            created_at=self._instance.now(),
            metadata=request.get("metadata") or {},
        )
        self._conversations[conversation.id] = conversation
        self.add(conversation, items)
        await exchange.answer(conversation.body())

    async def retrieve(self, exchange: Exchange) -> None:
        """GET /v1/conversations/{id}."""
        await exchange.answer(self._of(exchange).body())

    async def update(self, exchange: Exchange) -> None:
        """POST /v1/conversations/{id}."""
        conversation = self._of(exchange)
        conversation.metadata = exchange.request().get("metadata") or {}
        await exchange.answer(conversation.body())

    async def delete(self, exchange: Exchange) -> None:
        """DELETE /v1/conversations/{id}; its items stay where responses have used them."""
        conversation = self._of(exchange)
        del self._conversations[conversation.id]
        await exchange.answer({"id": conversation.id, "object": "conversation.deleted", "deleted": True})

    async def create_items(self, exchange: Exchange) -> None:
        """POST /v1/conversations/{id}/items."""
        conversation = self._of(exchange)
        items = self._checked(exchange.request().get("items"))
        self.add(conversation, items)
        await exchange.answer(page(items, {"order": "asc", "limit": str(ITEMS_MAX)}))

    async def list_items(self, exchange: Exchange) -> None:
        """GET /v1/conversations/{id}/items."""
        await exchange.answer(page(self._of(exchange).items, exchange.query))

    async def retrieve_item(self, exchange: Exchange) -> None:
        """GET /v1/conversations/{id}/items/{item_id}."""
        await exchange.answer(self._item(self._of(exchange), exchange))

    async def delete_item(self, exchange: Exchange) -> None:
        """DELETE /v1/conversations/{id}/items/{item_id}: answers the conversation."""
        conversation = self._of(exchange)
        conversation.items.remove(self._item(conversation, exchange))
        await exchange.answer(conversation.body())

    def _of(self, exchange: Exchange) -> Conversation:
        return self.named(exchange.path_params["conversation_id"])

    def _checked(self, value: Any) -> list[Item]:
        items = input_items(value, "items")
        if len(items) > ITEMS_MAX:
            raise invalid("items", f"expected at most {ITEMS_MAX}")
        check_reasoning(items, self._instance, self._known)
        return [complete(item, self._instance) for item in items]

    def _item(self, conversation: Conversation, exchange: Exchange) -> Item:
        item_id = exchange.path_params["item_id"]
        for item in conversation.items:
            if item["id"] == item_id:
                return item
        raise Refusal(404, f"Item with id '{item_id}' not found in the conversation.")
