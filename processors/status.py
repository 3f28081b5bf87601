"""Where tables stand, from their last markers and the ends of the log: true whoever writes them, and if nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from ledger.errors import UndecodableRecord
from ledger.log import BoundedLog, EventLog
from ledger.reading import Silence, read
from ledger.tables import MARKER_KEY, Marker, decode_marker
from ledger.turn import Partition, Position

ASK_TIMEOUT_S = 10.0
SILENCE_MAX_S = 3.0
"""An open transaction hides what follows it for a few seconds."""
LOOK_BACK = 64
"""Offsets before the end that are read first; a transaction ends with a marker and a control record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """One partition's table."""

    partition: Partition
    first: Position
    """Where the log begins: its history is complete from there on."""
    end: Position
    """Of the log."""
    marker: Marker | None
    problem: str

    @property
    def lag(self) -> int:
        """Records of the log that the table does not hold yet."""
        return max(0, self.end - (0 if self.marker is None else self.marker.position))


async def table_statuses(log: BoundedLog, tables: EventLog, partitions: Iterable[Partition]) -> list[TableStatus]:
    """Return the status of each partition. Raises ``Unavailable``."""
    return list(await asyncio.gather(*(_status(log, tables, partition) for partition in partitions)))


async def _status(log: BoundedLog, tables: EventLog, partition: Partition) -> TableStatus:
    problem, marker = "", None
    try:
        marker = await last_marker(tables, partition)
    except UndecodableRecord as error:
        problem = f"the last marker cannot be read: {error.reason}"
    end = await log.end(partition, timeout_s=ASK_TIMEOUT_S)
    first = await log.first(partition, timeout_s=ASK_TIMEOUT_S)
    if marker is None and not problem:
        problem = "there is no table yet"
    elif marker is not None and marker.position > end:
        problem = "the table is ahead of its log"
    return TableStatus(partition=partition, first=first, end=end, marker=marker, problem=problem)


async def last_marker(tables: EventLog, partition: Partition) -> Marker | None:
    """Return the last marker of a table, None when it has none. Raises ``Unavailable``, ``UndecodableRecord``."""
    end = await tables.end(partition, timeout_s=ASK_TIMEOUT_S)
    back = LOOK_BACK
    while end > 0:
        start = Position(max(0, end - back))
        value = await _last_marker_from(tables, partition, start, end)
        if value is not None:
            return decode_marker(value)
        if start == 0:
            return None
        back *= 32
    return None


async def _last_marker_from(tables: EventLog, partition: Partition, start: Position, end: Position) -> bytes | None:
    value: bytes | None = None
    records = read(tables, partition, start, end, silence=Silence.ENDS, silence_max_s=SILENCE_MAX_S)
    async for record in records:
        if record.key == MARKER_KEY:
            value = record.value
    return value
