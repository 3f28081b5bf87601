"""One partition in the materialize service: restored from its table, then folded and written batch by batch.

Rules kept here:

- The writer is started first, which fences whoever had the partition before; only then is the table read, to its last
  marker. What the fold goes on from is what the table says, never what this process remembers.
- Rows, marker, facts and checkpoint of a batch are one transaction, and the local rows are written after it. Whatever
  fails, the lane is thrown away and restored.
- A table that does not verify is emptied and made again from the beginning of the log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import structlog

from ledger.bootstrap import TableRefused, check_table, read_table, wipe
from ledger.checkpoint import Signer
from ledger.closing import close_each
from ledger.errors import StoreFailed, Unavailable
from ledger.facts import encode_fact, fact_key
from ledger.fold import UnsupportedUpgrade, is_anchor
from ledger.log import BoundedLog, EventLog, Record, RecordBatch
from ledger.partition import Part, PartitionState, fold_part
from ledger.purged import Purged, swept_position
from ledger.reading import read
from ledger.report import RowsStatement, first_piece, is_crossing
from ledger.reporter import Holding, Standing
from ledger.table import Rows
from ledger.tables import (
    MARKER_KEY,
    NO_ROWS,
    Marker,
    TableCopy,
    TableState,
    agrees,
    encode_marker,
    marker_of,
    table_change,
)
from ledger.turn import Offset, Partition, Position
from ledger.verdict import ErasureOrdered, Fact
from ledger.view import PurgeableStore
from processors.checkpoints import Checkpoints
from processors.ports import Records, StartWriter, Writer

logger = structlog.get_logger("processors.lane")

TABLES, LIFECYCLE, CHECKPOINTS = "tables", "lifecycle", "checkpoints"
"""Topics that a batch is written to, without their prefix."""
FOLD_RECORDS_MAX = 16
"""Records folded before others on the event loop get their turn: about 2 ms, or 50 where each carries out due tasks."""
CHANGES_MAX = 2_500
"""Row changes of one transaction, about those of 700 turns: a tick may carry out so many due tasks that a dozen make as
many."""
CHANGE_ROWS_MAX = 512
"""Row changes that are digested before others on the event loop get their turn: about 3 ms."""
RESET_KEYS_MAX = 5_000
"""Rows of a table that are deleted in one transaction when it is made again."""
ASK_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneParts:
    """What every lane is made of."""

    log: BoundedLog
    tables: EventLog
    start_writer: StartWriter
    open_store: Callable[[Partition], PurgeableStore]
    signer: Signer
    now_ms: Callable[[], int]
    computing: asyncio.Lock
    """One lane computes at a time: if all did, each would hold up the connections of all others."""


class _Folded(NamedTuple):
    """What was folded for one transaction."""

    records_count: int
    facts: list[Fact]
    upgrade: UnsupportedUpgrade | None


class _Change(NamedTuple):
    """What was folded and not written yet."""

    changes: dict[bytes, bytes | None]
    records: list[tuple[bytes, bytes | None]]
    marker: Marker


class LaneStopped(Exception):
    """The partition cannot be materialized until somebody acts."""

    def __init__(self, reason: Unavailable) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Lane:
    """One partition. ``restore`` it, then ``fold`` its batches in order, one at a time."""

    def __init__(self, parts: LaneParts, partition: Partition) -> None:
        self.partition = partition
        self._parts = parts
        self.store = parts.open_store(partition)
        self._copy = TableCopy(self.store, partition)
        self._writer: Writer | None = None
        self._writing = asyncio.Lock()
        """A writer has one transaction at a time."""
        self._log_id = ""
        self._tables_id = ""
        self._state = TableState(tables_id="")
        self._partition_state = PartitionState(rows=Rows(self.store, partition))
        self._checkpoints = Checkpoints(parts.signer, partition, parts.now_ms)
        self._must_check_anchor = False
        self.purged = Purged(self.store, partition, self.rows.position)
        """What this worker's disk still holds of what was erased."""
        self.restored_from = ""
        """``local``, ``tables`` or ``log``: where the rows came from at the last assignment."""
        self._purging: asyncio.Task[None] | None = None

    @property
    def rows(self) -> Rows:
        return self._partition_state.rows

    @property
    def rows_count(self) -> int:
        return self._state.rows_count

    @property
    def marker(self) -> Marker | None:
        """The last marker that this lane has read or written."""
        return self._state.marker

    @property
    def start(self) -> Position:
        """Where to read the log from: the anchor, if it can be compared, else the position."""
        if self._must_check_anchor:
            return Position(self.rows.meta.anchor_offset)
        return self.rows.position

    async def restore(self) -> None:
        """Fence the writer before, and make the local rows those of the table.

        Raises ``LaneStopped``, ``Unavailable``, ``WriterFenced``, ``AppendUncertain``, ``StoreFailed``.
        """
        self._writer = await self._parts.start_writer(self.partition)
        self._log_id = (await self._parts.log.manifest(timeout_s=ASK_TIMEOUT_S)).log_id
        self._tables_id = (await self._parts.tables.manifest(timeout_s=ASK_TIMEOUT_S)).log_id
        known = self._copy.load()
        if known is not None and known.tables_id == self._tables_id and await self._read(known):
            self.restored_from = "local"
        else:
            await wipe(self._copy)
            if await self._read(TableState(tables_id=self._tables_id)):
                self.restored_from = "tables"
            else:
                await self._begin_anew()
                self.restored_from = "log"
        self._partition_state = PartitionState(rows=Rows(self.store, self.partition))
        self._must_check_anchor = self.rows.meta.anchor_offset >= 0
        self.purged = Purged(self.store, self.partition, self.rows.position)
        logger.info(
            "lane_restored",
            partition=self.partition,
            source=self.restored_from,
            position=self.rows.position,
            rows=self.rows_count,
        )

    async def _read(self, state: TableState) -> bool:
        """Read the table from ``state`` on; return whether its rows may be gone on from."""
        try:
            state = await read_table(self._copy, state, self._parts.tables, None)
            check_table(self._copy, state, self._log_id)
        except TableRefused as refused:
            say = logger.info if refused.reason == "empty" else logger.warning
            say("table_refused", partition=self.partition, reason=refused.reason, message=str(refused))
            match refused.reason:
                case "upgrade":
                    raise LaneStopped(Unavailable("upgrade", str(refused))) from refused
                case "other_log":
                    message = f"{refused}; remove the topic 'tables' and make it again if the log is the right one"
                    raise LaneStopped(Unavailable("log_diverged", message)) from refused
                case "silent":
                    raise Unavailable("lagging", str(refused)) from refused
                case _:
                    return False
        self._state = state
        return True

    async def _begin_anew(self) -> None:
        """Empty the table and the local rows, so that the fold begins at the first record of the log.

        Raises ``LaneStopped`` when that record is not there any more: the table is left, whatever is wrong with it.
        """
        log_first = await self._parts.log.first(self.partition, timeout_s=ASK_TIMEOUT_S)
        if log_first > 0:
            message = (
                f"the table of partition {self.partition} cannot be used, and the log that it could be made again from "
                f"begins at {log_first}; restore the topics from a backup"
            )
            raise LaneStopped(Unavailable("log_gap", message))
        await wipe(self._copy)
        stale = sorted(await self._table_keys())
        marker = marker_of(Rows(self.store, self.partition).meta, self._log_id, NO_ROWS, 0)
        position = 0
        if stale:
            logger.warning("table_emptied", partition=self.partition, rows=len(stale))
            assert self._writer is not None, "the writer was started"
            for first in range(0, len(stale), RESET_KEYS_MAX):
                deleted: list[tuple[bytes, bytes | None]] = [
                    (key, None) for key in stale[first : first + RESET_KEYS_MAX]
                ]
                # A marker of no rows after each part: a reader begins anew behind it.
                written = await self._writer.write({TABLES: [*deleted, (MARKER_KEY, encode_marker(marker))]})
                position = written[TABLES] + 1
        self._state = TableState(tables_id=self._tables_id, position=position, marker=marker)
        self.store.write(self._copy.state_change(self._state))

    async def _table_keys(self) -> set[bytes]:
        """Return every key that has a value in the table, whatever it is."""
        end = await self._parts.tables.end(self.partition, timeout_s=ASK_TIMEOUT_S)
        keys: set[bytes] = set()
        async for record in read(self._parts.tables, self.partition, Position(0), end):
            if record.key is None or record.key == MARKER_KEY:
                continue
            if record.value is None:
                keys.discard(record.key)
            else:
                keys.add(record.key)
        return keys

    @property
    def swept_position(self) -> Position | None:
        """The position of the rows on the disk, if nothing erased below it is left among them."""
        return swept_position(self.rows.stored_meta)

    def holding(self) -> Holding | None:
        """Return what this worker has of the partition."""
        marker, meta = self.marker, self.rows.stored_meta
        if marker is None:
            return None
        rows = RowsStatement(marker.rows_digest, marker.rows_count) if agrees(meta, marker) else None
        return Holding(Standing(meta, marker.log_id, rows), self.purged.at(self.swept_position), None)

    async def purge(self) -> None:
        """Take what was erased off the disk. Raises ``StoreFailed``; ``PurgeStopped`` when the lane is closed.

        It runs in a thread, so it goes on when its caller is cancelled, until ``close``. Whoever calls meanwhile waits
        for the same one.
        """
        if self._purging is None:
            self._purging = asyncio.create_task(self._purge())
        await asyncio.shield(self._purging)

    async def _purge(self) -> None:
        purged = self.purged
        try:
            purged.begin(self.swept_position)
            await asyncio.to_thread(self.store.purge)
        except BaseException:
            purged.fail()
            raise
        finally:
            self._purging = None
        purged.finish()

    def anchor_trimmed(self, first: Position) -> bool:
        """Return whether a gap below ``first`` hides nothing but the anchor; it is then not compared any more."""
        if self._must_check_anchor and first <= self.rows.position:
            self._must_check_anchor = False
            return True
        return False

    async def fold(self, batches: list[RecordBatch]) -> int:
        """Fold batches and write what came of them in one transaction; return how many records that were.

        Raises ``LaneStopped``, ``WriterFenced``, ``AppendUncertain``, ``StoreFailed``; after any of them the lane must
        be restored.
        """
        pieces = deque(piece for batch in batches for piece in self._pieces(batch))
        total = 0
        while pieces:
            async with self._parts.computing:
                folded = await self._fold_rows(pieces)
                change = await self._change() if folded.records_count or self.rows.has_skipped else None
            if change is not None:
                await self._write(change, folded.facts)
            if folded.upgrade is not None:
                raise LaneStopped(Unavailable("upgrade", str(folded.upgrade)))
            total += folded.records_count
        return total

    def _pieces(self, batch: RecordBatch) -> list[Part]:
        """Return a batch in parts so small that others on the event loop get their turn in between."""
        records = self._behind_anchor(batch)
        parts: list[Part] = []
        start = 0
        while piece := first_piece(records, start, FOLD_RECORDS_MAX):
            parts.append(Part(self.partition, piece, None))
            start += len(piece)
        return [*parts, Part(self.partition, (), batch.next_position)]

    async def _fold_rows(self, pieces: deque[Part]) -> _Folded:
        """Fold pieces, and take them away, until there is enough for one transaction, or an aligned place is
        reached."""
        facts: list[Fact] = []
        count = 0
        while pieces and self.rows.changes_count < CHANGES_MAX:
            records = pieces[0].records
            if count and records and is_crossing(self.rows.meta.anchor_offset, records[0].offset):
                break
            folded = fold_part(self._partition_state, pieces.popleft(), changes_max=CHANGES_MAX)
            if folded.rest is not None:
                pieces.appendleft(folded.rest)
            facts += folded.facts
            count += len(folded.outcomes)
            if folded.upgrade is not None:
                return _Folded(count, facts, folded.upgrade)
            await asyncio.sleep(0)
        return _Folded(count, facts, None)

    def _behind_anchor(self, batch: RecordBatch) -> tuple[Record, ...]:
        """Compare the first record of a newly opened tail with the last one folded; return what was not folded yet."""
        if self._must_check_anchor and batch.records:
            self._must_check_anchor = False
            if not is_anchor(self.rows.meta, batch.records[0]):
                message = (
                    f"partition {self.partition}: the record at offset {self.rows.meta.anchor_offset} is not the one "
                    "that the table was made from; the log lost or replaced records"
                )
                raise LaneStopped(Unavailable("log_diverged", message))
        position = self.rows.position
        return tuple(record for record in batch.records if record.offset >= position)

    async def _change(self) -> _Change:
        """Return what was folded since the last write, and what it means for the table."""
        new, other, derived = self.rows.changes_apart()
        records: list[tuple[bytes, bytes | None]] = []
        rows_digest, rows_count = self._state.rows_digest, self._state.rows_count
        for added, part in zip_longest(_parts(new), _parts(other)):
            change = table_change(self.store, part or {}, rows_digest, rows_count, new=added or {})
            rows_digest, rows_count = change.rows_digest, change.rows_count
            records += change.records
            await asyncio.sleep(0)
        marker = marker_of(self.rows.meta, self._log_id, rows_digest, rows_count)
        return _Change({**new, **other, **derived}, records, marker)

    async def _write(self, change: _Change, facts: list[Fact]) -> None:
        marker = change.marker
        checkpoint = self._checkpoints.due(self.marker, marker)
        written = await self._transact(
            {
                TABLES: [*change.records, (MARKER_KEY, encode_marker(marker))],
                LIFECYCLE: [(fact_key(fact), encode_fact(fact)) for fact in facts],
                CHECKPOINTS: checkpoint,
            }
        )
        self._checkpoints.written(checkpoint)
        self._state = TableState(
            tables_id=self._tables_id,
            position=written[TABLES] + 1,
            rows_digest=marker.rows_digest,
            rows_count=marker.rows_count,
            marker=marker,
        )
        self.store.write(change.changes | self._copy.state_change(self._state))
        self.rows.committed()
        if any(isinstance(fact, ErasureOrdered) for fact in facts):
            self.purged.erased()

    async def write_idle_checkpoint(self) -> None:
        """Publish a checkpoint of an idle partition, if one is due. Raises as ``fold`` does."""
        if self.marker is not None and (checkpoint := self._checkpoints.timed(self.marker)):
            await self._transact({CHECKPOINTS: checkpoint})
            self._checkpoints.written(checkpoint)

    async def write_facts(self, facts: Sequence[Fact]) -> None:
        """Write facts that came of no record, under the same fence. Raises as ``fold`` does."""
        await self._transact({LIFECYCLE: [(fact_key(fact), encode_fact(fact)) for fact in facts]})

    async def write_again(self) -> None:
        """Write the last marker once more, so that a table to which nothing is written begins a new segment: only what
        lies in closed ones is compacted. Raises as ``fold`` does."""
        if self.marker is not None:
            await self._transact({TABLES: [(MARKER_KEY, encode_marker(self.marker))]})

    async def _transact(self, records: Records) -> Mapping[str, Offset]:
        assert self._writer is not None, "the lane was restored"
        async with self._writing:
            return await self._writer.write(records)

    async def close(self) -> None:
        """Give up the writer and the local rows; what the writer refuses leaves no rows locked.

        Raises ``StoreFailed`` and what closing the writer raises: the first of them.
        """
        await close_each(self._stop_purge, self._close_writer, self._close_store)

    async def _stop_purge(self) -> None:
        with contextlib.suppress(StoreFailed):
            # What is not stored is purged once more after the next start.
            self.purged.at(self.swept_position)
            self.purged.save()
        purging = self._purging
        try:
            # None begins any more either: whoever looks after lanes may not know yet that this one is given up.
            self.store.stop_purging()
        finally:
            if purging is not None:
                # The store would wait for it as well, but on the event loop: the group would miss its heartbeats.
                await asyncio.wait([purging])

    async def _close_writer(self) -> None:
        if self._writer is not None:
            await self._writer.close()

    async def _close_store(self) -> None:
        self.store.close()


def _parts(rows: Mapping[bytes, Any]) -> Iterator[dict[bytes, Any]]:
    """Yield the rows in parts of ``CHANGE_ROWS_MAX``."""
    items = iter(rows.items())
    while part := dict(islice(items, CHANGE_ROWS_MAX)):
        yield part
