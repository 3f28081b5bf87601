"""Routes that publish turns: one, a batch, a start, an abandonment.

A batch commits the turns of one principal in the order given, and different principals' side by side. After a turn
without a verdict the rest of that principal's turns are not tried: a child that is folded without its parent would be
refused for good.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Collection

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Caller, Role
from api.requests import CONTENT_BODY_BYTES_MAX, JSON, NDJSON, decode, media_type, read_body, read_json
from api.service import Service, answer, event_id_of, verdict_status
from api.split import Split
from ledger.bodies import (
    BATCH_TURNS_MAX,
    AbandonBody,
    BatchAnswer,
    BatchResult,
    StartBody,
    TurnBody,
    WaitingBody,
)
from ledger.errors import LedgerError, RetryableError, TooLarge, Unavailable, Unknown
from ledger.turn import Turn
from ledger.wire import start_of, turn_of, verdict_body

PRINCIPALS_AT_ONCE_MAX = 64
"""Principals of one batch whose turns are committed at the same time: where throughput stops growing."""

_turn = msgspec.json.Decoder(TurnBody)
_turns = msgspec.json.Decoder(list[msgspec.Raw])
_start = msgspec.json.Decoder(StartBody)
_results = msgspec.json.Decoder(BatchAnswer)
_event_id = msgspec.json.Encoder()
_abandon = msgspec.json.Decoder(AbandonBody)


async def publish(service: Service, request: Request) -> Response:
    """Commit one turn."""
    caller = service.caller(request, Role.ROUTER)
    turn = _turn_from(service, caller, await read_json(request, _turn, bytes_max=CONTENT_BODY_BYTES_MAX))
    return await service.verdict(turn.event_id, service.ledger.committer.commit(turn))


async def start(service: Service, request: Request) -> Response:
    """Announce a turn or renew its lease."""
    caller = service.caller(request, Role.ROUTER)
    body = await read_json(request, _start)
    scope = caller.scope(body.principal, body.route)
    announced = start_of(body, scope, event_id_of(body.event_id), service.ledger.now_ms())
    return await service.verdict(announced.event_id, service.ledger.committer.begin(announced))


async def abandon(service: Service, request: Request) -> Response:
    """Give up a commit; 202 when that is on disk but not in the log yet."""
    caller = service.caller(request, Role.ROUTER)
    body = await read_json(request, _abandon)
    scope = caller.scope(body.principal, body.route)
    verdict = await service.metrics.commit(service.ledger.committer.abandon(scope, body.event_id))
    if verdict is None:
        return answer(WaitingBody(event_id=body.event_id), 202)
    return answer(verdict_body(verdict, body.event_id), verdict_status(verdict))


async def publish_batch(service: Service, request: Request) -> Response:
    """Commit many turns; 200 with one result for each."""
    caller = service.caller(request, Role.ROUTER)
    form = media_type(request, JSON, NDJSON)
    body = await read_body(request, CONTENT_BODY_BYTES_MAX)
    parts: list[bytes | msgspec.Raw] = []
    if form == NDJSON:
        parts.extend(line for line in body.split(b"\n") if line.strip())
    else:
        listed = decode(body, _turns)
        parts.extend(listed)
    if len(parts) > BATCH_TURNS_MAX:
        raise TooLarge("turns", f"has {len(parts)} entries; at most {BATCH_TURNS_MAX} are allowed")
    others = Split(
        service=service,
        request=request,
        result=BatchResult,
        decode=lambda raw: _results.decode(raw).results,
        listed_as="turns",
        body_of=lambda indexes: b"[" + b",".join(_named(parts[index], turns[index]) for index in indexes) + b"]",
        answers_within_s=lambda indexes: _commits_within_s(service, [turns[index] for index in indexes]),
        event_id_of=lambda index: turns[index].event_id,
    )
    turns: dict[int, Turn] = {}
    results: dict[int, BatchResult] = {}
    by_principal: dict[str, list[tuple[int, Turn]]] = {}
    for index, part in enumerate(parts):
        try:
            turn = turns[index] = _turn_from(service, caller, decode(part, _turn))
        except LedgerError as error:
            results[index] = others.failed(index, error)
            continue
        if not others.takes(index, turn.scope):
            by_principal.setdefault(turn.scope.principal, []).append((index, turn))
    slots = asyncio.Semaphore(PRINCIPALS_AT_ONCE_MAX)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(others.results())
        for of_one in by_principal.values():
            group.create_task(_commit_in_order(service, of_one, results, slots, others))
    results |= asking.result()
    return answer(BatchAnswer(results=[results[index] for index in range(len(parts))]))


async def _commit_in_order(
    service: Service,
    turns: list[tuple[int, Turn]],
    results: dict[int, BatchResult],
    slots: asyncio.Semaphore,
    split: Split[BatchResult],
) -> None:
    """Commit one principal's turns and fill in their results."""
    stopped: LedgerError | None = None
    async with slots:
        for index, turn in turns:
            if stopped is not None:
                results[index] = split.failed(index, stopped)
                continue
            try:
                verdict = await service.metrics.commit(service.ledger.committer.commit(turn))
            except LedgerError as error:
                results[index] = split.failed(index, error)
                if isinstance(error, Unknown):
                    stopped = Unavailable(
                        "deadline", "an earlier turn of this principal has no verdict yet; this one was not tried"
                    )
                elif isinstance(error, RetryableError):
                    stopped = error
            else:
                body = verdict_body(verdict, turn.event_id)
                results[index] = BatchResult(index=index, status=verdict_status(verdict), verdict=body)


def _named(part: bytes | msgspec.Raw, turn: Turn) -> bytes:
    """Return a part as it is sent on: with the event ID that it has here, so that its caller can ask again.

    Else as it came: to write it anew would change its numbers. The last of two fields of one name counts.
    """
    return b"%s,%s}" % (bytes(part).rstrip()[:-1], _event_id.encode({"event_id": turn.event_id})[1:-1])


def _commits_within_s(service: Service, turns: Collection[Turn]) -> float:
    """Return what a batch may take: one principal's turns one after the other, and so many principals at once."""
    by_principal = Counter(turn.scope.principal for turn in turns)
    commits = max(by_principal.values())
    if len(by_principal) > PRINCIPALS_AT_ONCE_MAX:
        # What any order of tasks on so many slots takes at most (Graham, 1969).
        commits += math.ceil(len(turns) / PRINCIPALS_AT_ONCE_MAX)
    return commits * service.ledger.settings.commit_timeout_s


def _turn_from(service: Service, caller: Caller, body: TurnBody) -> Turn:
    scope = caller.scope(body.principal, body.route)
    return turn_of(body, scope, event_id_of(body.event_id), service.ledger.now_ms())
