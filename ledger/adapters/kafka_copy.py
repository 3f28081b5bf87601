"""A replica's own copy of the content topic, as rows of a ``ViewStore``: chunks by key, and how far each partition was
read; and that copy as a disk, from which erased chunks are purged.

Rows: partition (2 bytes, big endian) + ``x`` + chunk key → chunk; partition + ``y`` → ``CopyState``. Chunks and the
state that covers them are one batch, so that after a crash the copy is as of its position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import msgspec

from ledger.log import RecordBatch
from ledger.purged import Purged, unpurged
from ledger.turn import Partition, Position
from ledger.view import PurgeableStore, ViewStore

WIPE_ROWS = 64
"""Rows that are deleted in one batch; then the event loop gets its turn."""
READ_CHUNKS = 8
"""Chunks that are read at once, 4 MiB at most; then the event loop gets its turn."""


class CopyState(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """How far the copy of a partition is."""

    position: int
    fresh_at_ms: int
    """Every erasure that was appended before this moment is in the copy, or lies at or above ``position`` and was not
    yet removed by compaction at this moment."""
    log_id: str
    """Topic ID; a copy of another topic of the same name is worthless."""


class ContentCopy:
    """The rows; synchronous but for what takes many batches."""

    def __init__(self, store: ViewStore) -> None:
        self._store = store
        self._decoder = msgspec.msgpack.Decoder(CopyState)
        self._encoder = msgspec.msgpack.Encoder()

    def load(self, partition: Partition) -> CopyState | None:
        """Return the partition's state; None if there is no copy that can be used. Raises ``StoreFailed``."""
        row = self._store.get(_state_key(partition))
        try:
            return None if row is None else self._decoder.decode(row)
        except msgspec.DecodeError:
            # Written by another release. The copy holds nothing that cannot be read again.
            return None

    def save(self, states: dict[Partition, CopyState]) -> None:
        """Write states without chunks. Raises ``StoreFailed``."""
        self._store.write({_state_key(partition): self._encoder.encode(state) for partition, state in states.items()})

    def apply(self, batch: RecordBatch, state: CopyState) -> None:
        """Write a batch's chunks and erasures with the state that covers them. Raises ``StoreFailed``."""
        changes: dict[bytes, bytes | None] = {_state_key(batch.partition): self._encoder.encode(state)}
        for record in batch.records:
            if record.key is not None:
                changes[_chunk_row(batch.partition, record.key)] = record.value
        self._store.write(changes)

    def forget(self, partition: Partition) -> None:
        """Delete the partition's state, so that ``load`` finds no copy. Raises ``StoreFailed``."""
        self._store.write({_state_key(partition): None})

    def lose(self, partition: Partition) -> None:
        """Forget the state, and store that nothing is purged: a crash may come before the chunks are wiped, or between
        that and a purge. Raises ``StoreFailed``."""
        self._store.write({_state_key(partition): None, **unpurged(partition)})

    def is_empty(self, partition: Partition) -> bool:
        """Return whether there is no chunk of the partition. Raises ``StoreFailed``."""
        return next(self._store.scan(_chunk_row(partition, b""), _state_key(partition)), None) is None

    async def read(self, partition: Partition, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return chunks by key, None for each that is not there. Raises ``StoreFailed``."""
        rows = [_chunk_row(partition, key) for key in keys]
        chunks: list[bytes | None] = []
        for start in range(0, len(rows), READ_CHUNKS):
            if start:
                await asyncio.sleep(0)
            chunks += self._store.get_many(rows[start : start + READ_CHUNKS])
        return chunks

    async def wipe(self, partition: Partition) -> bool:
        """Delete the partition's copy; return whether there was one. Raises ``StoreFailed``."""
        # The state goes first: without it whatever a crash leaves behind is wiped at the next start.
        self.forget(partition)
        lower, upper = _chunk_row(partition, b""), _state_key(partition)
        wiped = False
        while keys := [key for key, _ in islice(self._store.scan(lower, upper), WIPE_ROWS)]:
            self._store.write(dict.fromkeys(keys))
            lower = keys[-1]
            wiped = True
            await asyncio.sleep(0)
        return wiped


class CopyDisk:
    """The copy as a ``Disk``."""

    def __init__(
        self, store: PurgeableStore, copies: Callable[[], Mapping[Partition, tuple[Purged, Position | None]]]
    ) -> None:
        """``copies`` tells of each partition what is purged, and the copy's position, None while it is made again."""
        self._store = store
        self._copies = copies

    def is_due(self) -> bool:
        """See ``Disk.is_due``."""
        return any(purged.is_due and position is not None for purged, position in self._copies().values())

    def purged(self, partition: Partition) -> Position:
        """See ``Disk.purged``."""
        found = self._copies().get(partition)
        return Position(0) if found is None else found[0].at(found[1])

    def begin(self) -> None:
        """See ``Disk.begin``."""
        for purged, position in self._copies().values():
            purged.begin(position)

    def purge(self) -> None:
        """See ``Disk.purge``."""
        self._store.purge()

    def end(self, *, is_purged: bool) -> None:
        """See ``Disk.end``."""
        for purged, _ in self._copies().values():
            if is_purged:
                purged.finish()
            else:
                purged.fail()


def _chunk_row(partition: Partition, key: bytes) -> bytes:
    return partition.to_bytes(2, "big") + b"x" + key


def _state_key(partition: Partition) -> bytes:
    return partition.to_bytes(2, "big") + b"y"
