"""Every route of the service in one table: what it does, what it takes and answers, and an example of each.

``app`` registers the table and ``openapi`` describes it, so a route cannot be served without being documented.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api import conversations, examples, health, lookups, policies, replays, turns
from api.metrics import CONTENT_TYPE
from api.queries import (
    ConversationQuery,
    DeleteConversationQuery,
    DeleteItemQuery,
    DeleteQuery,
    HistoryQuery,
    LookupQuery,
    NoQuery,
    ReplayQuery,
)
from api.requests import NDJSON
from api.service import Service

PREFIX = "/ledger/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route."""

    method: str
    path: str
    handle: Callable[[Service, Request], Awaitable[Response]]
    tag: str
    answers: Mapping[int, object]
    """Examples of the answers that are not errors of every route, by status; their types are the schemas."""
    query: type[msgspec.Struct] = NoQuery
    query_example: Mapping[str, str | int | bool] = field(default_factory=dict)
    body: object | None = None
    """Example of the body; None: there is none."""
    takes_many: bool = False
    """The body is a list of such bodies, or one of them a line."""
    answers_text: str | None = None
    """Media type, when the answer is not one JSON value."""
    is_open: bool = False
    """Needs no token."""
    changes: bool = False
    """Ends in a verdict, or in an unknown outcome."""

    @property
    def name(self) -> str:
        """The operation's ID: ``turns.publish_batch``."""
        return f"{self.tag}.{self.handle.__name__}"


_VERDICT = {200: examples.ACCEPTED, 409: examples.REFUSED}
_FOUND = {200: examples.FOUND, 404: examples.MISSING, 410: examples.GONE}

OPERATIONS = (
    Operation(
        method="POST",
        path=f"{PREFIX}/turns",
        handle=turns.publish,
        tag="turns",
        body=examples.TURN,
        answers=_VERDICT,
        changes=True,
    ),
    Operation(
        method="POST",
        path=f"{PREFIX}/turns/batch",
        handle=turns.publish_batch,
        tag="turns",
        body=examples.TURN,
        takes_many=True,
        answers={200: examples.BATCH},
    ),
    Operation(
        method="POST",
        path=f"{PREFIX}/starts",
        handle=turns.start,
        tag="turns",
        body=examples.START,
        answers=_VERDICT,
        changes=True,
    ),
    Operation(
        method="POST",
        path=f"{PREFIX}/abandonments",
        handle=turns.abandon,
        tag="turns",
        body=examples.ABANDON,
        answers={**_VERDICT, 202: examples.WAITING},
    ),
    Operation(
        method="GET",
        path=f"{PREFIX}/lookup",
        handle=lookups.look_up,
        tag="lookups",
        query=LookupQuery,
        query_example={"kind": "response", "id": "resp_68af4030"},
        answers=_FOUND,
    ),
    Operation(
        method="POST",
        path=f"{PREFIX}/lookups",
        handle=lookups.look_up_many,
        tag="lookups",
        body=examples.LOOKUPS,
        answers={200: examples.LOOKED_UP},
    ),
    Operation(
        method="GET",
        path=f"{PREFIX}/history",
        handle=lookups.history,
        tag="lookups",
        query=HistoryQuery,
        query_example={"kind": "conversation", "id": "conv_1"},
        answers={**_FOUND, 200: examples.WITH_HISTORY, 409: examples.NATIVE_HISTORY},
    ),
    Operation(
        method="DELETE",
        path=f"{PREFIX}/responses",
        handle=conversations.delete_response,
        tag="deletions",
        query=DeleteQuery,
        query_example={"id": "resp_68af4030"},
        answers=_VERDICT,
        changes=True,
    ),
    Operation(
        method="GET",
        path=f"{PREFIX}/conversations",
        handle=lookups.conversation,
        tag="conversations",
        query=ConversationQuery,
        query_example={"id": "conv_1"},
        answers={**_FOUND, 200: examples.CONVERSATION_FOUND},
    ),
    Operation(
        method="POST",
        path=f"{PREFIX}/conversations",
        handle=conversations.create,
        tag="conversations",
        body=examples.CONVERSATION,
        answers=_VERDICT,
        changes=True,
    ),
    Operation(
        method="PATCH",
        path=f"{PREFIX}/conversations",
        handle=conversations.update,
        tag="conversations",
        body=examples.METADATA,
        answers=_VERDICT,
        changes=True,
    ),
    Operation(
        method="DELETE",
        path=f"{PREFIX}/conversations",
        handle=conversations.delete,
        tag="conversations",
        query=DeleteConversationQuery,
        query_example={"id": "conv_1", "cascade": True},
        answers=_VERDICT,
        changes=True,
    ),
    Operation(
        method="POST",
        path=f"{PREFIX}/conversations/items",
        handle=conversations.append_items,
        tag="conversations",
        body=examples.ITEMS,
        answers=_VERDICT,
        changes=True,
    ),
    Operation(
        method="DELETE",
        path=f"{PREFIX}/conversations/items",
        handle=conversations.delete_item,
        tag="conversations",
        query=DeleteItemQuery,
        query_example={"id": "conv_1", "item_id": "msg_1"},
        answers=_VERDICT,
        changes=True,
    ),
    Operation(
        method="POST",
        path=f"{PREFIX}/erasures",
        handle=conversations.erase,
        tag="deletions",
        body=examples.ERASURE,
        answers=_VERDICT,
        changes=True,
    ),
    Operation(
        method="GET",
        path=f"{PREFIX}/replay",
        handle=replays.replay,
        tag="audit",
        query=ReplayQuery,
        query_example={"kind": "response", "id": "resp_68af4030"},
        answers={200: examples.REPLAYED},
        answers_text=NDJSON,
    ),
    Operation(
        method="GET", path=f"{PREFIX}/policy", handle=policies.show, tag="policy", answers={200: examples.POLICY}
    ),
    Operation(
        method="PATCH",
        path=f"{PREFIX}/policy",
        handle=policies.change,
        tag="policy",
        body=examples.CHANGES,
        answers={200: examples.POLICY},
    ),
    Operation(
        method="PUT",
        path=f"{PREFIX}/policy",
        handle=policies.replace,
        tag="policy",
        body=examples.CHANGES,
        answers={200: examples.POLICY},
    ),
    Operation(
        method="GET",
        path="/health/live",
        handle=health.live,
        tag="health",
        answers={200: health.Live()},
        is_open=True,
    ),
    Operation(
        method="GET",
        path="/health/ready",
        handle=health.ready,
        tag="health",
        answers={
            200: health.Ready(ready=True),
            503: health.Ready(ready=False, reason="partition 3 is 120 offsets behind"),
        },
        is_open=True,
    ),
    Operation(
        method="GET",
        path="/metrics",
        handle=health.metrics,
        tag="health",
        answers={200: examples.METRICS},
        answers_text=CONTENT_TYPE,
        is_open=True,
    ),
)
