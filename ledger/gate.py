"""The gate in front of a turn's terminal: it leaves for the client only after the turn is durable.

What a client was told is what every replica will answer: success only for a turn that the log holds. A turn that the
client was told had failed is abandoned, so that it does not turn up later as the conversation's head.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ledger.answer import Verdict
from ledger.errors import LedgerError, Unknown
from ledger.refusal import Refusal, refusal_of, refusal_of_verdict
from ledger.router import Router
from ledger.turn import Turn

T = TypeVar("T")


class Gate:
    """Settles turns. One per process; ``close`` waits for the commits and abandonments under way."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._tasks: set[asyncio.Task[Any]] = set()

    async def settle(self, turn: Turn) -> Verdict:
        """Make ``turn`` durable and return its verdict, an accepted one.

        Raises ``Refusal`` when the log refuses the turn or its outcome is not known in time. The client must then be
        told that the turn failed; it is abandoned in the background.
        """
        # A caller that goes away meanwhile changes nothing: the turn has completed.
        settled = await asyncio.shield(self._in_background(self._commit(turn)))
        if isinstance(settled, Refusal):
            raise settled
        return settled

    async def close(self) -> None:
        """Wait for the commits and abandonments under way; the ledger keeps on disk what could not be written."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _commit(self, turn: Turn) -> Verdict | Refusal:
        try:
            verdict = await self._router.commit(turn)
        except Unknown as error:
            self._in_background(self._router.abandon(turn.scope, turn.event_id))
            return refusal_of(error)
        except LedgerError as error:
            return refusal_of(error)
        return refusal_of_verdict(verdict) or verdict

    def _in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
