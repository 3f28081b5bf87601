"""How far erased bytes have left a disk: a position per partition and database.

RocksDB deletes by writing, and keeps the bytes until it rewrites their files (a *purge*). What was erased below the
position that was reached when the last completed purge began is gone; and while nothing is erased, nothing has to be
rewritten, so the position simply goes on. It is stored beside what it speaks of. After a crash it may lag behind that,
and then something may have been erased in between: another purge is due.
"""

from __future__ import annotations

import contextlib

from ledger.errors import StoreFailed
from ledger.rows import LocalKind, MetaRow
from ledger.table import partition_prefix
from ledger.turn import Partition, Position
from ledger.view import ViewStore

POSITION_BYTES = 8


def purged_key(partition: Partition) -> bytes:
    """Return the key of the local row."""
    return partition_prefix(partition) + LocalKind.PURGED


def unpurged(partition: Partition) -> dict[bytes, bytes | None]:
    """Return the local row that says: nothing is known to be purged, and a purge is due."""
    return {purged_key(partition): bytes(POSITION_BYTES)}


def swept_position(meta: MetaRow) -> Position | None:
    """Return the position of rows of which everything that was erased below it is deleted; None: some is queued yet."""
    return Position(meta.position) if meta.queue_due_ms > meta.clock_ms else None


class Purged:
    """What left the disk of one partition in one database."""

    def __init__(self, store: ViewStore, partition: Partition, position: Position) -> None:
        """``position`` is that of what is in the store now. Raises ``StoreFailed``."""
        self._store = store
        self._partition = partition
        self._key = purged_key(partition)
        row = store.get(self._key)
        self._position = self._saved = Position(int.from_bytes(row or b"", "big"))
        self._begun: Position | None = None
        self.is_new = row is None and position == 0
        """Whether there was nothing yet in the store."""
        self.is_due = self._position < position or (row is not None and not self._position)
        """Whether something may have been erased since the last purge began."""

    def at(self, position: Position | None) -> Position:
        """Return up to where erased bytes are gone.

        ``position`` is where the store is now, if all that was erased below it is deleted there.
        """
        if position is not None and not self.is_due and self._begun is None:
            self._position = position
        return self._position

    def erased(self) -> None:
        """Something was erased."""
        self.is_due = True

    def begin(self, position: Position | None) -> None:
        """A purge begins; ``position`` as for ``at``: without one, a purge that is due is due after this one too."""
        self._begun = position
        self.is_due = self.is_due and position is None

    def finish(self) -> None:
        """The purge is complete."""
        if self._begun is not None:
            self._position, self._begun = self._begun, None
            with contextlib.suppress(StoreFailed):
                # The bytes are gone all the same. What is not stored is purged once more after a crash.
                self.save()

    def fail(self) -> None:
        """The purge was not completed."""
        self._begun = None
        self.is_due = True

    def reset(self) -> None:
        """The store is made again, from a source that may hold what was erased. Raises ``StoreFailed``."""
        self._position = self._saved = Position(0)
        self.fail()
        self._store.write(unpurged(self._partition))

    def save(self) -> None:
        """Store the position. Raises ``StoreFailed``."""
        if self._saved != self._position:
            self._store.write({self._key: self._position.to_bytes(POSITION_BYTES, "big")})
            self._saved = self._position
