"""Names of the tests and their digests, contents and policy."""

from __future__ import annotations

from ledger import codec
from ledger.alias import DIGEST_VERSION, AliasKey, partition_of
from ledger.content import ContentRef
from ledger.event import LedgerFormatted, OwnerRef
from ledger.policy import Policy
from ledger.turn import Partition, Scope, SelectorKind

P0 = Partition(0)
ALIAS_KEY = AliasKey(b"alias key of the tests")
LEDGER_ID = b"ledger of tests!"
T0_MS = 1_000_000
"""When every world begins: small, so that times in a failure can be read."""
SECOND_MS = 1_000
FOREVER_MS = 50 * 366 * 86_400_000

POLICY = Policy(
    active_ttl_ms=100 * SECOND_MS,
    tombstone_ttl_ms=50 * SECOND_MS,
    commit_grace_ms=10 * SECOND_MS,
    idempotency_ttl_ms=30 * SECOND_MS,
    content_grace_ms=60 * SECOND_MS,
    clock_step_max_ms=300 * SECOND_MS,
    event_window_max_ms=60 * SECOND_MS,
    lease_max_ms=20 * SECOND_MS,
)
"""Lifetimes of seconds, each different, so that a mistaken one shows."""


def scope(principal: str = "alice") -> Scope:
    return Scope(namespace="tests", route="default", principal=principal)


def principal_digest(principal: str = "alice") -> bytes:
    return ALIAS_KEY.principal(scope(principal))


def response_alias(name: str, principal: str = "alice") -> bytes:
    return ALIAS_KEY.alias_of(scope(principal), SelectorKind.RESPONSE, name)


def conversation_alias(name: str, principal: str = "alice") -> bytes:
    return ALIAS_KEY.alias_of(scope(principal), SelectorKind.CONVERSATION, name)


def item_alias(name: str, principal: str = "alice") -> bytes:
    return ALIAS_KEY.alias_of(scope(principal), SelectorKind.ITEM, name)


def key_digest(name: str, principal: str = "alice") -> bytes:
    return ALIAS_KEY.idempotency_key(scope(principal), name)


def event_digest(name: str, principal: str = "alice") -> bytes:
    return ALIAS_KEY.event_id(scope(principal), name)


def turn_digest(name: str, principal: str = "alice") -> bytes:
    return ALIAS_KEY.turn_id(scope(principal), name)


def owner_ref(target: str, *, native: bool) -> OwnerRef:
    return OwnerRef(native=native, target=target, digest=target.encode() if native else b"")


def content_ref(number: int, oldest_at_ms: int, *, size_bytes: int = 100, principal: str = "alice") -> ContentRef:
    """Return the reference of the ``number``-th content of a test."""
    return ContentRef(
        scope=ALIAS_KEY.scope(scope(principal)),
        id=number.to_bytes(16, "big"),
        chunks=1,
        size_bytes=size_bytes,
        last_offset=number,
        oldest_at_ms=oldest_at_ms,
    )


def formatted(policy: Policy, *, partition: int = 0, partition_count: int = 1) -> LedgerFormatted:
    return LedgerFormatted(
        ledger_id=LEDGER_ID,
        partition=partition,
        partition_count=partition_count,
        digest_version=DIGEST_VERSION,
        key_check=ALIAS_KEY.check_value(),
        format=codec.FORMAT,
        fold_version=codec.FOLD_VERSION,
        written_at_ms=T0_MS,
        policy=policy,
    )


def principals_of(partition: int, partition_count: int, number: int) -> list[str]:
    """Return names of principals that live in ``partition``."""
    names = (f"principal-{index}" for index in range(10_000))
    found = (name for name in names if partition_of(principal_digest(name), partition_count) == partition)
    return [next(found) for _ in range(number)]
