"""How far erased bytes have left a disk: never further than they have, over purges, failures, restarts and resets."""

from __future__ import annotations

from collections.abc import Mapping

from ledger.adapters.kafka_copy import CopyDisk
from ledger.adapters.memory import MemoryViewStore
from ledger.errors import StoreFailed
from ledger.purged import Purged, swept_position
from ledger.rows import MetaRow
from ledger.turn import Partition, Position

P1 = Partition(1)


def purged_of(store: MemoryViewStore, position: int) -> Purged:
    return Purged(store, P1, Position(position))


def test_position_goes_on_by_itself_while_nothing_is_erased() -> None:
    purged = purged_of(MemoryViewStore(), 0)
    assert not purged.is_due
    assert purged.at(Position(7)) == 7
    assert purged.at(None) == 7, "something is queued to be deleted"


def test_erasure_holds_the_position_until_a_purge_that_began_after_it_is_complete() -> None:
    purged = purged_of(MemoryViewStore(), 0)
    purged.at(Position(7))
    purged.erased()
    assert purged.at(Position(9)) == 7
    purged.begin(Position(9))
    assert purged.at(Position(11)) == 7, "it is not complete"
    purged.finish()
    assert (purged.is_due, purged.at(Position(12))) == (False, 12)


def test_erasure_during_a_purge_needs_another_one() -> None:
    purged = purged_of(MemoryViewStore(), 0)
    purged.erased()
    purged.begin(Position(9))
    purged.erased()
    purged.finish()
    assert (purged.is_due, purged.at(Position(12))) == (True, 9)


def test_purge_that_failed_or_came_before_the_rows_were_deleted_purges_nothing() -> None:
    purged = purged_of(MemoryViewStore(), 0)
    purged.erased()
    purged.begin(Position(9))
    purged.fail()
    assert (purged.is_due, purged.at(Position(12))) == (True, 0)
    purged.begin(None)
    purged.finish()
    assert (purged.is_due, purged.at(Position(12))) == (True, 0)


def test_restart_goes_on_where_it_was_saved_and_purges_again_after_a_crash() -> None:
    store = MemoryViewStore()
    purged = purged_of(store, 0)
    purged.at(Position(7))
    purged.save()
    assert (purged_of(store, 7).is_due, purged_of(store, 7).at(Position(7))) == (False, 7)
    # The rows went on, and nobody knows whether something was erased among them.
    assert (purged_of(store, 8).is_due, purged_of(store, 8).at(Position(8))) == (True, 7)
    assert purged_of(MemoryViewStore(), 8).is_due, "rows that were read from a table may be those of an erased one"


def test_store_that_is_made_again_has_nothing_purged_until_it_is() -> None:
    store = MemoryViewStore()
    assert purged_of(store, 0).is_new
    purged = purged_of(store, 0)
    purged.at(Position(7))
    purged.begin(Position(7))
    purged.reset()
    purged.finish()
    assert (purged.is_due, purged.at(Position(9))) == (True, 0)
    again = purged_of(store, 0)
    assert (again.is_new, again.is_due) == (False, True), "what was there before is on the disk yet"


class FailingStore(MemoryViewStore):
    """A store that fails so many of its next writes."""

    failing_count = 0

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        if self.failing_count:
            self.failing_count -= 1
            raise StoreFailed("no space")
        super().write(changes)

    def purge(self) -> None:
        """Deleted rows leave nothing behind here."""

    def stop_purging(self) -> None:
        """It has ended."""


def test_purge_that_cannot_be_stored_is_complete_for_every_partition_and_due_again_after_a_crash() -> None:
    store = FailingStore()
    copies = {number: Purged(store, number, Position(0)) for number in (Partition(0), P1)}
    disk = CopyDisk(store, lambda: {number: (purged, Position(9)) for number, purged in copies.items()})
    for purged in copies.values():
        purged.erased()
    disk.begin()
    store.failing_count = 1
    disk.end(is_purged=True)
    assert not disk.is_due()
    assert [disk.purged(number) for number in copies] == [9, 9]
    assert [Purged(store, number, Position(9)).is_due for number in copies] == [True, False]
    copies[Partition(0)].save()
    assert not Purged(store, Partition(0), Position(9)).is_due


def test_purge_while_something_is_queued_makes_none_due_where_nothing_was_erased() -> None:
    purged = purged_of(MemoryViewStore(), 0)
    purged.at(Position(7))
    purged.begin(None)
    purged.finish()
    assert (purged.is_due, purged.at(Position(9))) == (False, 9)


def test_rows_are_swept_when_nothing_that_is_due_is_left() -> None:
    assert swept_position(MetaRow(position=9, clock_ms=100, queue_due_ms=101)) == 9
    assert swept_position(MetaRow(position=9, clock_ms=100, queue_due_ms=100)) is None
