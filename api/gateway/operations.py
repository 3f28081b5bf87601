"""Every route of the gateway in one table; ``app`` registers it and ``openapi`` describes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from api.gateway import conversations, examples, input_items, models, responses, retrieval
from api.gateway.schemas import INCLUDE, PAGE, STREAM
from api.gateway.service import Gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a body looks like: the name of its schema, and an example."""

    schema: str
    example: Mapping[str, Any]


class Asks(Enum):
    """Whom an operation may call."""

    NOBODY = "nobody"
    OWNER = "owner"
    """The target that has what is asked for, where that is native."""
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route, without its prefix."""

    method: str
    path: str
    handle: Callable[[Gateway, Request], Awaitable[Response]]
    tag: str
    answer: Shape
    """Its success, which is always 200."""
    frame: Shape | None = None
    """Of the stream that it answers instead when that is asked for."""
    body: Shape | None = None
    query: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Schemas of its query parameters, by name; none is required."""
    needs_state: bool = True
    """Asks the ledger, and with it the target that owns what is asked for."""
    asks: Asks = Asks.OWNER
    """Whom it may have to wait for besides the ledger."""
    takes_key: bool = False
    """An ``Idempotency-Key`` makes a repeated request the same one."""

    @property
    def name(self) -> str:
        """The operation's ID: ``responses.create``."""
        return f"{self.tag}.{self.handle.__name__}"


_RESPONSE, _CONVERSATION = "/responses/{response_id}", "/conversations/{conversation_id}"
_ITEMS = f"{_CONVERSATION}/items"
_ITEM = f"{_ITEMS}/{{item_id}}"

_RESPONSE_SHAPE = Shape(schema="Response", example=examples.RESPONSE)
_FRAME_SHAPE = Shape(schema="Frame", example=examples.FRAME)
_CONVERSATION_SHAPE = Shape(schema="Conversation", example=examples.CONVERSATION)
_LIST_SHAPE = Shape(schema="ItemList", example=examples.ITEM_LIST)

OPERATIONS = (
    Operation(
        method="POST",
        path="/responses",
        handle=responses.create,
        tag="responses",
        body=Shape(schema="CreateResponse", example=examples.CREATE),
        answer=_RESPONSE_SHAPE,
        frame=_FRAME_SHAPE,
        asks=Asks.MODEL,
        takes_key=True,
    ),
    Operation(
        method="GET",
        path=_RESPONSE,
        handle=retrieval.retrieve,
        tag="responses",
        query={**STREAM, **INCLUDE},
        answer=_RESPONSE_SHAPE,
        frame=_FRAME_SHAPE,
    ),
    Operation(
        method="DELETE",
        path=_RESPONSE,
        handle=retrieval.delete,
        tag="responses",
        answer=Shape(schema="DeletedResponse", example=examples.DELETED_RESPONSE),
    ),
    Operation(
        method="POST",
        path=f"{_RESPONSE}/cancel",
        handle=retrieval.cancel,
        tag="responses",
        answer=Shape(schema="Response", example=examples.CANCELLED),
    ),
    Operation(
        method="GET",
        path=f"{_RESPONSE}/input_items",
        handle=input_items.list_input_items,
        tag="responses",
        query=PAGE,
        answer=_LIST_SHAPE,
    ),
    Operation(
        method="POST",
        path="/conversations",
        handle=conversations.create_conversation,
        tag="conversations",
        body=Shape(schema="CreateConversation", example=examples.CREATE_CONVERSATION),
        answer=_CONVERSATION_SHAPE,
        asks=Asks.NOBODY,
    ),
    Operation(
        method="GET",
        path=_CONVERSATION,
        handle=conversations.get_conversation,
        tag="conversations",
        answer=_CONVERSATION_SHAPE,
    ),
    Operation(
        method="POST",
        path=_CONVERSATION,
        handle=conversations.update_conversation,
        tag="conversations",
        body=Shape(schema="UpdateConversation", example=examples.UPDATE_CONVERSATION),
        answer=_CONVERSATION_SHAPE,
    ),
    Operation(
        method="DELETE",
        path=_CONVERSATION,
        handle=conversations.delete_conversation,
        tag="conversations",
        answer=Shape(schema="DeletedConversation", example=examples.DELETED_CONVERSATION),
    ),
    Operation(
        method="POST",
        path=_ITEMS,
        handle=conversations.create_items,
        tag="conversations",
        query=INCLUDE,
        body=Shape(schema="CreateItems", example=examples.CREATE_ITEMS),
        answer=_LIST_SHAPE,
    ),
    Operation(
        method="GET",
        path=_ITEMS,
        handle=conversations.list_items,
        tag="conversations",
        query=PAGE,
        answer=_LIST_SHAPE,
    ),
    Operation(
        method="GET",
        path=_ITEM,
        handle=conversations.get_item,
        tag="conversations",
        query=INCLUDE,
        answer=Shape(schema="Item", example=examples.MESSAGE),
    ),
    Operation(
        method="DELETE",
        path=_ITEM,
        handle=conversations.delete_item,
        tag="conversations",
        answer=_CONVERSATION_SHAPE,
    ),
    Operation(
        method="GET",
        path="/models",
        handle=models.list_models,
        tag="models",
        answer=Shape(schema="ModelList", example=examples.MODEL_LIST),
        asks=Asks.NOBODY,
        needs_state=False,
    ),
    Operation(
        method="GET",
        path="/models/{model}",
        handle=models.retrieve_model,
        tag="models",
        answer=Shape(schema="Model", example=examples.MODEL),
        asks=Asks.NOBODY,
        needs_state=False,
    ),
)
