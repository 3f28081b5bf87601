"""The route of the audit: the log again, as a stream of one JSON object a line.

Each replay folds the log into rows of its own, which are thrown away. What goes wrong after the first line has left is
the last line: an object with ``error``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from api.auth import Caller, Role
from api.errors import status_and_body
from api.queries import ReplayQuery
from api.requests import NDJSON, read_query
from api.service import Service
from ledger.alias import partition_of
from ledger.audit import Filter
from ledger.audit import replay as replay_log
from ledger.bodies import ErrorAnswer
from ledger.errors import InvalidInput, LedgerError, NotPermitted, Unavailable
from ledger.turn import ID_BYTES_MAX, Offset, Partition, SelectorKind, checked_text
from ledger.turn import Selector as LedgerSelector
from ledger.wire import kind_of

_encoder = msgspec.json.Encoder()


class _LineStream(StreamingResponse):
    """Lines that are closed when the client goes, so that the log and the scratch rows are released at once."""

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        super().__init__(_joined(first, rest), media_type=NDJSON)
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            await super().__call__(scope, receive, send)


async def _joined(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield ``first`` and then ``rest``; an error becomes the last line, as the status has left already."""
    if first:
        yield first
    try:
        async for line in rest:
            yield line
    except LedgerError as error:
        yield _encoder.encode(ErrorAnswer(error=status_and_body(error)[1])) + b"\n"


async def replay(service: Service, request: Request) -> Response:
    """Stream the events of the caller's namespace with their verdicts."""
    caller = service.caller(request, Role.AUDITOR)
    query = read_query(request, ReplayQuery)
    if query.namespace not in (None, caller.namespace):
        raise NotPermitted("the token does not allow this namespace")
    shown, partitions = _selected(service, caller, query)
    lines = _lines(service, shown, partitions)
    try:
        first = await anext(lines)
    except StopAsyncIteration:
        first = b""
    return _LineStream(first, lines)


def _selected(service: Service, caller: Caller, query: ReplayQuery) -> tuple[Filter, list[Partition]]:
    """Return what a query selects and the partitions where that can be."""
    alias_key, count = service.ledger.alias_key, service.ledger.replica.partition_count
    if (query.kind is None) != (query.id is None):
        raise InvalidInput("id" if query.id is None else "kind", "kind and id must be given together")
    scopes = caller.principal_scopes(query.principal)
    partitions = [Partition(number) for number in range(count)]
    if scopes is not None:
        partitions = sorted({partition_of(alias_key.principal(scope), count) for scope in scopes})
    aliases: frozenset[bytes] = frozenset()
    if query.kind is not None and query.id is not None:
        kind = kind_of(query.kind)
        if kind is SelectorKind.ITEM:
            raise InvalidInput("kind", "must be response or conversation")
        checked_text("id", query.id, ID_BYTES_MAX)
        scope = caller.scope(query.principal, query.route)
        aliases = frozenset({alias_key.alias(LedgerSelector(scope=scope, kind=kind, id=query.id))})
        partitions = [service.ledger.reader.partition(scope)]
    elif query.route is not None:
        raise InvalidInput("route", "selects nothing without kind and id: the log does not say an event's route")
    shown = Filter(
        aliases=aliases,
        principals=frozenset() if scopes is None else frozenset(map(alias_key.principal, scopes)),
        namespace=caller.namespace,
        until_offset=None if query.until_offset is None else Offset(query.until_offset),
        until_ms=query.until_ms,
    )
    return shown, partitions


async def _lines(service: Service, shown: Filter, partitions: list[Partition]) -> AsyncGenerator[bytes, None]:
    timeout_s = service.ledger.settings.read_timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            await service.replays.acquire()
    except TimeoutError:
        raise Unavailable("deadline", f"other replays did not end within {timeout_s:.3f} s") from None
    try:
        with service.scratch() as store:
            async with aclosing(replay_log(service.ledger.log, store, partitions, shown)) as events:
                async for event in events:
                    yield _encoder.encode(event.described()) + b"\n"
    finally:
        service.replays.release()
