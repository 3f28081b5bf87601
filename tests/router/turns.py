"""Turns of one principal at two targets, as a router commits them; the scope is that of a service without tokens."""

from __future__ import annotations

import itertools
from typing import Any

from api.auth import LOCAL_NAMESPACE, LOCAL_PRINCIPAL, LOCAL_ROUTE
from ledger.continuation import Target, target_digest
from ledger.ledger import wall_clock_ms
from ledger.policy import Policy
from ledger.turn import Content, Scope, Turn

POLICY = Policy(commit_grace_ms=0)
"""Without grace a parent is gone at once, so that no test has to wait for it."""
SCOPE = Scope(namespace=LOCAL_NAMESPACE, route=LOCAL_ROUTE, principal=LOCAL_PRINCIPAL)
ALPHA = Target(name="alpha", digest=target_digest("https://alpha.example/v1", "team"))
BETA = Target(name="beta", digest=target_digest("https://beta.example/v1"))
TARGETS = {target.name: target for target in (ALPHA, BETA)}
_numbers = itertools.count()


def native(response_id: str, target: Target = ALPHA, **rest: Any) -> Turn:
    """Return a turn whose state lives at ``target``."""
    given: dict[str, Any] = {
        "scope": SCOPE,
        "event_id": f"event-{next(_numbers)}",
        "owner": target.owner(native=True),
        "begun_at_ms": wall_clock_ms(),
    }
    return Turn(response_id=response_id, **{**given, **rest})


def portable(response_id: str, text: str, target: Target = ALPHA, **rest: Any) -> Turn:
    """Return a turn whose items the ledger has; ``target`` served it."""
    content = Content(input=[{"text": text}], output=[{"text": text.upper()}])
    return native(response_id, **{"owner": target.owner(native=False), "content": content, **rest})
