"""Conversations and their items, as clients of the API make, read, change and delete them outside a turn.

A conversation that is made here is the ledger's, so any target can continue it. One that came to be in a native turn
lives at its owner: requests for it are sent there as they came, and nothing of it is stored here but whose it is.

Rules it keeps:

- what is read is never older than any commit before, on whichever replica;
- an ID of another principal is answered like one that never existed;
- a field that the API does not have is refused: to leave it out silently would lose what the client meant to keep;
- an item has an ID of its own: one that brings an ID that is or was in use gets another.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api.gateway.forward import ask, owner_of, passed_on
from api.gateway.ids import new_id
from api.gateway.items import canonical_items
from api.gateway.lists import check_include_only, distinct, list_of, page_of, read_page
from api.gateway.request import checked_metadata, is_reference
from api.gateway.service import MIB, Gateway, json_answer
from api.requests import JSON, decode, media_type, read_body
from ledger.answer import Found, Gone, Missing, Verdict
from ledger.continuation import living
from ledger.errors import ContentLost, InvalidInput, Unknown
from ledger.refusal import CONVERSATION, Refusal, require_accepted
from ledger.turn import Scope, Selector, SelectorKind
from ledger.verdict import Code

ITEMS_AT_ONCE_MAX = 20
"""The API's own bound, far below the ledger's of item IDs for one event."""


class _Creation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    items: list[Any] | None = None
    metadata: Any = None


class _Update(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    metadata: Any


class _Addition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    items: list[Any]


_creation = msgspec.json.Decoder(_Creation)
_update = msgspec.json.Decoder(_Update)
_addition = msgspec.json.Decoder(_Addition)


async def create_conversation(gateway: Gateway, request: Request) -> Response:
    """Create a conversation of the ledger, with its first items and metadata if given."""
    scope = gateway.scope(request)
    ledger = gateway.state()
    body = decode(await _body(gateway, request), _creation)
    metadata = checked_metadata(body.metadata)
    items = await _new_items(gateway, scope, body.items or [])
    selector = Selector(scope=scope, kind=SelectorKind.CONVERSATION, id=new_id("conv"))
    event_id = secrets.token_hex(16)
    creating = ledger.conversations.create(
        selector,
        event_id=event_id,
        metadata=metadata,
        items=items,
        item_ids=tuple(item["id"] for item in items),
    )
    await _commit(gateway, scope, event_id, creating)
    return json_answer(_resource(selector.id, await _living(gateway, selector), metadata))


async def get_conversation(gateway: Gateway, request: Request) -> Response:
    """Return a conversation."""
    selector, found = await _named(gateway, request)
    if found.owner.native:
        return await _forwarded(gateway, request, found)
    return json_answer(await _described(gateway, selector, found))


async def update_conversation(gateway: Gateway, request: Request) -> Response:
    """Replace the metadata of a conversation."""
    scope = gateway.scope(request)
    raw = await _body(gateway, request)
    selector, found = await _named(gateway, request)
    if found.owner.native:
        return await _forwarded(gateway, request, found, body=raw)
    metadata = checked_metadata(decode(raw, _update).metadata)
    event_id = secrets.token_hex(16)
    updating = gateway.state().conversations.update(selector, event_id=event_id, metadata=metadata)
    await _commit(gateway, scope, event_id, updating)
    return json_answer(_resource(selector.id, found, metadata))


async def delete_conversation(gateway: Gateway, request: Request) -> Response:
    """Delete a conversation; the responses that were made in it live on."""
    selector, found = await _named(gateway, request)
    if found.owner.native:
        answer = await _forwarded(gateway, request, found)
        # One that its owner no longer has: the owner deleted it for an earlier attempt, whose commit failed.
        if answer.status_code < 300 or answer.status_code == 404:
            await _delete_alias(gateway, selector)
        return answer
    await _delete_alias(gateway, selector)
    return json_answer({"id": selector.id, "object": "conversation.deleted", "deleted": True})


async def create_items(gateway: Gateway, request: Request) -> Response:
    """Append items to a conversation; return them as they are stored."""
    scope = gateway.scope(request)
    raw = await _body(gateway, request)
    selector, found = await _named(gateway, request)
    if found.owner.native:
        return await _forwarded(gateway, request, found, "items", body=raw)
    check_include_only(request)
    given = decode(raw, _addition).items
    if not given:
        raise InvalidInput("items", "must not be empty")
    items = await _new_items(gateway, scope, given)
    event_id = secrets.token_hex(16)
    appending = gateway.state().conversations.append_items(
        selector, event_id=event_id, items=items, item_ids=tuple(item["id"] for item in items)
    )
    await _commit(gateway, scope, event_id, appending)
    return json_answer(list_of(items))


async def list_items(gateway: Gateway, request: Request) -> Response:
    """List the items of a conversation: of its turns, and those that were added outside a turn."""
    selector, found = await _named(gateway, request)
    if found.owner.native:
        return await _forwarded(gateway, request, found, "items")
    page = read_page(request)
    return json_answer(page_of(await _history(gateway, selector), page))


async def get_item(gateway: Gateway, request: Request) -> Response:
    """Return one item of a conversation.

    It is looked for in the conversation's history: its own alias may name a turn of another conversation, or of a
    branch that is no part of this one.
    """
    selector, found = await _named(gateway, request)
    item_id = request.path_params["item_id"]
    if found.owner.native:
        return await _forwarded(gateway, request, found, "items", item_id)
    check_include_only(request)
    for item in distinct(await _history(gateway, selector)):
        if item.get("id") == item_id:
            return json_answer(item)
    raise await _item_not_found(gateway, selector.scope, item_id)


async def delete_item(gateway: Gateway, request: Request) -> Response:
    """Delete one item of a conversation; return the conversation."""
    selector, found = await _named(gateway, request)
    item_id = request.path_params["item_id"]
    if found.owner.native:
        return await _forwarded(gateway, request, found, "items", item_id)
    item = Selector(scope=selector.scope, kind=SelectorKind.ITEM, id=item_id)
    deleting = gateway.state().conversations.delete_item(selector, item, event_id=secrets.token_hex(16))
    verdict = await gateway.metrics.commit(deleting)
    if verdict.code in (Code.ITEM_UNKNOWN, Code.ALIAS_GONE):
        raise await _item_not_found(gateway, selector.scope, item_id)
    require_accepted(verdict)
    return json_answer(await _described(gateway, selector, found))


async def _body(gateway: Gateway, request: Request) -> bytes:
    media_type(request, JSON)
    return await read_body(request, gateway.config.limits.body_mib_max * MIB)


# What is there


async def _named(gateway: Gateway, request: Request) -> tuple[Selector, Found]:
    """Return the conversation that a path names. Raises ``Refusal`` for one that does not live."""
    conversation_id = request.path_params["conversation_id"]
    selector = Selector(scope=gateway.scope(request), kind=SelectorKind.CONVERSATION, id=conversation_id)
    return selector, await _living(gateway, selector)


async def _living(gateway: Gateway, selector: Selector) -> Found:
    return living(await gateway.look_up(selector.scope, selector.kind, selector.id), CONVERSATION)


async def _history(gateway: Gateway, selector: Selector) -> list[Any]:
    """Return all items of a portable conversation, oldest first."""
    assert gateway.router is not None, "the conversation was found"
    found = living(await gateway.router.load(selector, history=True), CONVERSATION)
    assert found.history is not None, "it was asked for"
    return found.history.items()


async def _described(gateway: Gateway, selector: Selector, found: Found) -> dict[str, Any]:
    """Return a portable conversation as the API shows it."""
    while True:
        try:
            metadata = await gateway.state().conversations.metadata(found, selector.scope)
        except ContentLost:
            # Replaced or deleted while it was read; the look-up knows, unless it is lost in earnest.
            again = await _living(gateway, selector)
            if again.metadata == found.metadata:
                raise
            found = again
        else:
            return _resource(selector.id, found, metadata)


def _resource(conversation_id: str, found: Found, metadata: dict[str, str]) -> dict[str, Any]:
    return {
        "id": conversation_id,
        "object": "conversation",
        "created_at": found.created_at_ms // 1000,
        "metadata": metadata,
    }


async def _item_not_found(gateway: Gateway, scope: Scope, item_id: str) -> Refusal:
    answer = await gateway.look_up(scope, SelectorKind.ITEM, item_id)
    reason = answer.reason if isinstance(answer, Gone) else "unknown"
    message = f"The conversation does not have this item: it is {reason}."
    return Refusal(404, message, code="item_not_found", param="item_id", reason=reason)


# What its owner has


async def _forwarded(
    gateway: Gateway, request: Request, found: Found, *below: str, body: bytes | None = None
) -> Response:
    """Ask the owner of a native conversation; ``below`` is what follows the conversation's ID in the path."""
    parts = (request.path_params["conversation_id"], *below)
    if any(part in (".", "..") for part in parts):
        # As dot segments (RFC 3986, 5.2.4) they would name something else at the owner, such as the conversation.
        raise Refusal(404, "No item has this ID.", code="item_not_found", param="item_id", reason="unknown")
    path = "/".join(("/conversations", *(quote(part, safe="") for part in parts)))
    return passed_on(await ask(gateway, request, owner_of(gateway, found.owner), path, body=body))


# What changes


async def _commit(gateway: Gateway, scope: Scope, event_id: str, committing: Awaitable[Verdict]) -> None:
    """Await a commit. Raises ``Refusal`` when the log refuses it, ``Unavailable``, and ``Unknown``.

    A client that is told ``Unknown`` tries again, under a new event ID. So the first attempt is given up before; if it
    is too late for that, it was stored.
    """
    try:
        verdict = await gateway.metrics.commit(committing)
    except Unknown:
        given_up = await gateway.run(gateway.state().committer.abandon(scope, event_id))
        if given_up is None or given_up.code is not Code.KEPT:
            raise
    else:
        require_accepted(verdict)


async def _delete_alias(gateway: Gateway, selector: Selector) -> None:
    deleting = gateway.state().conversations.delete(selector, event_id=secrets.token_hex(16))
    require_accepted(await gateway.metrics.commit(deleting))


async def _new_items(gateway: Gateway, scope: Scope, given: list[Any]) -> list[dict[str, Any]]:
    """Return the canonical items of a request. Raises ``Refusal`` and ``InvalidInput`` naming the field."""
    if len(given) > ITEMS_AT_ONCE_MAX:
        raise InvalidInput("items", f"has {len(given)} entries; at most {ITEMS_AT_ONCE_MAX} are allowed at once")
    for index, item in enumerate(given):
        if isinstance(item, dict) and is_reference(item):
            message = "An item of a conversation cannot be a reference to another one; send the item itself."
            raise Refusal(400, message, code="unsupported_item", param=f"items[{index}]")
    items = canonical_items(given, new_id, field="items")
    # Clients add the output of a response as they got it. Of two items with one ID, only the first could be deleted or
    # referred to, so the second gets an ID of its own.
    brought = [index for index, item in enumerate(given) if item.get("id") is not None]
    looked_up = [gateway.look_up(scope, SelectorKind.ITEM, items[index]["id"]) for index in brought]
    for index, answer in zip(brought, await asyncio.gather(*looked_up), strict=True):
        if not isinstance(answer, Missing):
            unnamed = {name: value for name, value in given[index].items() if name != "id"}
            items[index] = canonical_items([unnamed], new_id)[0]
    return items
