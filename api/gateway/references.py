"""Items that a request's input names or brings along: whose they are, and what they say.

An item reference is a selector like any other: resolved within the scope of who asks, or refused by name. An
``encrypted_content`` is readable for the target that made it only, and goes to no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from api.gateway.request import is_reference
from api.gateway.response import is_item_id, item_ids_of
from api.gateway.service import Gateway, state_is_off
from ledger.answer import Answer, Found, Gone
from ledger.continuation import Target, owner_target
from ledger.refusal import Refusal
from ledger.turn import Owner, Scope, Selector, SelectorKind

LOOKUPS_AT_ONCE_MAX = 16
"""Each has the whole turn of its item in memory."""


@dataclass(frozen=True, slots=True)
class References:
    """The items that a request names."""

    items: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Portable ones, by ID."""
    target: Target | None = None
    """The owner of native ones: only it can resolve them."""


async def resolve(gateway: Gateway, scope: Scope, reference_ids: Sequence[str]) -> References:
    """Return what the references of a request name. Raises ``Refusal`` naming the one that names nothing."""
    if not reference_ids:
        return References()
    if gateway.ledger is None:
        raise state_is_off("input")
    reader = gateway.ledger.reader
    selectors = [Selector(scope=scope, kind=SelectorKind.ITEM, id=item_id) for item_id in dict.fromkeys(reference_ids)]
    items: dict[str, Any] = {}
    owners: list[Owner] = []
    for selector in selectors:
        answer, entry = await gateway.metrics.lookup_entry(selector.kind, reader.entry(selector))
        found = _living_item(answer, selector.id)
        if found.owner.native:
            owners.append(found.owner)
            continue
        named = [item for item in (*entry.input, *entry.output) if item.get("id") == selector.id] if entry else []
        if not named:
            raise _unknown_item(selector.id, "unknown")
        items[selector.id] = named[0]
    if not owners:
        return References(items)
    if items or any(owner != owners[0] for owner in owners):
        message = "Items of different owners cannot be referred to in one request; send the items themselves."
        raise Refusal(400, message, code="invalid_value", param="input", reason="mixed_owners")
    return References(target=owner_target(owners[0], gateway.routing.targets()))


def resolved(items: Sequence[Any], references: References) -> list[Any]:
    """Return ``items`` with what they name in the place of portable references."""
    return [references.items.get(item["id"], item) if is_reference(item) else item for item in items]


async def readable_by(gateway: Gateway, scope: Scope, items: Sequence[Any], target: Target) -> list[Any]:
    """Return input items without the reasoning that another target has encrypted.

    What follows a dropped item loses its ID, because a provider wants an item of its own only together with the
    reasoning that led to it. Where there is one target, everything is its own and nothing is asked.
    """
    sealed = {index for index, item in enumerate(items) if _is_encrypted(item)}
    if not sealed or len(gateway.config.targets) == 1:
        return list(items)
    owned = await _owned(gateway, scope, item_ids_of([items[index] for index in sorted(sealed)]), target)
    kept: list[Any] = []
    is_after_dropped = False
    for index, item in enumerate(items):
        if index in sealed and not (is_item_id(item.get("id")) and item["id"] in owned):
            is_after_dropped = True
            continue
        kept.append(without_id(item) if is_after_dropped else item)
        is_after_dropped = False
    return kept


def has_encrypted(items: Sequence[Any]) -> bool:
    """Return whether one of the items is readable for the target that made it only."""
    return any(_is_encrypted(item) for item in items)


def _is_encrypted(item: Mapping[str, Any]) -> bool:
    return item.get("encrypted_content") is not None


def without_id(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item without what only the one who made it knows."""
    return {name: value for name, value in item.items() if name not in ("id", "status")}


async def _owned(gateway: Gateway, scope: Scope, item_ids: Sequence[str], target: Target) -> set[str]:
    """Return those of the items that the ledger knows as the target's: made by it, not only sent to it."""
    if gateway.ledger is None:
        return set()
    reader, metrics = gateway.ledger.reader, gateway.metrics
    selectors = [Selector(scope=scope, kind=SelectorKind.ITEM, id=item_id) for item_id in item_ids]
    owned: set[str] = set()
    for start in range(0, len(selectors), LOOKUPS_AT_ONCE_MAX):
        part = selectors[start : start + LOOKUPS_AT_ONCE_MAX]
        answers = await asyncio.gather(
            *(metrics.lookup_entry(selector.kind, reader.entry(selector)) for selector in part)
        )
        owned.update(
            selector.id
            for selector, (answer, entry) in zip(part, answers, strict=True)
            if isinstance(answer, Found)
            and answer.owner == target.owner(native=answer.owner.native)
            and (entry is None or any(item.get("id") == selector.id for item in entry.output))
        )
    return owned


def _living_item(answer: Answer, item_id: str) -> Found:
    match answer:
        case Found():
            return answer
        case Gone():
            raise _unknown_item(item_id, answer.reason)
        case _:
            raise _unknown_item(item_id, "unknown")


def _unknown_item(item_id: str, reason: str) -> Refusal:
    message = f"The item '{item_id}' that the input refers to is {reason}; send the item itself."
    return Refusal(404, message, code="item_not_found", param="input", reason=reason)
