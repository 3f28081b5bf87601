"""A topic of tables in memory, compacted at will: what a reader may find on a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ledger.adapters.memory import MemoryViewStore
from ledger.log import Appended, Manifest, Record, RecordBatch
from ledger.table import Rows
from ledger.tables import MARKER_KEY, TableState, encode_marker, marker_of, table_change
from ledger.turn import Offset, Partition, Position

LOG_ID, TABLES_ID = "log", "tables"
P0 = Partition(0)


class TableTopic:
    """The part of ``EventLog`` that readers of tables use; offsets may have holes."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.next_offset = 0

    def add(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Append one transaction: the records, and a control record that nobody sees."""
        for key, value in records:
            self.records.append(
                Record(partition=P0, offset=Offset(self.next_offset), appended_at_ms=0, key=key, value=value)
            )
            self.next_offset += 1
        self.next_offset += 1

    def compact(self, below: int, *, drop_nulls: bool) -> None:
        """Keep the last record of each key below an offset, and everything from there on."""
        head = [record for record in self.records if record.offset < below]
        last = {record.key: record.offset for record in head}
        kept = [record for record in head if last[record.key] == record.offset]
        if drop_nulls:
            kept = [record for record in kept if record.value is not None]
        self.records = kept + [record for record in self.records if record.offset >= below]

    async def append(self, partition: Partition, key: bytes, value: bytes, *, timeout_s: float) -> Appended:
        raise NotImplementedError

    async def tail(self, positions: Mapping[Partition, Position]) -> TableTail:
        return TableTail(self, positions[P0])

    async def end(self, partition: Partition, *, timeout_s: float) -> Position:
        return Position(self.next_offset)

    async def manifest(self, *, timeout_s: float) -> Manifest:
        return Manifest(partition_count=1, log_id=TABLES_ID)

    async def close(self) -> None:
        pass


class TableTail:
    """Gives a few records at a time, so that batches end anywhere in a transaction."""

    def __init__(self, topic: TableTopic, position: int, size: int = 7) -> None:
        self._topic = topic
        self._position = position
        self._size = size

    async def next(self, wait_s: float) -> list[RecordBatch]:
        await asyncio.sleep(0)
        rest = [record for record in self._topic.records if record.offset >= self._position]
        found = rest[: self._size]
        after = found[-1].offset + 1 if len(rest) > self._size else self._topic.next_offset
        if after == self._position:
            return []
        self._position = after
        return [RecordBatch(partition=P0, records=tuple(found), next_position=Position(after))]

    async def close(self) -> None:
        pass


class TableWriter:
    """Writes a table as a lane does, without its processes and topics."""

    def __init__(self, topic: TableTopic) -> None:
        self.topic = topic
        self.store = MemoryViewStore()
        self.rows = Rows(self.store, P0)
        self.state = TableState(tables_id=TABLES_ID)

    def write(self) -> None:
        """Write what was folded since the last call."""
        new, other, _ = self.rows.changes_apart()
        change = table_change(self.store, other, self.state.rows_digest, self.state.rows_count, new=new)
        marker = marker_of(self.rows.meta, LOG_ID, change.rows_digest, change.rows_count)
        self.topic.add([*change.records, (MARKER_KEY, encode_marker(marker))])
        self.state = TableState(
            tables_id=TABLES_ID,
            position=self.topic.next_offset,
            rows_digest=change.rows_digest,
            rows_count=change.rows_count,
            marker=marker,
        )
        self.store.write(self.rows.changes())
        self.rows.committed()
