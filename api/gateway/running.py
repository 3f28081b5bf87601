"""One request for a response on its way: what is known of it, and how its end gets into the ledger.

Nothing here depends on the target's format. Rules it keeps: a terminal leaves only after ``settle`` has returned; a
turn that ended otherwise is stored as what it is (failed, cancelled), never as completed; what a key or a lock was held
for is given free when the turn ends, however it does.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from api.gateway.config import RouteConfig, RouteTarget, TargetFormat
from api.gateway.ids import new_id
from api.gateway.references import References
from api.gateway.request import CreateRequest
from api.gateway.service import Gateway
from api.gateway.started import Started
from ledger.continuation import Decision, Free, Pinned, Portable, Target
from ledger.errors import InvalidInput
from ledger.gate import Gate
from ledger.refusal import Refusal
from ledger.turn import ITEMS_MAX, Content, Owner, Scope, Status, Turn

logger = structlog.get_logger("api.gateway.running")


@dataclass(slots=True, kw_only=True)
class Running:
    """One request, from its checks to its end."""

    gateway: Gateway
    scope: Scope
    request: CreateRequest
    route: RouteConfig
    decision: Decision
    references: References
    is_always_portable: bool = False
    """The gateway runs it in the background, so its state cannot be a target's."""
    stored: bool
    """Whether the turn goes into the ledger."""
    begun_at_ms: int
    response_id: str = field(default_factory=lambda: new_id("resp"))
    """Of a portable turn; a native one has its target's."""
    started: Started | None = None
    is_settling: bool = False
    """Its commit is under way: how it ended is decided, whoever goes away meanwhile."""
    is_settled: bool = False
    is_given_up: bool = False
    announced_turn_id: str | None = None
    """Of a native background response that was started for nothing but to be seen."""
    is_followed: bool = False
    """A native background response: its end is written by whoever sees it."""
    is_lost: bool = False
    """Another request ended the turn."""

    @property
    def created_at(self) -> int:
        """Seconds since 1970, as the API has it."""
        return self.begun_at_ms // 1000

    @property
    def pinned(self) -> Target | None:
        """The only target that may be called, if there is one."""
        if isinstance(self.decision, Pinned):
            return self.decision.target
        return self.references.target

    @property
    def hint(self) -> str | None:
        """The target that served last, of a portable continuation: it may have the history in its prefix cache."""
        if not isinstance(self.decision, Portable):
            return None
        records = (entry.record for entry in reversed(self.decision.history.entries))
        served = next((record["target"] for record in records if isinstance(record, dict) and "target" in record), None)
        return served if isinstance(served, str) else self.decision.hint

    def is_native(self, entry: RouteTarget) -> bool:
        """Return whether the turn's state would live at this target.

        A conversation that does not exist yet is made here, where any target can continue it, and not at the target;
        except where the route says that its one principal may name what only the target knows.
        """
        has_responses = self.gateway.config.targets[entry.target].format is TargetFormat.RESPONSES
        if self.is_always_portable or not has_responses:
            return False
        match self.decision:
            case Pinned():
                return True
            case Portable():
                return False
            case Free():
                return self.decision.new_conversation_id is None or self.route.forwards_unknown

    def owner(self, entry: RouteTarget, *, native: bool) -> Owner:
        """Return the owner of this turn when ``entry`` has served it."""
        return self.gateway.routing.targets()[entry.target].owner(native=native)

    async def settle(
        self,
        *,
        status: Status,
        response_id: str,
        owner: Owner,
        content: Content | None = None,
        item_ids: Sequence[str] = (),
        record: bytes = b"",
    ) -> None:
        """Make the turn durable; afterwards its terminal may leave. Raises ``Refusal`` when it must not.

        An ended turn that cannot be continued gives its key free, so that a retry runs again. A caller that is
        cancelled meanwhile stops nothing: the commit goes on, and what the turn holds is given free after it.
        """
        if self.is_settled:
            return
        self.gateway.metrics.served("native" if owner.native else "portable", status.name.lower())
        if not self.stored:
            self.is_settled = True
            return
        request, gate = self.request, self.gateway.gate
        assert gate is not None, "a turn is stored only where there is a ledger"
        found = self.decision.found if isinstance(self.decision, Pinned | Portable) else None
        has_key = request.idempotency_key is not None and status.continuable
        try:
            turn = _turn(
                scope=self.scope,
                event_id=secrets.token_hex(16),
                response_id=response_id,
                owner=owner,
                status=status,
                conversation_id=request.selectors.conversation_id,
                previous_response_id=request.selectors.previous_response_id,
                item_ids=tuple(item_ids)[:ITEMS_MAX],
                content=content,
                record=record,
                begun_at_ms=self.begun_at_ms,
                read_revision=found.revision if found is not None and found.revision else None,
                idempotency_key=request.idempotency_key if has_key else None,
                request_digest=request.digest() if has_key else b"",
                turn_id=self.announced_turn_id if self.started is None else self.started.turn_id,
            )
        except Refusal:
            self.gateway.run(self.give_up())
            raise
        if self.started is not None:
            # From here on the end that others may see is this one.
            self.started.on_lost = None
        self.is_settling = True
        refusal = await asyncio.shield(self.gateway.run(self._commit(gate, turn)))
        if refusal is not None:
            raise refusal

    async def _commit(self, gate: Gate, turn: Turn) -> Refusal | None:
        """Commit the turn; one that must count as failed is given up. Return the refusal: nobody may be left for it."""
        began_s = time.perf_counter()
        try:
            await gate.settle(turn)
        except Refusal as refusal:
            self.is_settling = False
            # A background response goes on, and whoever follows it writes its end.
            if not self.is_followed:
                self.gateway.run(self.give_up())
            return refusal
        self.gateway.metrics.held(time.perf_counter() - began_s)
        self.is_settled = True
        await self.release()
        return None

    async def settle_ended(self, *, status: Status, response_id: str, owner: Owner, content: Content | None) -> None:
        """Store a turn that failed or was cancelled, if that is possible; its client is told so in any case."""
        try:
            await self.settle(status=status, response_id=response_id, owner=owner, content=content)
        except Refusal as refusal:
            logger.warning("ended_turn_not_stored", status=status.name.lower(), code=refusal.code)
        finally:
            await self.release()

    async def give_up(self) -> None:
        """End a turn that no target answered: nothing of it is kept but the end of its lease."""
        if self.started is not None and not (self.is_settled or self.is_lost or self.is_given_up):
            self.is_given_up = True
            owner = Owner(native=False, target="ledger")
            await self.settle_ended(status=Status.FAILED, response_id=self.response_id, owner=owner, content=None)
        await self.release()

    async def release(self) -> None:
        """Stop holding the lease."""
        if self.started is not None:
            await self.started.release()

    def run_as(self, task: asyncio.Task[Any]) -> None:
        """Cancel ``task`` when another request ends the turn."""

        def lose() -> None:
            self.is_lost = True
            task.cancel()

        if self.started is not None:
            self.started.on_lost = lose


def _turn(**fields: Any) -> Turn:
    """Return a turn. What it is refused for came from the target: everything of the client was checked before."""
    try:
        return Turn(**fields)
    except InvalidInput as error:
        message = f"The model's server answered something that cannot be stored: {error}."
        raise Refusal(502, message, code="upstream_failed", reason="upstream_malformed") from error
