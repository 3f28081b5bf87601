"""Digests: what keys are made of, so that the event log holds no raw ID.

All are BLAKE2b keyed with the ledger's alias key, over a length-delimited encoding, with a personalisation per
purpose, so that no two purposes or splits of the same text collide. The alias key lives as long as the ledger.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ledger.errors import InvalidInput
from ledger.turn import Partition, Scope, Selector, SelectorKind

DIGEST_VERSION = 1
"""Written in ``LedgerFormatted``; a process with another one refuses the log."""
DIGEST_BYTES = 20
ALIAS_KEY_BYTES_MIN = 16
ALIAS_KEY_BYTES_MAX = 64


SCOPES_KEPT_MAX = 10_000
"""Scopes whose digests are kept, about 1 KB each: more than the principals active at one moment."""

if TYPE_CHECKING:
    Blake2b = hashlib.blake2b  # The type is not named at run time.


def _join(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


class ScopeDigests(NamedTuple):
    """What is computed once per scope: its digests, and hashers that have already taken the scope in."""

    principal: bytes
    scope: bytes
    aliases: dict[SelectorKind, Blake2b]


@dataclass(frozen=True, slots=True)
class AliasKey:
    """The secret that makes digests; 16 to 64 bytes."""

    secret: bytes = field(repr=False)
    _scopes: dict[Scope, ScopeDigests] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not ALIAS_KEY_BYTES_MIN <= len(self.secret) <= ALIAS_KEY_BYTES_MAX:
            raise InvalidInput("alias_key", f"must have {ALIAS_KEY_BYTES_MIN} to {ALIAS_KEY_BYTES_MAX} bytes")

    def _hasher(self, person: bytes, size: int, *parts: bytes) -> Blake2b:
        return hashlib.blake2b(_join(*parts), digest_size=size, key=self.secret, person=person)

    def _of(self, scope: Scope) -> ScopeDigests:
        digests = self._scopes.get(scope)
        if digests is None:
            if len(self._scopes) >= SCOPES_KEPT_MAX:
                self._scopes.clear()
            namespace, route, principal = scope.namespace.encode(), scope.route.encode(), scope.principal.encode()
            digests = self._scopes[scope] = ScopeDigests(
                principal=self._hasher(b"tl.principal", DIGEST_BYTES, namespace, principal).digest(),
                scope=self._hasher(b"tl.scope", DIGEST_BYTES, namespace, route, principal).digest(),
                aliases={
                    kind: self._hasher(b"tl.alias", DIGEST_BYTES, namespace, route, principal, bytes([kind]))
                    for kind in SelectorKind
                },
            )
        return digests

    def check_value(self) -> bytes:
        """Return 16 bytes that tell two keys apart without telling the key."""
        return self._hasher(b"tl.check", 16).digest()

    def principal(self, scope: Scope) -> bytes:
        """Return the digest of namespace and principal: what decides the partition."""
        return self._of(scope).principal

    def scope(self, scope: Scope) -> bytes:
        """Return the digest of the whole scope: the first part of content keys."""
        return self._of(scope).scope

    def alias(self, selector: Selector) -> bytes:
        """Return the alias: scope, selector kind and opaque ID."""
        return self.alias_of(selector.scope, selector.kind, selector.id)

    def alias_of(self, scope: Scope, kind: SelectorKind, opaque_id: str) -> bytes:
        """Return the alias of an ID that was checked already."""
        hasher = self._of(scope).aliases[kind].copy()
        hasher.update(_join(opaque_id.encode()))
        return hasher.digest()

    def event_id(self, scope: Scope, event_id: str) -> bytes:
        """Return 16 bytes naming one append of one principal."""
        return self._hasher(b"tl.event", 16, self._of(scope).principal, event_id.encode()).digest()

    def abandonment(self, scope: Scope, event_id: str) -> bytes:
        """Return 16 bytes naming the abandonment of an append: every attempt to abandon it is one event."""
        return self._hasher(b"tl.abandon", 16, self._of(scope).principal, event_id.encode()).digest()

    def turn_id(self, scope: Scope, turn_id: str) -> bytes:
        """Return 16 bytes naming one started turn of one principal."""
        return self._hasher(b"tl.turn", 16, self._of(scope).principal, turn_id.encode()).digest()

    def idempotency_key(self, scope: Scope, key: str) -> bytes:
        """Return the digest of a client's idempotency key within its scope."""
        return self._hasher(b"tl.idempotency", DIGEST_BYTES, self._of(scope).scope, key.encode()).digest()


def partition_of(principal_digest: bytes, partition_count: int) -> Partition:
    """Return the partition of a principal: the first 8 bytes of its digest, modulo the count."""
    return Partition(int.from_bytes(principal_digest[:8], "big") % partition_count)


def record_key(namespace: str, lineage: bytes) -> bytes:
    """Return the Kafka key of a turn: namespace and lineage digest.

    The fold never interprets it: partition and lineage come from the header, so a producer's key cannot change a
    verdict.
    """
    return _join(namespace.encode()) + lineage


CONTROL_KEY = b"\0turnledger"
"""Kafka key of events that concern a whole partition."""
