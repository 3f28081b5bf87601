"""Port ``EventLog``: the ordered, durable truth that everything else is folded from.

Adapters: ``memory`` (reference, with scripted faults), ``embedded`` (RocksDB, one process), ``kafka``. One contract
suite, ``tests/contracts/test_event_log.py``, runs on all of them and says in tests what the docstrings here say in
words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ledger.turn import Offset, Partition, Position

RECORD_BYTES_MAX = 64 * 1024
"""A record of the event log, key and value together: 256 item aliases of 20 bytes, a sealed part of 1 KiB and the
rest of the header stay far below it. Content chunks are bounded by ``content.CHUNK_BYTES_MAX`` instead."""


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event as read from the log."""

    partition: Partition
    offset: Offset
    appended_at_ms: int
    """Append time of the log (the broker's, not the producer's), milliseconds since 1970."""
    key: bytes | None
    value: bytes | None
    """None only on topics that are compacted: an erasure."""


class RecordBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive records of one partition, and where reading goes on."""

    partition: Partition
    records: tuple[Record, ...]
    """In offset order; may be empty when only control records were passed."""
    next_position: Position
    """Above the last record's offset, by more than one where the log holds control records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Proof that a record is durable: a later read at ``offset`` returns it."""

    offset: Offset
    appended_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What the log says of itself; compared before a process serves and periodically after."""

    partition_count: int
    log_id: str
    """Identity of this very log: a Kafka topic ID, or a random ID of an embedded one. Recreation changes it."""


class Tail(Protocol):
    """A running read of several partitions. Not shared between tasks."""

    async def next(self, wait_s: float) -> list[RecordBatch]:
        """Return what has arrived, at most a few hundred records in all, or [] after ``wait_s``.

        Batches of one partition come in order and without gaps other than control records. Only records that are
        committed (durable, not of an open or aborted transaction) are returned.

        Raises ``LogGap`` when a position lies outside the log, ``Unavailable`` when the log cannot be reached.
        """
        ...

    async def close(self) -> None: ...


class EventLog(Protocol):
    """An append-only log of records in a fixed number of partitions."""

    async def append(self, partition: Partition, key: bytes, value: bytes, *, timeout_s: float) -> Appended:
        """Append one record; return only when it is durable.

        Two appends of one task land in the order of their calls. Raises ``Unavailable`` only when the record was
        certainly not written, ``AppendUncertain`` when it may or may not be (now or later).
        """
        ...

    async def tail(self, positions: Mapping[Partition, Position]) -> Tail:
        """Start reading each partition at its position (0 is the beginning)."""
        ...

    async def end(self, partition: Partition, *, timeout_s: float) -> Position:
        """Return the end (high watermark) of the partition at some moment after this call began.

        Every append that was acknowledged before the call lies below it. Raises ``Unavailable`` when no validated
        leader answers in time.
        """
        ...

    async def manifest(self, *, timeout_s: float) -> Manifest:
        """Return partition count and identity as the log has them now. Raises ``Unavailable``."""
        ...

    async def close(self) -> None:
        """Release everything; later calls raise ``Unavailable('closed')``."""
        ...


class BoundedLog(EventLog, Protocol):
    """A log that also tells where it begins."""

    async def first(self, partition: Partition, *, timeout_s: float) -> Position:
        """Return the position from which on everything is still there: above 0 once the log was trimmed.

        Raises ``Unavailable``.
        """
        ...


class LogGap(Exception):
    """The position asked for is not in the log: below its first offset, or beyond its validated end."""

    def __init__(self, partition: Partition, position: Position, first: Position, end: Position) -> None:
        super().__init__(f"partition {partition}: position {position} is outside {first}…{end}")
        self.partition = partition
        self.position = position
        self.first = first
        self.end = end


class AppendUncertain(Exception):
    """The append was sent and not acknowledged: it may be in the log, or still land there."""
