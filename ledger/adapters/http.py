"""The ledger service as a Python object: client of ``api``, and the port ``Router`` over it.

The service decides the namespace by the token; the one in a scope is not sent. What goes wrong on the way is told
apart as the ledger does it: a change that certainly did not reach the service, or a read that got no answer, is
``Unavailable('service')``; a change that was sent and not answered is ``Unknown``.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Self

import httpx
import msgspec
import orjson

from ledger.adapters.http_answers import (
    answer_in,
    decoded,
    error_of,
    failure,
    found,
    policy_in,
    unreachable,
    verdict_in,
)
from ledger.answer import Answer, Token, Verdict
from ledger.bodies import (
    AbandonBody,
    BatchAnswer,
    ConversationBody,
    ErasureBody,
    ErrorAnswer,
    ItemsBody,
    LookupsAnswer,
    LookupsBody,
    MetadataBody,
    SelectorBody,
)
from ledger.commit import TurnStart
from ledger.conversations import LEDGER_OWNER
from ledger.errors import InvalidInput, LedgerError, Unknown
from ledger.policy import Policy
from ledger.turn import Owner, Revision, Scope, Selector, Turn
from ledger.wire import absence_of, found_of, owner_body, start_body, turn_body, verdict_of

BASE_URL = "http://127.0.0.1:8420"
TIMEOUT_S = 10.0
"""For an answer: above the service's own deadline of a commit, so that the service is the one to say ``Unknown``."""
CONNECT_TIMEOUT_S = 2.0
CONNECTIONS_MAX = 128
"""Requests at once; more wait for a connection."""

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol, httpx.ProxyError)
"""Errors of httpx that come before the first byte of a request has left."""
_PREFIX = "/ledger/v1"
_JSON = {"content-type": "application/json"}

_batch = msgspec.json.Decoder(BatchAnswer)
_lookups = msgspec.json.Decoder(LookupsAnswer)


class LedgerClient:
    """A client of one service; also an async context manager.

    Every method raises the ledger's own errors, as the same call in process would.
    """

    def __init__(
        self,
        base_url: str = BASE_URL,
        *,
        token: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """``transport``: ``httpx.ASGITransport(app=...)`` asks an application in this process."""
        self._client = httpx.AsyncClient(
            base_url=base_url,
            headers={} if token is None else {"authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX),
            transport=transport,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Turns

    async def publish(self, turn: Turn) -> Verdict:
        """Commit a turn."""
        return await self._change("POST", "/turns", turn.event_id, body=turn_body(turn))

    async def publish_batch(self, turns: Sequence[Turn]) -> list[Verdict | LedgerError]:
        """Commit many turns, one principal's in the order given; return a verdict or an error for each."""
        try:
            response = await self._request("POST", "/turns/batch", "batch", body=[turn_body(turn) for turn in turns])
        except Unknown:
            return [Unknown(turn.event_id, "the service did not answer the batch") for turn in turns]
        results: list[Verdict | LedgerError] = []
        for result in decoded(response, _batch).results:
            if result.verdict is not None:
                results.append(verdict_of(result.verdict))
            else:
                assert result.error is not None, "a result is a verdict or an error"
                results.append(error_of(result.status, result.error, turns[result.index].event_id))
        return results

    async def start(self, start: TurnStart) -> Verdict:
        """Announce a turn or renew its lease."""
        return await self._change("POST", "/starts", start.event_id, body=start_body(start))

    async def abandon(self, scope: Scope, event_id: str) -> Verdict | None:
        """Give up a commit; None: the service keeps it on disk and retries it."""
        body = AbandonBody(principal=scope.principal, route=scope.route, event_id=event_id)
        response = await self._request("POST", "/abandonments", event_id, body=body)
        return None if response.status_code == 202 else verdict_in(response, event_id)

    # Reads

    async def load(self, selector: Selector, *, strong: bool = False, token: Token | None = None) -> Answer:
        """Answer who owns an ID."""
        params = {"kind": selector.kind.name.lower(), "id": selector.id, **_read_after(token)}
        if strong:
            params["strong"] = "true"
        return answer_in(await self._request("GET", "/lookup", None, params=_scoped(selector.scope, params)))

    async def load_many(self, selectors: Sequence[Selector], *, strong: bool = False) -> list[Answer | LedgerError]:
        """Answer many IDs; return an answer or an error for each."""
        asked = [
            SelectorBody(
                principal=selector.scope.principal,
                route=selector.scope.route,
                kind=selector.kind.name.lower(),
                id=selector.id,
                strong=strong,
            )
            for selector in selectors
        ]
        response = await self._request("POST", "/lookups", None, body=LookupsBody(selectors=asked))
        results: list[Answer | LedgerError] = []
        for result in decoded(response, _lookups).results:
            if result.found is not None:
                results.append(found_of(result.found))
            else:
                assert result.error is not None, "a result is an answer or an error"
                results.append(absence_of(result.error) or error_of(result.status, result.error, None))
        return results

    async def history(self, selector: Selector, *, token: Token | None = None) -> Answer:
        """Answer an ID with its whole history."""
        params = {"kind": selector.kind.name.lower(), "id": selector.id, **_read_after(token)}
        return answer_in(await self._request("GET", "/history", None, params=_scoped(selector.scope, params)))

    async def conversation(self, selector: Selector) -> tuple[Answer, dict[str, Any]]:
        """Answer a conversation, and its metadata."""
        params = _scoped(selector.scope, {"id": selector.id})
        response = await self._request("GET", "/conversations", None, params=params)
        metadata = decoded(response, found).metadata if response.status_code == 200 else None
        return answer_in(response), metadata or {}

    # Changes outside a turn; each as in ``ledger.conversations``

    async def delete_response(self, selector: Selector, *, event_id: str | None = None) -> Verdict:
        """Delete a response."""
        return await self._change("DELETE", "/responses", event_id, selector.scope, params={"id": selector.id})

    async def create_conversation(
        self,
        selector: Selector,
        *,
        event_id: str | None = None,
        owner: Owner = LEDGER_OWNER,
        metadata: dict[str, Any] | None = None,
        items: list[Any] | None = None,
        item_ids: tuple[str, ...] = (),
    ) -> Verdict:
        """Create a conversation."""
        event_id = _named(event_id)
        body = ConversationBody(
            principal=selector.scope.principal,
            route=selector.scope.route,
            event_id=event_id,
            id=selector.id,
            owner=owner_body(owner),
            metadata=metadata or {},
            items=items or [],
            item_ids=list(item_ids),
        )
        return await self._change("POST", "/conversations", event_id, body=body)

    async def update_conversation(
        self,
        selector: Selector,
        *,
        metadata: dict[str, Any],
        event_id: str | None = None,
        expected_revision: Revision | None = None,
    ) -> Verdict:
        """Replace a conversation's metadata."""
        event_id = _named(event_id)
        body = MetadataBody(
            principal=selector.scope.principal,
            route=selector.scope.route,
            event_id=event_id,
            id=selector.id,
            metadata=metadata,
            expected_revision=expected_revision,
        )
        return await self._change("PATCH", "/conversations", event_id, body=body)

    async def delete_conversation(
        self, selector: Selector, *, event_id: str | None = None, cascade: bool = False
    ) -> Verdict:
        """Delete a conversation, with its responses on request."""
        params = {"id": selector.id, "cascade": "true" if cascade else "false"}
        return await self._change("DELETE", "/conversations", event_id, selector.scope, params=params)

    async def append_items(
        self,
        selector: Selector,
        *,
        items: list[Any],
        item_ids: tuple[str, ...] = (),
        event_id: str | None = None,
        expected_revision: Revision | None = None,
    ) -> Verdict:
        """Append items to a conversation."""
        event_id = _named(event_id)
        body = ItemsBody(
            principal=selector.scope.principal,
            route=selector.scope.route,
            event_id=event_id,
            id=selector.id,
            items=items,
            item_ids=list(item_ids),
            expected_revision=expected_revision,
        )
        return await self._change("POST", "/conversations/items", event_id, body=body)

    async def delete_item(self, conversation: Selector, item: Selector, *, event_id: str | None = None) -> Verdict:
        """Delete one item of a conversation."""
        params = {"id": conversation.id, "item_id": item.id}
        return await self._change("DELETE", "/conversations/items", event_id, conversation.scope, params=params)

    async def erase(self, scope: Scope, *, event_id: str | None = None) -> Verdict:
        """Erase everything of the scope's principal, on every route."""
        event_id = _named(event_id)
        return await self._change(
            "POST", "/erasures", event_id, body=ErasureBody(principal=scope.principal, event_id=event_id)
        )

    # Audit, policy, state

    async def replay(
        self,
        *,
        selector: Selector | None = None,
        principal: str | None = None,
        until_offset: int | None = None,
        until_ms: int | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of the token's namespace with their verdicts, as ``audit.Replayed.described`` gives them."""
        params: dict[str, str] = {}
        if selector is not None:
            params = _scoped(selector.scope, {"kind": selector.kind.name.lower(), "id": selector.id})
        optional = {"principal": principal, "until_offset": until_offset, "until_ms": until_ms}
        params |= {name: str(value) for name, value in optional.items() if value is not None}
        try:
            async with self._client.stream("GET", f"{_PREFIX}/replay", params=params) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise failure(response, None)
                async for line in response.aiter_lines():
                    event: dict[str, Any] = orjson.loads(line)
                    if "error" in event:
                        raise error_of(503, msgspec.convert(event, ErrorAnswer).error, None)
                    yield event
        except httpx.TransportError as error:
            raise unreachable(error) from error

    async def policy(self) -> tuple[Policy, int]:
        """Return the policy and its generation."""
        return policy_in(await self._request("GET", "/policy", None))

    async def change_policy(self, changes: Mapping[str, int | bool]) -> tuple[Policy, int]:
        """Change some fields of the policy; return it and its generation. Can be run again to finish."""
        return policy_in(await self._request("PATCH", "/policy", None, body=dict(changes)))

    async def not_ready_reason(self) -> str:
        """Return why the service must not get traffic now, or an empty string. Raises ``Unavailable``."""
        return (await self.readiness())[0]

    async def readiness(self) -> tuple[str, str]:
        """Return the same, and which partitions the service holds, empty: all. Raises ``Unavailable``."""
        response = await self._get("/health/ready")
        if response.status_code not in (200, 503):
            return response.text, ""
        body = response.json()
        return str(body.get("reason", "")), str(body.get("partitions", ""))

    async def metrics(self) -> str:
        """Return the service's metrics in Prometheus' text format. Raises ``Unavailable``."""
        return (await self._get("/metrics")).text

    # The way there and back

    async def _change(
        self,
        method: str,
        path: str,
        event_id: str | None,
        scope: Scope | None = None,
        *,
        body: Any = None,
        params: dict[str, str] | None = None,
    ) -> Verdict:
        event_id = _named(event_id)
        if params is not None and scope is not None:
            params = _scoped(scope, {**params, "event_id": event_id})
        return verdict_in(await self._request(method, path, event_id, body=body, params=params), event_id)

    async def _request(
        self, method: str, path: str, event_id: str | None, *, body: Any = None, params: dict[str, str] | None = None
    ) -> httpx.Response:
        """Send a request and return its answer, unless that is an error; ``event_id`` is given for a change."""
        content = None if body is None else _encoded(body)
        headers = None if body is None else _JSON
        try:
            response = await self._client.request(
                method, f"{_PREFIX}{path}", content=content, headers=headers, params=params
            )
        except httpx.TransportError as error:
            if event_id is None or isinstance(error, _NOT_SENT):
                raise unreachable(error) from error
            raise Unknown(event_id, f"the service did not answer ({type(error).__name__})") from error
        if response.is_success or response.status_code in (404, 409, 410):
            return response
        raise failure(response, event_id)

    async def _get(self, path: str) -> httpx.Response:
        try:
            return await self._client.get(path)
        except httpx.TransportError as error:
            raise unreachable(error) from error


class HttpRouter:
    """The port ``Router`` over a service, which may run anywhere."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client

    async def load(self, selector: Selector, *, history: bool = False, token: Token | None = None) -> Answer:
        if history:
            return await self._client.history(selector, token=token)
        return await self._client.load(selector, token=token)

    async def commit(self, turn: Turn) -> Verdict:
        return await self._client.publish(turn)

    async def abandon(self, scope: Scope, event_id: str) -> Verdict | None:
        """Raises ``Unavailable`` or ``Unknown`` when the service could not be asked: then nobody retries but the
        caller."""
        return await self._client.abandon(scope, event_id)


def _encoded(body: Any) -> bytes:
    """Return a body as JSON, as strictly as the ledger encodes contents. Raises ``InvalidInput``."""
    try:
        return orjson.dumps(body, default=msgspec.structs.asdict)
    except (TypeError, RecursionError) as error:
        raise InvalidInput("content", f"is not JSON: {error}") from None


def _named(event_id: str | None) -> str:
    """Return the caller's event ID, or a new one: without it nobody could ask what became of a change."""
    return secrets.token_hex(16) if event_id is None else event_id


def _scoped(scope: Scope, params: dict[str, str]) -> dict[str, str]:
    return {"principal": scope.principal, "route": scope.route, **params}


def _read_after(token: Token | None) -> dict[str, str]:
    return {} if token is None else {"token": str(token)}
