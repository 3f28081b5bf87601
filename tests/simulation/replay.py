"""The real fold over the finished log, record by record and without a replica: what every replica's rows must equal."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator

from ledger.adapters.memory import MemoryViewStore
from ledger.fold import fold
from ledger.table import Rows, folded_rows
from ledger.turn import Partition, Position
from ledger.view import ViewStore
from tests.simulation.evidence import Evidence


def rows_digest(store: ViewStore, partition: Partition) -> str:
    """Return a digest over all rows that the fold made of a partition."""
    digest = hashlib.blake2b(digest_size=12)
    for key, value in folded_rows(store, partition):
        digest.update(b"%d|%d|" % (len(key), len(value)) + key + value)
    return digest.hexdigest()


def replayed(
    evidence: Evidence, places: Collection[tuple[Partition, Position]]
) -> Iterator[tuple[Partition, Position, str]]:
    """Fold every partition anew; yield the digest at each of ``places``."""
    for partition, records in evidence.records.items():
        store = MemoryViewStore()
        rows = Rows(store, partition)
        for record in records:
            fold(rows, record)
            store.write(rows.changes())
            rows.committed()
            position = Position(record.offset + 1)
            if (partition, position) in places:
                yield partition, position, rows_digest(store, partition)
