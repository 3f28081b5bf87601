"""Abandonments that could not be written yet: local rows, so that they outlive the process.

Their kind is not folded, so they are not compared between replicas and no verdict depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ledger import codec
from ledger.event import TurnAbandoned
from ledger.rows import LocalKind
from ledger.table import partition_prefix
from ledger.turn import Partition
from ledger.view import ViewStore


class Outbox:
    """Events of this process that must reach the log."""

    def __init__(self, store: ViewStore) -> None:
        self._store = store

    def put(self, partition: Partition, event: TurnAbandoned) -> None:
        """Keep an event until ``remove``."""
        self._store.write({partition_prefix(partition) + LocalKind.OUTBOX + event.event_id: codec.encode(event)})

    def remove(self, partition: Partition, event_id: bytes) -> None:
        """The event is in the log."""
        self._store.write({partition_prefix(partition) + LocalKind.OUTBOX + event_id: None})

    def entries(self, partitions: Iterable[Partition]) -> Iterator[tuple[Partition, TurnAbandoned]]:
        """Yield what is kept of these partitions."""
        for partition in partitions:
            lower = partition_prefix(partition) + LocalKind.OUTBOX
            for _, value in self._store.scan(lower, lower + b"\xff" * 17):
                event = codec.decode(value)
                assert isinstance(event, TurnAbandoned), "only abandonments are kept"
                yield partition, event
