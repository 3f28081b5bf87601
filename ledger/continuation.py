"""How a router continues on any replica: detect the selectors, look them up once, then pin, replay or refuse.

The part of a router that must not differ between routers, apart from HTTP: the gateway uses it, and another router
adopts it in a few lines (``examples/router.py``). Rules it keeps:

- a request without selectors asks the ledger nothing;
- a native response or conversation goes to its owner and nowhere else, whatever the policy would choose; if its owner
  is not there, or is another one under the same name, that is said;
- a portable one may go anywhere, with its whole history, or is refused: never with a shorter one;
- an unknown response ID is refused before anything is routed. So is that of another principal, in the same words. An
  unknown conversation is a new one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ledger.answer import Answer, Found, Gone, History, Missing
from ledger.errors import InvalidInput
from ledger.query import NativeHistory
from ledger.refusal import CONVERSATION, PREVIOUS, Refusal, not_found, unfinished
from ledger.router import Router
from ledger.turn import ID_BYTES_MAX, Owner, Scope, Selector, SelectorKind, checked_text

LEDGER_TARGET = "ledger"
"""Target of what no target has served yet, such as a conversation that was just created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selectors:
    """What a request names of earlier ones; at most one of the two."""

    previous_response_id: str | None = None
    conversation_id: str | None = None

    def __bool__(self) -> bool:
        return self.previous_response_id is not None or self.conversation_id is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One target as far as ownership goes."""

    name: str
    digest: bytes
    """Of endpoint and account (``target_digest``): a change of it is a change of owner."""
    down: str | None = None
    """Why it must not be called now; None: it may."""

    def owner(self, *, native: bool) -> Owner:
        """Return the owner of a turn that this target served."""
        return Owner(native=native, target=self.name, digest=self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Route by policy: the request names nothing, or a conversation that does not exist yet."""

    new_conversation_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """Call this target and no other; it holds the state."""

    target: Target
    found: Found


@dataclass(frozen=True, slots=True, kw_only=True)
class Portable:
    """Any target can continue, given the history."""

    found: Found
    history: History
    hint: str
    """The target that served the response, and may have its history in a prefix cache; of a conversation the one that
    began it, or ``LEDGER_TARGET``."""


Decision = Free | Pinned | Portable


def target_digest(base_url: str, account: str = "", format: str = "") -> bytes:
    """Return the digest of a target's endpoint, account label and format, 16 bytes; never give it a secret."""
    parts = (base_url.rstrip("/").encode(), account.encode(), format.encode())
    return hashlib.blake2b(b"".join(len(part).to_bytes(4, "big") + part for part in parts), digest_size=16).digest()


def detect_selectors(request: Mapping[str, Any]) -> Selectors:
    """Return what the JSON body of a Responses request names. Raises ``InvalidInput`` naming the field.

    ``conversation`` is an ID or an object with one; null and absent are the same.
    """
    previous = request.get(PREVIOUS)
    conversation = request.get(CONVERSATION)
    if isinstance(conversation, Mapping):
        conversation = conversation.get("id")
        checked_text(f"{CONVERSATION}.id", conversation, ID_BYTES_MAX)
    checked_text(PREVIOUS, previous, ID_BYTES_MAX, optional=True)
    checked_text(CONVERSATION, conversation, ID_BYTES_MAX, optional=True)
    if previous is not None and conversation is not None:
        raise InvalidInput(PREVIOUS, "cannot be used together with conversation")
    return Selectors(previous_response_id=previous, conversation_id=conversation)


def selector_of(scope: Scope, selectors: Selectors) -> Selector | None:
    """Return the scoped key of the one thing that a request names, or None."""
    if selectors.previous_response_id is not None:
        return Selector(scope=scope, kind=SelectorKind.RESPONSE, id=selectors.previous_response_id)
    if selectors.conversation_id is not None:
        return Selector(scope=scope, kind=SelectorKind.CONVERSATION, id=selectors.conversation_id)
    return None


async def decide(
    router: Router,
    scope: Scope,
    selectors: Selectors,
    targets: Mapping[str, Target],
    *,
    forwards_unknown: bool = False,
) -> Decision:
    """Return where a request may go. Raises ``Refusal`` where it may not go anywhere, and what ``Router.load`` raises.

    ``targets`` are all targets of the configuration, by name. ``forwards_unknown``: an unknown response ID is free to
    go, for a route of one target whose account belongs to one principal; elsewhere it could be another's.
    """
    selector = selector_of(scope, selectors)
    if selector is None:
        return Free()
    is_response = selector.kind is SelectorKind.RESPONSE
    param = PREVIOUS if is_response else CONVERSATION
    found = await (router.load(selector) if is_response else _load_conversation(router, selector))
    if isinstance(found, Missing) and not is_response:
        return Free(new_conversation_id=selector.id)
    if isinstance(found, Missing) and forwards_unknown:
        return Free()
    found = living(found, param)
    if not found.status.continuable:
        raise unfinished(found.status.name.lower())
    if found.owner.native:
        return Pinned(target=owner_target(found.owner, targets), found=found)
    if found.history is None:
        found = living(await router.load(selector, history=True), param)
    if found.history is None:
        raise AssertionError("a router gives the history that it was asked for")
    return Portable(found=found, history=found.history, hint=found.owner.target)


async def _load_conversation(router: Router, selector: Selector) -> Answer:
    """Return a conversation with its history at once; few are native, and those have none here."""
    try:
        return await router.load(selector, history=True)
    except NativeHistory:
        return await router.load(selector)


def living(answer: Answer, param: str) -> Found:
    """Return what was found. Raises the ``Refusal`` of what was not: ``param`` is the field that named it."""
    match answer:
        case Found():
            return answer
        case Gone():
            raise not_found(param, answer.reason)
        case Missing():
            raise not_found(param, "unknown")


def owner_target(owner: Owner, targets: Mapping[str, Target]) -> Target:
    """Return the target that owns native state. Raises ``Refusal``: 503 when it is not there, 409 when it changed."""
    target = targets.get(owner.target)
    if target is None:
        message = "The target that holds this state is no longer configured; no other target can continue it."
        raise Refusal(503, message, code="owner_unavailable", reason="owner_removed", is_final=True)
    if target.digest != owner.digest:
        message = "The target that holds this state has another endpoint or account now; it cannot be continued there."
        raise Refusal(409, message, code="owner_changed", reason="owner_changed", is_final=True)
    if target.down is not None:
        message = f"The target that holds this state is marked down ({target.down}); no other target can continue it."
        raise Refusal(503, message, code="owner_unavailable", reason="owner_down")
    return target
