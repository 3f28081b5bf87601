"""What every route of the service works with, and the answers they share."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Access, Caller, Role
from api.forwarding import Forwarding
from api.metrics import Metrics
from ledger.answer import Verdict
from ledger.ledger import Ledger
from ledger.view import ViewStore
from ledger.wire import verdict_body

REPLAYS_MAX = 2
"""Replays at once: each folds the log from its beginning, and look-ups need the rest of the process."""

_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One process's ledger, who may use it, and what is counted."""

    ledger: Ledger
    access: Access
    metrics: Metrics
    scratch: Callable[[], AbstractContextManager[ViewStore]]
    """Gives a view that is thrown away, for a replay."""
    forwarding: Forwarding | None = None
    """Sends on what concerns partitions of other replicas; None: such a request is refused."""
    replays: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(REPLAYS_MAX))

    def caller(self, request: Request, *roles: Role) -> Caller:
        """Return who sent the request. Raises ``NotAuthenticated``, and ``NotPermitted`` without one of ``roles``."""
        caller = self.access.caller(request.headers.get("authorization"))
        caller.require(*roles)
        return caller

    @property
    def answers_within_s(self) -> float:
        """What one call may take by its deadlines: it puts a content, or reads, and then commits or reads once more."""
        settings = self.ledger.settings
        return settings.commit_timeout_s + max(settings.commit_timeout_s, settings.read_timeout_s)

    async def verdict(self, event_id: str, committing: Awaitable[Verdict]) -> Response:
        """Await a commit and answer its verdict."""
        verdict = await self.metrics.commit(committing)
        return answer(verdict_body(verdict, event_id), verdict_status(verdict))


def event_id_of(given: str | None) -> str:
    """Return the caller's event ID, or a new one."""
    return secrets.token_hex(16) if given is None else given


def verdict_status(verdict: Verdict) -> int:
    """Return 200 when the event has its effect, also by an earlier attempt, and 409 when it was refused."""
    return 200 if verdict.accepted else 409


def answer(body: Any, status: int = 200) -> Response:
    """Return ``body`` as JSON."""
    return Response(_encoder.encode(body), status, media_type="application/json")
