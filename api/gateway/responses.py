"""``POST /v1/responses``: from the request to the turn that answers it.

Order: who asks, what is asked, what it names (one look-up, or none), where it may go, whether it may run now; only then
is a target called. Everything that can be refused is refused before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api.gateway import sse
from api.gateway.background import record_of_run, turn_id_of
from api.gateway.config import RouteTarget
from api.gateway.delivery import Delivery, EventStream
from api.gateway.errors import TargetRefused, owner_refusal, upstream_refusal
from api.gateway.events import events_of
from api.gateway.native import NativeTurn
from api.gateway.portable import PortableTurn, own_items
from api.gateway.references import resolve
from api.gateway.request import CreateRequest, read_create
from api.gateway.retrieval import fetch
from api.gateway.running import Running
from api.gateway.service import MIB, Gateway, json_answer, state_is_off
from api.gateway.started import start_turn
from api.gateway.upstream import UpstreamFailed, UpstreamStream, forwarded_headers
from api.leaving import CLIENT_LEFT, is_cancelled, unless_left
from ledger.commit import TurnStart
from ledger.continuation import Decision, Free, Pinned, Portable, Target, decide
from ledger.errors import LedgerError
from ledger.refusal import PREVIOUS, Refusal
from ledger.turn import Scope

RESTING_STATUSES = frozenset({502, 503, 504})
"""Answers after which a target rests: it, or what is in front of it, says that it cannot serve."""

Turn = NativeTurn | PortableTurn


@dataclass(slots=True)
class Attempt:
    """The targets that a request may be sent to, one after the other until one can be reached."""

    running: Running
    tried: list[str] = field(default_factory=list)
    _items: list[dict[str, Any]] | None = None
    first: tuple[RouteTarget, Turn, bytes] | None = None

    async def prepare(self) -> None:
        """Choose the first target and build what it is sent, so that what is wrong is refused before anything runs."""
        entry = self.choose()
        turn = self.turn(entry)
        self.first = (entry, turn, await turn.payload())

    def choose(self) -> RouteTarget:
        """Return the owner where there is one, else what the policy says. Raises ``Refusal``."""
        running = self.running
        routing, pinned = running.gateway.routing, running.pinned
        if pinned is not None:
            return routing.of_target(running.route, pinned.name)
        return routing.choose(running.route, prefer=running.hint, without=self.tried)

    def turn(self, entry: RouteTarget) -> Turn:
        """Return the turn at a target."""
        if self.running.is_native(entry):
            return NativeTurn(self.running, entry)
        if self._items is None:
            self._items = own_items(self.running)
        return PortableTurn(self.running, entry, self._items)

    async def connect(self, stack: AsyncExitStack) -> tuple[Turn, UpstreamStream]:
        """Send the request; another target is tried only when nothing was sent. Raises ``Refusal``,
        ``TargetRefused``."""
        running = self.running
        assert self.first is not None, "prepared before"
        entry, turn, payload = self.first
        while True:
            try:
                stream = await self._open(stack, entry, turn, payload)
            except UpstreamFailed as failure:
                if running.pinned is not None:
                    raise owner_refusal(failure) from failure
                self.tried.append(entry.target)
                if failure.was_sent or len(self.tried) == len(running.route.targets):
                    raise upstream_refusal(failure) from failure
                entry = self.choose()
                turn = self.turn(entry)
            except TargetRefused as refused:
                if not (isinstance(turn, PortableTurn) and turn.can_say_less(refused.answer.status)):
                    raise
            else:
                if isinstance(turn, PortableTurn):
                    turn.was_taken()
                return turn, stream
            payload = await turn.payload()

    async def _open(self, stack: AsyncExitStack, entry: RouteTarget, turn: Turn, payload: bytes) -> UpstreamStream:
        """Send a request to one target. Raises ``UpstreamFailed``, ``TargetRefused``, ``Refusal``."""
        request, gateway = self.running.request, self.running.gateway
        try:
            stream = await stack.enter_async_context(
                gateway.upstream.open(entry.target, "POST", turn.path, body=payload, headers=request.headers)
            )
        except UpstreamFailed as failure:
            gateway.metrics.called(entry.target, failure.reason)
            gateway.routing.failed(entry.target)
            raise
        if stream.status >= 400:
            gateway.metrics.called(entry.target, "refused")
            if stream.status in RESTING_STATUSES:
                gateway.routing.failed(entry.target)
            raise TargetRefused(await stream.read())
        if request.stream and stream.media_type != sse.MEDIA_TYPE:
            gateway.metrics.called(entry.target, "malformed")
            message = "The model's server answered something that is not an event stream."
            raise Refusal(502, message, code="upstream_failed", reason="upstream_malformed")
        gateway.metrics.called(entry.target, "answered")
        gateway.routing.succeeded(entry.target)
        return stream


async def create(gateway: Gateway, request: Request) -> Response:
    """Create a response: buffered, streamed or in the background."""
    scope = gateway.scope(request)
    body_bytes_max = gateway.config.limits.body_mib_max * MIB
    asked = await read_create(request, body_bytes_max=body_bytes_max, headers=forwarded_headers(request.headers))
    running = await _decided(gateway, scope, asked)
    attempt = Attempt(running)
    await attempt.prepare()
    assert attempt.first is not None, "just prepared"
    entry, turn, _ = attempt.first
    is_own_background = running.is_always_portable = asked.background and isinstance(turn, PortableTurn)
    answered_by = await _start(running, entry, is_own_background=is_own_background)
    if answered_by is not None:
        return await _answer_again(gateway, request, scope, asked, answered_by)
    if is_own_background and not asked.stream:
        assert isinstance(turn, PortableTurn), "the gateway runs no other background response"
        _run(running, _in_background(attempt))
        return json_answer(turn.queued())
    if asked.stream:
        return await _streamed(request, attempt)
    return await _buffered(request, attempt)


async def _decided(gateway: Gateway, scope: Scope, asked: CreateRequest) -> Running:
    """Return where the request may go. Raises ``Refusal``."""
    route = gateway.routing.route(asked.model)
    if gateway.router is None:
        _refuse_without_state(asked)
        decision: Decision = Free()
    else:
        forwards_unknown = route.forwards_unknown and len(route.targets) == 1
        targets = gateway.routing.targets()
        decision = await decide(gateway.router, scope, asked.selectors, targets, forwards_unknown=forwards_unknown)
    references = await resolve(gateway, scope, asked.reference_ids)
    owner = references.target
    if owner is not None and not _may_refer(decision, owner):
        message = "The input refers to an item that another target holds; send the item itself."
        raise Refusal(400, message, code="invalid_value", param="input", reason="mixed_owners")
    return Running(
        gateway=gateway,
        scope=scope,
        request=asked,
        route=route,
        decision=decision,
        references=references,
        stored=gateway.ledger is not None and asked.store is not False,
        begun_at_ms=gateway.now_ms(),
    )


def _may_refer(decision: Decision, owner: Target) -> bool:
    """Return whether a request may name items that ``owner`` holds: only where the turn is that target's anyway."""
    match decision:
        case Free():
            return decision.new_conversation_id is None
        case Pinned():
            return decision.target.name == owner.name
        case Portable():
            return False


def _refuse_without_state(asked: CreateRequest) -> None:
    """Refuse what needs state, rather than answer it without its context."""
    if asked.selectors:
        raise state_is_off(PREVIOUS if asked.selectors.previous_response_id is not None else "conversation")
    if asked.store:
        raise state_is_off("store")
    if asked.background:
        raise state_is_off("background")
    if asked.idempotency_key is not None:
        raise state_is_off("Idempotency-Key")


async def _start(running: Running, entry: RouteTarget, *, is_own_background: bool) -> str | None:
    """Start the turn where others must see it before it ends; return the response that answers it already."""
    request, gateway = running.request, running.gateway
    conversation_id = request.selectors.conversation_id
    locks = gateway.locks_conversations and conversation_id is not None
    if not running.stored or not (locks or is_own_background or request.idempotency_key is not None):
        return None
    started = await start_turn(
        gateway,
        TurnStart(
            scope=running.scope,
            event_id=secrets.token_hex(16),
            turn_id=turn_id_of(running.response_id),
            begun_at_ms=running.begun_at_ms,
            lease_ms=gateway.lease_ms,
            response_id=running.response_id if is_own_background else None,
            conversation_id=conversation_id if locks else None,
            exclusive=locks,
            idempotency_key=request.idempotency_key,
            request_digest=b"" if request.idempotency_key is None else request.digest(),
            queued=is_own_background,
            record=record_of_run(request, entry.model) if is_own_background else b"",
        ),
    )
    if isinstance(started, str):
        return started
    running.started = started
    return None


def _run(running: Running, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Run a turn as a task of its own, which its lease can end."""
    task = running.gateway.run_turn(work)
    running.run_as(task)
    task.add_done_callback(partial(_let_go, running))
    return task


def _let_go(running: Running, ended: asyncio.Task[Any]) -> None:
    """Give up a turn that ended by a defect: whatever it was, a key or a lock must not be held for ever."""
    error = None if ended.cancelled() else ended.exception()
    if error is None or isinstance(error, LedgerError | TargetRefused | UpstreamFailed):
        return
    asyncio.get_running_loop().call_exception_handler({"message": "a turn failed", "exception": error, "task": ended})
    running.gateway.run(running.give_up())


async def _buffered(request: Request, attempt: Attempt) -> Response:
    task = _run(attempt.running, _run_buffered(attempt))
    try:
        response: Response = await unless_left(request.receive, task)
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        if attempt.running.is_lost:
            message = "The response was ended by another request."
            raise Refusal(409, message, code="turn_ended", reason="turn_ended") from None
        return Response(status_code=CLIENT_LEFT)
    return response


async def _run_buffered(attempt: Attempt) -> Response:
    async with AsyncExitStack() as stack:
        turn, stream = await _connected(attempt, stack)
        return await turn.buffered(stream)


async def _connected(attempt: Attempt, stack: AsyncExitStack) -> tuple[Turn, UpstreamStream]:
    """Connect; a turn that no target takes gives free what it holds."""
    try:
        return await attempt.connect(stack)
    except BaseException:
        attempt.running.gateway.run(attempt.running.give_up())
        raise


async def _in_background(attempt: Attempt) -> None:
    """Run a background response to its end; whatever prevents it is its error."""
    running = attempt.running
    assert attempt.first is not None, "prepared before"
    turn = attempt.first[1]
    assert isinstance(turn, PortableTurn), "the gateway runs no other background response"
    async with AsyncExitStack() as stack:
        try:
            if running.started is not None:
                await running.started.renew()
            served, stream = await attempt.connect(stack)
        except (TargetRefused, LedgerError) as error:
            await turn.fail(f"{error}.")
            return
        except asyncio.CancelledError:
            turn.cut_off()
            raise
        # It stores how it ended; here is nobody to be told.
        with contextlib.suppress(Refusal):
            await served.buffered(stream)


async def _streamed(request: Request, attempt: Attempt) -> Response:
    delivery = Delivery()
    task = _run(attempt.running, _run_streamed(attempt, delivery))

    async def begun() -> Response:
        headers = await asyncio.shield(delivery.began)
        return EventStream(delivery, headers, leave)

    def leave() -> None:
        # A background response goes on without its client.
        if not attempt.running.request.background:
            task.cancel()

    def ended(_: asyncio.Task[Any]) -> None:
        # Cancelled while it connected, as by another request or with its lease; or by a defect, which is logged.
        message = "The response was ended before it began."
        delivery.refuse(Refusal(409, message, code="turn_ended", reason="turn_ended"))

    task.add_done_callback(ended)
    beginning = asyncio.ensure_future(begun())
    try:
        return await unless_left(request.receive, beginning)
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        delivery.leave()
        leave()
        return Response(status_code=CLIENT_LEFT)


async def _run_streamed(attempt: Attempt, delivery: Delivery) -> None:
    try:
        async with AsyncExitStack() as stack:
            turn, stream = await _connected(attempt, stack)
            await turn.streamed(stream, delivery)
    except (LedgerError, TargetRefused, UpstreamFailed) as error:
        delivery.refuse(error)
    finally:
        await delivery.end()


async def _answer_again(
    gateway: Gateway, request: Request, scope: Scope, asked: CreateRequest, response_id: str
) -> Response:
    """Answer another attempt of a request from the response of the first."""
    response = await fetch(gateway, request, scope, response_id)
    gateway.metrics.served("again", "answered")
    if isinstance(response, Response):
        return response
    if not asked.stream:
        return json_answer(response)
    return StreamingResponse(_frames(response), media_type=sse.MEDIA_TYPE, headers={"cache-control": "no-store"})


async def _frames(response: dict[str, Any]) -> AsyncIterator[bytes]:
    for event in events_of(response):
        yield sse.encode(event)
