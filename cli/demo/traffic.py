"""The traced traffic through two replicas: every turn continues one that the other replica took."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cli.demo.trace import Request
from ledger.adapters.http import LedgerClient
from ledger.answer import Found
from ledger.ledger import wall_clock_ms
from ledger.turn import Content, Owner, Scope, Selector, SelectorKind, Turn


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a run of the traffic came to."""

    accepted: int = 0
    continuations: int = 0
    looked_up: int = 0
    not_found: int = 0
    text_bytes: int = 0
    elapsed_s: float = 0.0

    def facts(self) -> dict[str, str]:
        """Return what was asked and answered."""
        return {
            "turns": f"{self.accepted} accepted, {self.continuations} of them continue another, "
            f"{self.text_bytes / 1e6:.1f} MB of text",
            "look-ups": f"{self.looked_up} on the other replica: {self.looked_up - self.not_found} found, "
            f"{self.not_found} not",
        }

    def rate(self) -> str:
        """Return how fast that was."""
        return f"{self.accepted / self.elapsed_s:,.0f} turns a second through the service, each looked up at once"


def response(scope: Scope, opaque_id: str) -> Selector:
    """Return the selector of a response."""
    return Selector(scope=scope, kind=SelectorKind.RESPONSE, id=opaque_id)


def turn_from(request: Request, scope: Scope) -> Turn:
    """Return the turn that a router publishes for a traced request."""
    return Turn(
        scope=scope,
        event_id=f"event_{request.turn:05d}",
        response_id=request.response_id,
        previous_response_id=request.previous_response_id,
        owner=Owner(native=request.native, target=request.target),
        content=None if request.native else Content(**request.content()),
        begun_at_ms=wall_clock_ms(),
    )


async def publish_trace(
    replicas: tuple[LedgerClient, LedgerClient],
    requests: Sequence[Request],
    scope_of: Callable[[Request], Scope],
    advance: Callable[[], None],
) -> Tally:
    """Publish all requests, and look each answer up on the other replica the moment its commit returned.

    Conversations go side by side, the turns of one come one after another.

    Raises what the ledger raises; a refused turn or a look-up that does not find counts in the tally.
    """
    conversations: dict[int, list[Request]] = defaultdict(list)
    for request in requests:
        conversations[request.root_turn].append(request)
    tally = Tally()
    began_s = time.perf_counter()

    async def converse(turns: list[Request]) -> None:
        for request in turns:
            await _one(replicas, request, scope_of(request), tally)
            advance()

    async with asyncio.TaskGroup() as group:
        for turns in conversations.values():
            group.create_task(converse(turns))
    tally.elapsed_s = time.perf_counter() - began_s
    return tally


async def _one(replicas: tuple[LedgerClient, LedgerClient], request: Request, scope: Scope, tally: Tally) -> None:
    """Publish one turn on one replica and look it up on the other, which will take what continues it."""
    mine, other = replicas[request.depth % 2], replicas[(request.depth + 1) % 2]
    turn = turn_from(request, scope)
    verdict = await mine.publish(turn)
    answer = await other.load(response(scope, request.response_id))
    tally.accepted += verdict.accepted
    tally.continuations += request.parent_turn is not None
    tally.looked_up += 1
    tally.not_found += not (isinstance(answer, Found) and answer.owner == turn.owner)
    if turn.content is not None:
        tally.text_bytes += sum(len(item["content"]) for item in (*turn.content.input, *turn.content.output))
