"""Every route of the gateway in one table; ``app`` registers it and ``openapi`` describes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from api.gateway import conversations, input_items, models, responses, retrieval
from api.gateway.service import Gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route, without its prefix."""

    method: str
    path: str
    handle: Callable[[Gateway, Request], Awaitable[Response]]
    tag: str

    @property
    def name(self) -> str:
        """The operation's ID: ``responses.create``."""
        return f"{self.tag}.{self.handle.__name__}"


_RESPONSE, _CONVERSATION = "/responses/{response_id}", "/conversations/{conversation_id}"
_ITEM = f"{_CONVERSATION}/items/{{item_id}}"

OPERATIONS = (
    Operation(method="POST", path="/responses", handle=responses.create, tag="responses"),
    Operation(method="GET", path=_RESPONSE, handle=retrieval.retrieve, tag="responses"),
    Operation(method="DELETE", path=_RESPONSE, handle=retrieval.delete, tag="responses"),
    Operation(method="POST", path=f"{_RESPONSE}/cancel", handle=retrieval.cancel, tag="responses"),
    Operation(method="GET", path=f"{_RESPONSE}/input_items", handle=input_items.list_input_items, tag="responses"),
    Operation(method="POST", path="/conversations", handle=conversations.create_conversation, tag="conversations"),
    Operation(method="GET", path=_CONVERSATION, handle=conversations.get_conversation, tag="conversations"),
    Operation(method="POST", path=_CONVERSATION, handle=conversations.update_conversation, tag="conversations"),
    Operation(method="DELETE", path=_CONVERSATION, handle=conversations.delete_conversation, tag="conversations"),
    Operation(method="POST", path=f"{_CONVERSATION}/items", handle=conversations.create_items, tag="conversations"),
    Operation(method="GET", path=f"{_CONVERSATION}/items", handle=conversations.list_items, tag="conversations"),
    Operation(method="GET", path=_ITEM, handle=conversations.get_item, tag="conversations"),
    Operation(
        method="DELETE",
        path=f"{_CONVERSATION}/items/{{item_id}}",
        handle=conversations.delete_item,
        tag="conversations",
    ),
    Operation(method="GET", path="/models", handle=models.list_models, tag="models"),
    Operation(method="GET", path="/models/{model}", handle=models.retrieve_model, tag="models"),
)
