"""The databases of a replica as disks: what was erased in them and is not purged yet, and who uses them for long."""

from __future__ import annotations

from typing import Protocol

from ledger.purged import Purged, swept_position
from ledger.replica import Replica
from ledger.turn import Partition, Position
from ledger.view import PurgeableStore


class Disk(Protocol):
    """One database. ``begin``, ``purge`` in a thread, then ``end``."""

    def is_due(self) -> bool:
        """Return whether a purge would take something off it."""
        ...

    def purged(self, partition: Partition) -> Position:
        """Return up to where erased bytes are gone."""
        ...

    def begin(self) -> None:
        """Raises ``StoreFailed``; ``end`` it all the same."""
        ...

    def purge(self) -> None:
        """Rewrite it. Raises ``StoreFailed``."""
        ...

    def end(self, *, is_purged: bool) -> None: ...


class DiskUse:
    """Who uses a database so that somebody else must wait: a scan keeps the very files that a purge replaces."""

    def __init__(self) -> None:
        self.is_purging = False
        self.is_purge_due = False
        """A purge waits for the present scan, and comes before the next one."""
        self.is_scanning = False


class RowsDisk:
    """The view of a replica."""

    def __init__(self, store: PurgeableStore, replica: Replica) -> None:
        self._store = store
        self._replica = replica
        self._purged: dict[Partition, Purged] = {}

    def erased(self, partition: Partition) -> None:
        """A principal of the partition was erased."""
        self._of(partition).erased()

    def is_due(self) -> bool:
        """See ``Disk.is_due``; what is queued yet is not taken off."""
        return any(self._of(number).is_due and self._swept(number) is not None for number in self._replica.states())

    def purged(self, partition: Partition) -> Position:
        """See ``Disk.purged``."""
        return self._of(partition).at(self._swept(partition))

    def begin(self) -> None:
        """See ``Disk.begin``."""
        for partition in self._replica.states():
            self._of(partition).begin(self._swept(partition))

    def purge(self) -> None:
        """See ``Disk.purge``."""
        self._store.purge()

    def end(self, *, is_purged: bool) -> None:
        """See ``Disk.end``."""
        for purged in self._purged.values():
            if is_purged:
                purged.finish()
            else:
                purged.fail()

    def save(self) -> None:
        """Store how far it is purged. Raises ``StoreFailed``."""
        for partition, purged in self._purged.items():
            purged.at(self._swept(partition))
            purged.save()

    def _of(self, partition: Partition) -> Purged:
        purged = self._purged.get(partition)
        if purged is None:
            found = self._replica.states()[partition].started_position
            purged = self._purged[partition] = Purged(self._store, partition, found)
        return purged

    def _swept(self, partition: Partition) -> Position | None:
        return swept_position(self._replica.states()[partition].rows.stored_meta)
