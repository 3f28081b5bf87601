"""Routes that read: who owns an ID, many at once, and histories."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Caller, Role
from api.errors import error_answer
from api.queries import ConversationQuery, HistoryQuery, LookupQuery
from api.requests import read_json, read_query
from api.service import Service, answer
from api.split import Split
from ledger.answer import Answer, Found, Gone, Missing, Token
from ledger.bodies import LOOKUPS_MAX, LookupResult, LookupsAnswer, LookupsBody, SelectorBody
from ledger.errors import LedgerError, TooLarge
from ledger.turn import ID_BYTES_MAX, Selector, SelectorKind, checked_text
from ledger.wire import absence_body, found_body, kind_of

_lookups = msgspec.json.Decoder(LookupsBody)
_results = msgspec.json.Decoder(LookupsAnswer)
_encoder = msgspec.json.Encoder()


async def look_up(service: Service, request: Request) -> Response:
    """Answer who owns an ID."""
    caller = service.caller(request, Role.ROUTER, Role.READER)
    query = read_query(request, LookupQuery)
    selector = selector_of(caller, query.principal, query.route, kind_of(query.kind), query.id)
    found = await _load(service, selector, query.token, strong=query.strong)
    return answer(found_body(found)) if isinstance(found, Found) else absence(found)


async def history(service: Service, request: Request) -> Response:
    """Answer an ID with its whole history."""
    caller = service.caller(request, Role.ROUTER, Role.READER)
    query = read_query(request, HistoryQuery)
    selector = selector_of(caller, query.principal, query.route, kind_of(query.kind), query.id)
    token = None if query.token is None else Token.parse(query.token)
    loading = service.ledger.reader.load(selector, history=True, token=token)
    found = await service.metrics.lookup(selector.kind, loading)
    return answer(found_body(found)) if isinstance(found, Found) else absence(found)


async def conversation(service: Service, request: Request) -> Response:
    """Answer a conversation with its metadata."""
    caller = service.caller(request, Role.ROUTER, Role.READER)
    query = read_query(request, ConversationQuery)
    selector = selector_of(caller, query.principal, query.route, SelectorKind.CONVERSATION, query.id)
    found = await _load(service, selector, None, strong=True)
    if not isinstance(found, Found):
        return absence(found)
    return answer(found_body(found, await service.ledger.conversations.metadata(found, selector.scope)))


async def look_up_many(service: Service, request: Request) -> Response:
    """Answer many IDs; 200 with one result for each."""
    caller = service.caller(request, Role.ROUTER, Role.READER)
    body = await read_json(request, _lookups)
    if len(body.selectors) > LOOKUPS_MAX:
        raise TooLarge("selectors", f"has {len(body.selectors)} entries; at most {LOOKUPS_MAX} are allowed")
    others = Split(
        service=service,
        request=request,
        result=LookupResult,
        decode=lambda raw: _results.decode(raw).results,
        listed_as="selectors",
        body_of=lambda indexes: _encoder.encode(replace(body, selectors=[body.selectors[index] for index in indexes])),
        answers_within_s=lambda _: service.ledger.settings.read_timeout_s,
    )
    local, results = [], dict[int, LookupResult]()
    for index, asked in enumerate(body.selectors):
        principal = body.principal if asked.principal is None else asked.principal
        route = body.route if asked.route is None else asked.route
        try:
            selector = selector_of(caller, principal, route, kind_of(asked.kind), asked.id)
        except LedgerError as error:
            results[index] = others.failed(index, error)
            continue
        if not others.takes(index, selector.scope):
            local.append(_look_up_one(service, others, index, selector, asked))
    answered, found = await asyncio.gather(others.results(), asyncio.gather(*local))
    results |= answered | {one.index: one for one in found}
    return answer(LookupsAnswer(results=[results[index] for index in range(len(body.selectors))]))


async def _look_up_one(
    service: Service, split: Split[LookupResult], index: int, selector: Selector, asked: SelectorBody
) -> LookupResult:
    try:
        found = await _load(service, selector, asked.token, strong=asked.strong)
    except LedgerError as error:
        return split.failed(index, error)
    if isinstance(found, Found):
        return LookupResult(index=index, status=200, found=found_body(found))
    return LookupResult(index=index, status=absence_status(found), error=absence_body(found))


async def _load(service: Service, selector: Selector, token: str | None, *, strong: bool) -> Answer:
    read_after = None if token is None else Token.parse(token)
    loading = service.ledger.reader.load(selector, strong=strong, token=read_after)
    return await service.metrics.lookup(selector.kind, loading)


def selector_of(
    caller: Caller, principal: str | None, route: str | None, kind: SelectorKind, opaque_id: str, field: str = "id"
) -> Selector:
    """Return a checked selector. Raises ``InvalidInput`` naming ``field``, ``NotPermitted``."""
    checked_text(field, opaque_id, ID_BYTES_MAX)
    return Selector(scope=caller.scope(principal, route), kind=kind, id=opaque_id)


def absence_status(found: Missing | Gone) -> int:
    """Return 404 for what never existed and 410 for what is gone."""
    return 404 if isinstance(found, Missing) else 410


def absence(found: Missing | Gone) -> Response:
    """Answer an ID that is not there."""
    return error_answer(absence_status(found), absence_body(found))
