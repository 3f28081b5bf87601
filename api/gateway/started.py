"""Turns that others must see before they end: their lease, held while they run.

Needed for an ``Idempotency-Key``, for a conversation that lets only one turn run at a time, and for background
responses. A lease is renewed at a third of its length, so that one lost renewal does no harm, and a replica that died
blocks nobody for longer than the lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import replace

import structlog

from api.gateway.service import Gateway
from ledger.commit import TurnStart
from ledger.errors import LedgerError, StoreFailed
from ledger.refusal import Refusal, refusal_of_verdict
from ledger.verdict import Code

LOOK_INTERVAL_S = 0.1
"""Between two looks at whether a turn was ended elsewhere: a row of the local view, some microseconds."""

logger = structlog.get_logger("api.gateway.started")


class Started:
    """A started turn of this process."""

    def __init__(self, gateway: Gateway, start: TurnStart) -> None:
        self._gateway = gateway
        self._start = replace(start, queued=False)
        self._renewing: asyncio.Task[None] | None = None
        self.on_lost: Callable[[], object] | None = None
        """Called when the turn was ended by another request, or its lease could not be held."""

    @property
    def turn_id(self) -> str:
        """The name that the turn's end must give."""
        return self._start.turn_id

    def naming(self, response_id: str, record: bytes) -> TurnStart:
        """Return the start that also names the response, which was not known before; renewals name it too."""
        self._start = replace(self._start, response_id=response_id, record=record)
        return replace(self._start, event_id=secrets.token_hex(16))

    def hold(self) -> None:
        """Renew the lease from now on."""
        self._renewing = asyncio.create_task(self._renew_forever())

    async def release(self) -> None:
        """Stop renewing."""
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing

    async def renew(self) -> bool:
        """Renew the lease now; False: the turn has ended or its lease has passed."""
        start = replace(self._start, event_id=secrets.token_hex(16))
        try:
            verdict = await self._gateway.state().committer.begin(start)
        except LedgerError as error:
            # The next renewal may be in time; if none is, the log says that the lease has passed.
            logger.warning("lease_not_renewed", message=str(error))
            return True
        return verdict.accepted

    async def _renew_forever(self) -> None:
        """Renew until the turn is lost; that another request has ended it is seen in this replica's rows at once."""
        loop = asyncio.get_running_loop()
        reader, interval_s = self._gateway.state().reader, self._start.lease_ms / 3000
        renew_at_s = loop.time() + interval_s
        while True:
            await asyncio.sleep(min(LOOK_INTERVAL_S, interval_s))
            try:
                is_lost = reader.turn_has_ended(self._start.scope, self._start.turn_id)
            except StoreFailed as error:
                logger.warning("lease_not_looked_at", message=str(error))
                is_lost = False
            if not is_lost and loop.time() >= renew_at_s:
                renew_at_s = loop.time() + interval_s
                is_lost = not await self.renew()
            if is_lost:
                if self.on_lost is not None:
                    self.on_lost()
                return


async def start_turn(gateway: Gateway, start: TurnStart) -> Started | str:
    """Start a turn; return it, or the ID of the response that answers the request already.

    While another attempt with the same key runs, this waits. Raises ``Refusal``, and ``LedgerError`` when the ledger
    cannot tell.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + gateway.config.limits.idempotency_wait_s
    ledger = gateway.state()
    while True:
        verdict = await gateway.metrics.commit(ledger.committer.begin(start))
        if verdict.code is Code.ACCEPTED:
            started = Started(gateway, start)
            started.hold()
            return started
        if verdict.accepted:
            if verdict.response_id is None:
                message = "The response that answered this Idempotency-Key is gone; use a new key."
                raise Refusal(409, message, code="idempotency_conflict", reason="response_gone", is_final=True)
            return verdict.response_id
        refusal = refusal_of_verdict(verdict)
        assert refusal is not None, "a verdict that is not accepted is refused"
        if verdict.code is not Code.KEY_IN_PROGRESS or start.idempotency_key is None:
            raise refusal
        wait_s = deadline_s - loop.time()
        key = start.idempotency_key
        if wait_s <= 0 or not await ledger.reader.key_settled(start.scope, key, timeout_s=wait_s):
            raise refusal
        start = replace(start, event_id=secrets.token_hex(16))
