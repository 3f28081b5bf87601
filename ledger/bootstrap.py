"""Bootstrap: the rows of a partition read from its table instead of folded from the log.

Place in the flow: table → **view** → query, in the place of log → fold → view. A table is used only when its rows have
the digest that its last marker names, were made by rules that this build knows, and come from the very log that is
tailed from there on. Whatever is wrong with it, it is not used, and the reason is said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
import structlog

from ledger.errors import Unavailable, UndecodableRecord
from ledger.log import EventLog, LogGap, Record, RecordBatch
from ledger.rows import Kind, MetaRow
from ledger.table import Rows, decode_row, partition_prefix
from ledger.tables import (
    MARKER_KEY,
    Marker,
    TableCopy,
    TableState,
    agrees,
    decode_marker,
    is_row,
    is_supported,
)
from ledger.turn import Partition, Position
from ledger.view import ViewStore

logger = structlog.get_logger("ledger.bootstrap")

PENDING_ROWS_MAX = 2_048
"""Rows held in memory before they are written: a compacted table has few markers, and any number of rows before one."""
READ_WAIT_S = 0.5
SILENCE_MAX_S = 15.0
"""How long a table may give nothing below its end: longer than an open transaction of a dead worker lasts."""
ASK_TIMEOUT_S = 10.0
PARTITIONS_AT_ONCE = 4
"""Tables read at the same time; the processor is what limits it."""

Progress = Callable[[Partition, int, int], None]
"""Called with a partition, the offset its table was read to, and the table's end."""


class TableRefused(Exception):
    """A table must not be used; ``reason`` is one word for logs and metrics.

    ``empty``, ``unreadable``, ``unclosed`` (rows without a marker), ``digest``, ``upgrade``, ``other_log``,
    ``beyond_end`` (its position is not in the log) or ``silent`` (it could not be read to its end).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrapped:
    """What became of one partition."""

    partition: Partition
    marker: Marker | None
    """None: the table was refused, and the partition has no rows."""
    refused: str = ""


async def read_table(copy: TableCopy, state: TableState, tables: EventLog, progress: Progress | None) -> TableState:
    """Read a table from ``state`` on to its last marker, into the rows of ``copy``; return the state there.

    The caller looks whether it is ``verified``. Raises ``TableRefused``, ``Unavailable``.
    """
    partition = copy.partition
    end = await tables.end(partition, timeout_s=ASK_TIMEOUT_S)
    if state.position > end:
        raise TableRefused("beyond_end", f"the table of partition {partition} lost what was read of it before")
    if state.position == end:
        return state
    reading = _Reading(copy, state, end)
    loop = asyncio.get_running_loop()
    heard_at_s = loop.time()
    tail = await tables.tail({partition: reading.position})
    try:
        while not reading.is_done:
            batches = await tail.next(READ_WAIT_S)
            if batches:
                heard_at_s = loop.time()
            elif reading.position >= end:
                # A batch becomes visible as a whole, so its marker would be here.
                reason = "unclosed" if reading.pending else "empty"
                raise TableRefused(reason, f"the table of partition {partition} does not end with a marker")
            elif loop.time() - heard_at_s > SILENCE_MAX_S:
                message = f"the table of partition {partition} gives nothing from {reading.position} on"
                raise TableRefused("silent", message)
            for batch in batches:
                await reading.take(batch)
            if progress is not None:
                progress(partition, min(reading.position, end), end)
            await asyncio.sleep(0)
    except LogGap as gap:
        raise TableRefused("unreadable", f"the table of partition {partition} begins at {gap.first}") from gap
    finally:
        await tail.close()
    reading.check()
    return reading.state


class _Reading:
    """A table on its way into local rows.

    What is wrong with a record is remembered and not raised at once: a marker of no rows may follow, behind which the
    table was made again, and of what lies before it nothing counts, although only compaction takes it away.
    """

    def __init__(self, copy: TableCopy, state: TableState, end: Position) -> None:
        self._copy = copy
        self._end = end
        self.state = state
        self.position = Position(state.position)
        self.pending: dict[bytes, bytes | None] = {}
        """Rows that were read and not written yet."""
        self._has_ended = False
        self._meta: bytes | None = None
        """The last meta row that was read."""
        self._problem = ""
        """Why the table cannot be used; no row is taken from there on."""

    @property
    def is_done(self) -> bool:
        """Whether the rows are those of a marker, and the end was reached."""
        if self._has_ended:
            return True
        is_closed = not self.pending and self.state.marker is not None
        return self.position >= self._end and (is_closed or bool(self._problem))

    async def take(self, batch: RecordBatch) -> None:
        """Take records of the table, up to the first marker that nothing below the end follows."""
        for record in batch.records:
            if self._has_ended:
                return
            if record.key == MARKER_KEY:
                await self._take_marker(record)
                # One more offset is the control record that ended the transaction.
                self._has_ended = record.offset + 2 >= self._end
            elif record.key is not None and is_row(record.key):
                if record.key == Kind.META:
                    self._meta = record.value
                self.pending[record.key] = record.value
                if len(self.pending) >= PENDING_ROWS_MAX:
                    self._apply(record.offset + 1, None)
                    await asyncio.sleep(0)
            elif record.key is None or record.value is not None:
                self._problem = self._problem or f"the record at {record.offset} has a key of no kind"
        self.position = batch.next_position

    async def _take_marker(self, record: Record) -> None:
        try:
            marker = decode_marker(record.value)
        except UndecodableRecord as error:
            if error.reason == "newer_format":
                raise TableRefused("upgrade", f"the marker at {record.offset} cannot be read: {error}") from None
            self._problem = self._problem or f"the marker at {record.offset} cannot be read: {error}"
            self.pending = {}
            return
        if not marker.rows_count:
            self.pending = {}
            self._problem = ""
            self._meta = None
            await self._begin_anew(record.offset + 1, marker)
        self._apply(record.offset + 1, marker)

    async def _begin_anew(self, position: int, marker: Marker) -> None:
        if self.state.rows_count:
            await wipe(self._copy)
        self.state = TableState(tables_id=self.state.tables_id, position=position, marker=marker)

    def _apply(self, position: int, marker: Marker | None) -> None:
        pending, self.pending = self.pending, {}
        if not self._problem:
            try:
                self.state = self._copy.apply(self.state, pending, position, marker)
            except UndecodableRecord as error:
                self._problem = str(error)

    def check(self) -> None:
        """Refuse a table that cannot be used: damaged, or of rules that this build does not know."""
        if self._problem:
            reason = "upgrade" if self._meta is not None and not _is_known(self._meta) else "unreadable"
            raise TableRefused(reason, f"the table of partition {self._copy.partition}: {self._problem}")


def _is_known(meta_row: bytes) -> bool:
    """Return whether rows beside this meta row are of rules that this build knows."""
    try:
        meta = decode_row(Kind.META, meta_row)
    except UndecodableRecord:
        return False
    return isinstance(meta, MetaRow) and is_supported(meta)


def check_table(copy: TableCopy, state: TableState, log_id: str) -> tuple[Marker, MetaRow]:
    """Return marker and meta row of a table that was read and may be used. Raises ``TableRefused``."""
    partition, marker = copy.partition, state.marker
    if marker is None:
        raise TableRefused("empty", f"the table of partition {partition} has no marker")
    if not state.verified:
        raise TableRefused("digest", f"the rows of partition {partition} are not those of its last marker")
    if marker.log_id != log_id:
        raise TableRefused("other_log", f"the table of partition {partition} was made from another log")
    if not marker.rows_count:
        raise TableRefused("empty", f"the table of partition {partition} has no rows")
    try:
        meta = Rows(copy.store, partition).meta
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TableRefused("upgrade", f"the meta row of partition {partition} cannot be read: {error}") from None
    if not is_supported(meta):
        raise TableRefused("upgrade", f"partition {partition} was raised to rules that this build does not know")
    if not agrees(meta, marker):
        raise TableRefused("digest", f"the meta row of partition {partition} is not of its last marker")
    return marker, meta


def needs_bootstrap(store: ViewStore, partition: Partition) -> bool:
    """Return whether a partition has no rows yet, or an unfinished copy of its table."""
    prefix = partition_prefix(partition)
    return store.get(prefix + Kind.META) is None or TableCopy(store, partition).is_begun


async def bootstrap(
    store: ViewStore,
    log: EventLog,
    tables: EventLog,
    partitions: Iterable[Partition],
    *,
    progress: Progress | None = None,
) -> list[Bootstrapped]:
    """Fill each partition's rows from its table; a partition whose table is refused is left empty, with a log line.

    Nothing else may use ``store`` meanwhile. Interrupted, it can be begun again. Raises ``StoreFailed``.
    """
    room = asyncio.Semaphore(PARTITIONS_AT_ONCE)
    try:
        log_id = (await log.manifest(timeout_s=ASK_TIMEOUT_S)).log_id
        tables_id = (await tables.manifest(timeout_s=ASK_TIMEOUT_S)).log_id
    except Unavailable as error:
        logger.warning("tables_unavailable", reason=error.reason, message=str(error))
        return [Bootstrapped(partition=partition, marker=None, refused=error.reason) for partition in partitions]

    async def one(partition: Partition) -> Bootstrapped:
        async with room:
            return await _bootstrap_partition(TableCopy(store, partition), log, log_id, tables, tables_id, progress)

    return list(await asyncio.gather(*(one(partition) for partition in partitions)))


async def _bootstrap_partition(
    copy: TableCopy, log: EventLog, log_id: str, tables: EventLog, tables_id: str, progress: Progress | None
) -> Bootstrapped:
    partition, store = copy.partition, copy.store
    try:
        state = copy.load()
        if state is None or state.tables_id != tables_id:
            await wipe(copy)
            state = TableState(tables_id=tables_id)
            store.write(copy.state_change(state))
        state = await read_table(copy, state, tables, progress)
        marker, _ = check_table(copy, state, log_id)
        await _check_end(log, partition, marker)
    except (TableRefused, Unavailable) as error:
        # A partition that nobody has made a table of yet is nothing to be warned of.
        say = logger.info if error.reason == "empty" else logger.warning
        say("table_refused", partition=partition, reason=error.reason, message=str(error))
        await wipe(copy)
        return Bootstrapped(partition=partition, marker=None, refused=error.reason)
    store.write(copy.state_change(None))
    logger.info("table_loaded", partition=partition, position=marker.position, rows=marker.rows_count)
    return Bootstrapped(partition=partition, marker=marker)


async def _check_end(log: EventLog, partition: Partition, marker: Marker) -> None:
    if marker.position > await log.end(partition, timeout_s=ASK_TIMEOUT_S):
        raise TableRefused("beyond_end", f"the table of partition {partition} is ahead of its log")


async def wipe(copy: TableCopy) -> None:
    """Delete all rows of a copy, letting others run in between."""
    for _ in copy.wipe():
        await asyncio.sleep(0)
