"""The gate in front of a turn's terminal: it leaves for the client only after the turn is durable.

What a client was told is what every replica will answer: success only for a turn that the log holds. A turn that the
client was told had failed is abandoned, so that it does not turn up later as the conversation's head. So a router calls
``settle`` between the model's answer and its own last byte, and tells the client what ``settle`` raises.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

from ledger.answer import Verdict
from ledger.errors import LedgerError, RetryableError, StoreFailed, Unknown
from ledger.refusal import Refusal, refusal_of, refusal_of_verdict
from ledger.router import Router
from ledger.turn import Turn

ABANDON_RETRY_S, ABANDON_RETRY_MAX_S, ABANDON_RETRY_FACTOR = 0.25, 30.0, 2.0
"""Between two attempts to reach a service with an abandonment: short at first, as most outages are."""
T = TypeVar("T")

logger = structlog.get_logger("ledger.gate")


class Gate:
    """Settles turns. One per process and router; ``close`` waits for the commits and abandonments under way."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = asyncio.Event()

    async def settle(self, turn: Turn) -> Verdict:
        """Make ``turn`` durable and return its verdict, an accepted one.

        Raises ``Refusal`` when the log refuses the turn or its outcome is not known in time. The client must then be
        told that the turn failed; one of unknown outcome is abandoned in the background. A caller that is cancelled
        meanwhile stops nothing: the turn has completed, and its commit goes on.
        """
        settled = await asyncio.shield(self._in_background(self._commit(turn)))
        if isinstance(settled, Refusal):
            raise settled
        return settled

    async def close(self) -> None:
        """Wait for the commits and abandonments under way.

        An abandonment that cannot be written now is kept on disk by the ledger, in this process or behind a service.
        One that no service takes is given up with this process: it is logged, and until somebody abandons the turn it
        may turn up.
        """
        self._closing.set()
        # A commit that ends meanwhile may leave an abandonment behind.
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _commit(self, turn: Turn) -> Verdict | Refusal:
        try:
            verdict = await self._router.commit(turn)
        except Unknown as error:
            self._in_background(self._abandon(turn))
            return refusal_of(error)
        except LedgerError as error:
            return refusal_of(error)
        return refusal_of_verdict(verdict) or verdict

    async def _abandon(self, turn: Turn) -> None:
        """Give the turn up, as often as it takes: a ledger in this process keeps it by itself, a service that cannot
        be reached does not."""
        retry_s = ABANDON_RETRY_S
        while True:
            try:
                await self._router.abandon(turn.scope, turn.event_id)
            except (RetryableError, StoreFailed) as error:
                if self._closing.is_set():
                    logger.warning("abandonment_given_up", message=str(error))
                    return
            except LedgerError as error:
                logger.warning("abandonment_refused", message=str(error))
                return
            else:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(retry_s):
                    await self._closing.wait()
            retry_s = min(retry_s * ABANDON_RETRY_FACTOR, ABANDON_RETRY_MAX_S)

    def _in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
