"""What every route of the gateway works with: configuration, ledger, targets, metrics; and whose request it is."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from api.auth import LOCAL_PRINCIPAL
from api.forwarding import Forwarding
from api.gateway.config import ConversationPolicy, GatewayConfig
from api.gateway.metrics import GatewayMetrics
from api.gateway.routing import Routing
from api.gateway.upstream import Upstream
from ledger.answer import Answer, Token, Verdict
from ledger.errors import NotAuthenticated
from ledger.gate import Gate
from ledger.ledger import Ledger, wall_clock_ms
from ledger.refusal import Refusal
from ledger.router import LedgerRouter
from ledger.turn import Scope, Selector, SelectorKind, Turn

logger = structlog.get_logger("api.gateway")

MIB = 1024 * 1024
T = TypeVar("T")

_encoder = msgspec.json.Encoder()


class MeteredRouter(LedgerRouter):
    """The ledger in this process, with every look-up and commit counted."""

    def __init__(self, ledger: Ledger, metrics: GatewayMetrics) -> None:
        super().__init__(ledger)
        self._metrics = metrics

    async def load(self, selector: Selector, *, history: bool = False, token: Token | None = None) -> Answer:
        answer = await self._metrics.lookup(selector.kind, super().load(selector, history=history, token=token))
        self._metrics.history_read(answer)
        return answer

    async def commit(self, turn: Turn) -> Verdict:
        return await self._metrics.commit(super().commit(turn))


@dataclass(slots=True, kw_only=True)
class Gateway:
    """One process's gateway; ``start`` before use, ``close`` after."""

    config: GatewayConfig
    ledger: Ledger | None
    """None: state is off."""
    routing: Routing
    upstream: Upstream
    metrics: GatewayMetrics
    now_ms: Callable[[], int] = wall_clock_ms
    forwarding: Forwarding | None = None
    """Sends on what concerns principals of other replicas; None: such a request is refused."""
    router: MeteredRouter | None = field(init=False)
    gate: Gate | None = field(init=False)
    refuses_bare_reasoning: set[tuple[str, str]] = field(default_factory=set, init=False)
    """Principals and targets where reasoning that is no more than an ID was refused: what one brings concerns no
    other."""
    scopes: dict[str, Scope] = field(init=False)
    """By principal."""
    turns: set[asyncio.Task[Any]] = field(default_factory=set, init=False)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set, init=False)
    is_closing: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        config = self.config
        self.scopes = {
            principal: Scope(namespace=config.namespace, route=config.route, principal=principal)
            for principal in config.principals
        }
        self.router = None if self.ledger is None else MeteredRouter(self.ledger, self.metrics)
        self.gate = None if self.router is None else Gate(self.router)

    async def start(self) -> None:
        """Open what calls the targets."""
        await self.upstream.start()

    async def close(self) -> None:
        """End the background work: turns that run are stored as failed, commits under way are waited for."""
        self.is_closing.set()
        for turn in self.turns:
            turn.cancel()
        await asyncio.gather(*self.turns, return_exceptions=True)
        # What ends may leave something to be stored.
        while self.tasks:
            await asyncio.gather(*self.tasks, return_exceptions=True)
        if self.gate is not None:
            await self.gate.close()
        await self.upstream.close()

    def scope(self, request: Request) -> Scope:
        """Return whose request it is: the principal of its API key. Raises ``NotAuthenticated``.

        Every key is compared, in constant time, so that the time taken tells nothing about the file. Nothing else that
        a client sends has a part in it.
        """
        config = self.config
        principal = LOCAL_PRINCIPAL
        if config.keys:
            scheme, _, key = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not key:
                raise NotAuthenticated("no API key was sent")
            digest = hashlib.sha256(key.strip().encode("latin-1", "replace")).digest()
            found = [entry.principal for entry in config.keys if hmac.compare_digest(entry.sha256, digest)]
            if not found:
                raise NotAuthenticated("the API key is not known")
            principal = found[0]
        return self.scopes[principal]

    def require_held(self, request: Request) -> None:
        """Raise ``NotHeld`` when another replica has the state of whose request it is, ``NotAuthenticated``."""
        if self.ledger is not None and self.ledger.replica.is_partial:
            self.ledger.replica.require(self.ledger.reader.partition(self.scope(request)))

    def state(self) -> Ledger:
        """Return the ledger. Raises ``Refusal`` when state is off."""
        if self.ledger is None:
            raise state_is_off(None)
        return self.ledger

    async def look_up(self, scope: Scope, kind: SelectorKind, opaque_id: str) -> Answer:
        """Return what the ledger knows of an ID that a request names in its path; never older than any commit before.

        Raises ``Refusal`` when state is off, and ``Unavailable``.
        """
        reader = self.state().reader
        return await self.metrics.lookup(kind, reader.load(Selector(scope=scope, kind=kind, id=opaque_id), strong=True))

    @property
    def locks_conversations(self) -> bool:
        """Whether a turn refuses every other one on its conversation."""
        return self.config.conversations is ConversationPolicy.REJECT

    @property
    def lease_ms(self) -> int:
        """How long a started turn holds its lease without a renewal."""
        return int(self.config.limits.lease_s * 1000)

    def run_turn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a turn as a task of its own, which ``close`` cancels."""
        task = asyncio.create_task(work)
        self.turns.add(task)
        task.add_done_callback(self.turns.discard)
        return task

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` on its own, whoever asked for it goes away; ``close`` waits for it."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


def state_is_off(param: str | None) -> Refusal:
    """Return what a request is answered that needs state where there is none."""
    return Refusal(
        400,
        "This gateway keeps no state: send the whole history as input, with store set to false.",
        code="state_disabled",
        param=param,
        reason="state_off",
    )


def json_answer(body: Any, status: int = 200) -> Response:
    """Return ``body`` as JSON."""
    return Response(_encoder.encode(body), status, media_type="application/json")
