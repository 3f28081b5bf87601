"""Audit: the log again, on the side, with the verdict of every event.

A replay folds from the beginning into rows of its own, so what it says is what every replica decided, whatever the
state of the live views. It reads up to the end that the log had when it began.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from ledger import codec
from ledger.errors import UndecodableRecord
from ledger.event import Event
from ledger.fold import fold
from ledger.log import EventLog, Record
from ledger.reading import read
from ledger.table import Rows
from ledger.turn import Offset, Partition, Position
from ledger.verdict import Outcome
from ledger.view import ViewStore

ASK_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which events a replay shows; empty: all. The rest is folded all the same, as verdicts depend on it."""

    aliases: frozenset[bytes] = frozenset()
    """Events that name one of these responses or conversations, or whose turn lies in their lineage."""
    principals: frozenset[bytes] = frozenset()
    namespace: str | None = None
    """By record key; events of partitions (format, policy, clock) have none and are left out."""
    until_offset: Offset | None = None
    """Last offset shown, in each partition."""
    until_ms: int | None = None
    """Append time after which nothing is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One record with what the fold made of it."""

    record: Record
    event: Event | None
    """None: quarantined."""
    outcome: Outcome
    lineage: bytes | None
    """Of the node it made or answered from."""

    def described(self) -> dict[str, Any]:
        """Return it as JSON values: digests in hexadecimal, raw IDs where the sealed part has them."""
        sealed = codec.decode_sealed(getattr(self.event, "sealed", b""))
        described: dict[str, Any] = {
            "partition": self.record.partition,
            "offset": self.record.offset,
            "appended_at_ms": self.record.appended_at_ms,
            "type": "Quarantined" if self.event is None else type(self.event).__name__,
            "verdict": self.outcome.code.word,
        }
        optional = {
            "first_verdict": None if self.outcome.first is None else self.outcome.first.word,
            "first_offset": None if self.outcome.first is None else self.outcome.first_offset,
            "reason": self.outcome.reason or None,
            "revision": self.outcome.revision or None,
            "lineage": None if self.lineage is None else self.lineage.hex(),
            "response_id": sealed.response_id,
            "conversation_id": sealed.conversation_id,
        }
        described |= {name: value for name, value in optional.items() if value is not None}
        if self.event is not None:
            described["event"] = _jsonable(self.event)
        return described


async def replay(
    log: EventLog, store: ViewStore, partitions: Iterable[Partition], shown: Filter
) -> AsyncGenerator[Replayed, None]:
    """Yield the events that ``shown`` selects, partition by partition in log order. ``store`` is scratch space.

    Raises ``Unavailable``: ``log_gap`` when the log no longer begins at its first record.
    """
    for partition in partitions:
        end = await log.end(partition, timeout_s=ASK_TIMEOUT_S)
        if shown.until_offset is not None:
            end = Position(min(end, shown.until_offset + 1))
        rows = Rows(store, partition)
        async with aclosing(read(log, partition, Position(0), end)) as records:
            async for record in records:
                if shown.until_ms is not None and record.appended_at_ms > shown.until_ms:
                    break
                outcome, _ = fold(rows, record)
                store.write(rows.changes())
                rows.committed()
                replayed = _replayed(rows, record, outcome)
                if _is_shown(replayed, shown):
                    yield replayed


def _replayed(rows: Rows, record: Record, outcome: Outcome) -> Replayed:
    try:
        event: Event | None = codec.decode(record.value, rows.meta.format)
    except UndecodableRecord:
        event = None
    node = rows.node(outcome.node) if outcome.node else None
    return Replayed(record=record, event=event, outcome=outcome, lineage=None if node is None else node.lineage)


def _is_shown(replayed: Replayed, shown: Filter) -> bool:
    event = replayed.event
    if shown.principals and getattr(event, "principal", None) not in shown.principals:
        return False
    if shown.namespace is not None and not _is_in_namespace(replayed.record, shown.namespace):
        return False
    if not shown.aliases:
        return True
    named = {getattr(event, name, None) for name in ("response", "parent", "conversation")} | {replayed.lineage}
    return not shown.aliases.isdisjoint(named)


def _is_in_namespace(record: Record, namespace: str) -> bool:
    name = namespace.encode()
    return record.key is not None and record.key.startswith(len(name).to_bytes(4, "big") + name)


def _jsonable(value: Any) -> Any:
    """Return a struct of the wire as JSON values."""
    if isinstance(value, msgspec.Struct):
        return {name: _jsonable(getattr(value, name)) for name in value.__struct_fields__ if name != "sealed"}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [_jsonable(entry) for entry in value]
    return value
