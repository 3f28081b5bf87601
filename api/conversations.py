"""Routes that change something outside a turn: conversations, their items, deletions and erasures."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Role
from api.lookups import selector_of
from api.queries import DeleteConversationQuery, DeleteItemQuery, DeleteQuery
from api.requests import CONTENT_BODY_BYTES_MAX, read_json, read_query
from api.service import Service, event_id_of
from ledger.bodies import ConversationBody, ErasureBody, ItemsBody, MetadataBody
from ledger.conversations import LEDGER_OWNER
from ledger.turn import SelectorKind
from ledger.wire import owner_of, revision_of

_conversation = msgspec.json.Decoder(ConversationBody)
_metadata = msgspec.json.Decoder(MetadataBody)
_items = msgspec.json.Decoder(ItemsBody)
_erasure = msgspec.json.Decoder(ErasureBody)


async def create(service: Service, request: Request) -> Response:
    """Create a conversation, with metadata and first items if given."""
    caller = service.caller(request, Role.ROUTER)
    body = await read_json(request, _conversation, bytes_max=CONTENT_BODY_BYTES_MAX)
    event_id = event_id_of(body.event_id)
    creating = service.ledger.conversations.create(
        selector_of(caller, body.principal, body.route, SelectorKind.CONVERSATION, body.id),
        event_id=event_id,
        owner=LEDGER_OWNER if body.owner is None else owner_of(body.owner),
        metadata=body.metadata,
        items=body.items,
        item_ids=tuple(body.item_ids),
    )
    return await service.verdict(event_id, creating)


async def update(service: Service, request: Request) -> Response:
    """Replace a conversation's metadata."""
    caller = service.caller(request, Role.ROUTER)
    body = await read_json(request, _metadata, bytes_max=CONTENT_BODY_BYTES_MAX)
    event_id = event_id_of(body.event_id)
    updating = service.ledger.conversations.update(
        selector_of(caller, body.principal, body.route, SelectorKind.CONVERSATION, body.id),
        event_id=event_id,
        metadata=body.metadata,
        expected_revision=revision_of(body.expected_revision),
    )
    return await service.verdict(event_id, updating)


async def delete(service: Service, request: Request) -> Response:
    """Delete a conversation, with its responses on request."""
    caller = service.caller(request, Role.ROUTER)
    query = read_query(request, DeleteConversationQuery)
    event_id = event_id_of(query.event_id)
    selector = selector_of(caller, query.principal, query.route, SelectorKind.CONVERSATION, query.id)
    deleting = service.ledger.conversations.delete(selector, event_id=event_id, cascade=query.cascade)
    return await service.verdict(event_id, deleting)


async def append_items(service: Service, request: Request) -> Response:
    """Append items to a conversation."""
    caller = service.caller(request, Role.ROUTER)
    body = await read_json(request, _items, bytes_max=CONTENT_BODY_BYTES_MAX)
    event_id = event_id_of(body.event_id)
    appending = service.ledger.conversations.append_items(
        selector_of(caller, body.principal, body.route, SelectorKind.CONVERSATION, body.id),
        event_id=event_id,
        items=body.items,
        item_ids=tuple(body.item_ids),
        expected_revision=revision_of(body.expected_revision),
    )
    return await service.verdict(event_id, appending)


async def delete_item(service: Service, request: Request) -> Response:
    """Delete one item of a conversation."""
    caller = service.caller(request, Role.ROUTER)
    query = read_query(request, DeleteItemQuery)
    event_id = event_id_of(query.event_id)
    deleting = service.ledger.conversations.delete_item(
        selector_of(caller, query.principal, query.route, SelectorKind.CONVERSATION, query.id),
        selector_of(caller, query.principal, query.route, SelectorKind.ITEM, query.item_id, "item_id"),
        event_id=event_id,
    )
    return await service.verdict(event_id, deleting)


async def delete_response(service: Service, request: Request) -> Response:
    """Delete a response."""
    caller = service.caller(request, Role.ROUTER)
    query = read_query(request, DeleteQuery)
    event_id = event_id_of(query.event_id)
    selector = selector_of(caller, query.principal, query.route, SelectorKind.RESPONSE, query.id)
    return await service.verdict(event_id, service.ledger.conversations.delete_response(selector, event_id=event_id))


async def erase(service: Service, request: Request) -> Response:
    """Erase everything of a principal, on every route."""
    caller = service.caller(request, Role.ADMIN)
    body = await read_json(request, _erasure)
    event_id = event_id_of(body.event_id)
    scope = caller.principal_scope(body.principal)
    return await service.verdict(event_id, service.ledger.conversations.erase_principal(scope, event_id=event_id))
