"""Digests: what keys are made of, so that the event log holds no raw ID.

All are BLAKE2b keyed with the ledger's alias key, over a length-delimited encoding, with a personalisation per
purpose, so that no two purposes or splits of the same text collide. The alias key lives as long as the ledger.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from ledger.errors import InvalidInput
from ledger.turn import Partition, Scope, Selector, SelectorKind

DIGEST_VERSION = 1
"""Written in ``LedgerFormatted``; a process with another one refuses the log."""
DIGEST_BYTES = 20
ALIAS_KEY_BYTES_MIN = 16
ALIAS_KEY_BYTES_MAX = 64


def _join(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


@dataclass(frozen=True, slots=True)
class AliasKey:
    """The secret that makes digests; 16 to 64 bytes."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not ALIAS_KEY_BYTES_MIN <= len(self.secret) <= ALIAS_KEY_BYTES_MAX:
            raise InvalidInput("alias_key", f"must have {ALIAS_KEY_BYTES_MIN} to {ALIAS_KEY_BYTES_MAX} bytes")

    def _digest(self, person: bytes, size: int, *parts: bytes) -> bytes:
        return hashlib.blake2b(_join(*parts), digest_size=size, key=self.secret, person=person).digest()

    def check_value(self) -> bytes:
        """Return 16 bytes that tell two keys apart without telling the key."""
        return self._digest(b"tl.check", 16)

    def principal(self, scope: Scope) -> bytes:
        """Return the digest of namespace and principal: what decides the partition."""
        return self._digest(b"tl.principal", DIGEST_BYTES, scope.namespace.encode(), scope.principal.encode())

    def scope(self, scope: Scope) -> bytes:
        """Return the digest of the whole scope: the first part of content keys."""
        return self._digest(
            b"tl.scope", DIGEST_BYTES, scope.namespace.encode(), scope.route.encode(), scope.principal.encode()
        )

    def alias(self, selector: Selector) -> bytes:
        """Return the alias: scope, selector kind and opaque ID."""
        return self.alias_of(selector.scope, selector.kind, selector.id)

    def alias_of(self, scope: Scope, kind: SelectorKind, opaque_id: str) -> bytes:
        """Return the alias of an ID that was checked already."""
        return self._digest(
            b"tl.alias",
            DIGEST_BYTES,
            scope.namespace.encode(),
            scope.route.encode(),
            scope.principal.encode(),
            bytes([kind]),
            opaque_id.encode(),
        )

    def event_id(self, scope: Scope, event_id: str) -> bytes:
        """Return 16 bytes naming one append of one principal."""
        return self._digest(b"tl.event", 16, scope.namespace.encode(), scope.principal.encode(), event_id.encode())

    def abandonment(self, scope: Scope, event_id: str) -> bytes:
        """Return 16 bytes naming the abandonment of an append: every attempt to abandon it is one event."""
        return self._digest(b"tl.abandon", 16, scope.namespace.encode(), scope.principal.encode(), event_id.encode())

    def turn_id(self, scope: Scope, turn_id: str) -> bytes:
        """Return 16 bytes naming one started turn of one principal."""
        return self._digest(b"tl.turn", 16, scope.namespace.encode(), scope.principal.encode(), turn_id.encode())

    def idempotency_key(self, scope: Scope, key: str) -> bytes:
        """Return the digest of a client's idempotency key within its scope."""
        return self._digest(
            b"tl.idempotency",
            DIGEST_BYTES,
            scope.namespace.encode(),
            scope.route.encode(),
            scope.principal.encode(),
            key.encode(),
        )


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
