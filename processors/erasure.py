"""Waiting for an erasure to be real: what the topics say, whoever does the work.

Stages, each of which only moves forward: the table has folded the erasure; it holds no node of the principal from
before it; every content that was reported as unneeded has its null record; no broker's segment holds a value of one of
them; every process that reports has taken the rows, and the contents if it copies them, off its disk.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from ledger.errors import Unavailable, UndecodableRecord
from ledger.facts import decode_fact
from ledger.log import EventLog, Record
from ledger.reading import Gap, Silence, read
from ledger.rows import Kind, NodeRow
from ledger.tables import MARKER_KEY, decode_marker
from ledger.turn import Offset, Partition, Position
from ledger.verdict import ContentUnneeded, ErasureOrdered
from processors.comparison import Heard
from processors.reporters import Reporters

ASK_TIMEOUT_S = 10.0
LOOK_PAUSE_S = 0.5
LOOK_INTERVAL_S = 5.0
"""Between two looks through the whole partition of contents: compaction takes far longer."""
_decode_node = msgspec.msgpack.Decoder(NodeRow).decode


class Stage(enum.StrEnum):
    """How far an erasure is, in order."""

    FOLDED = "folded"
    """The processors have folded it."""
    SWEPT = "swept"
    """No row of the principal's turns is left in the table."""
    DELETED = "deleted"
    """Its contents are null records: gone for every reader that follows."""
    COMPACTED = "compacted"
    """No broker holds a content of it any more."""
    PURGED = "purged"
    """No replica and no worker has a byte of it on its disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """The topics that say how far it is."""

    tables: EventLog
    lifecycle: EventLog
    contents: EventLog
    reports: EventLog
    file_delete_delay_s: float
    """How long a broker keeps a file that compaction has replaced: ``file.delete.delay.ms`` of the contents."""


async def wait_until_erased(
    topics: Topics,
    partition: Partition,
    offset: Offset,
    reached: Callable[[Stage], None],
    waiting: Callable[[Sequence[Heard]], None],
) -> None:
    """Return when the erasure at ``offset`` has passed all stages; ``reached`` is told each.

    ``waiting`` is told at every look at the reports whose disks may still hold something, until there is nobody.
    Raises ``Unavailable``, with ``upgrade`` when somebody reports in a format of a later release.
    """
    table = _Table(topics.tables, partition)
    await table.folded(offset)
    reached(Stage.FOLDED)
    # A retried erasure has no fact of its own, so all that were ordered until then are waited for.
    erased = (await _facts(topics.lifecycle, partition, offset)).erased
    swept = await table.swept(erased)
    reached(Stage.SWEPT)
    # The facts of what was swept were in the same transactions as the rows.
    unneeded = (await _facts(topics.lifecycle, partition, offset)).unneeded
    deleted = await _deleted(topics.contents, partition, unneeded)
    reached(Stage.DELETED)
    is_compacted = False
    while not is_compacted:
        is_compacted = not await _holds_a_value(topics.contents, partition, unneeded)
        await asyncio.sleep(topics.file_delete_delay_s if is_compacted else LOOK_INTERVAL_S)
    reached(Stage.COMPACTED)
    reporters = Reporters(topics.reports, partition)
    while holders := await _holders(reporters, partition, swept, deleted):
        waiting(holders)
        await asyncio.sleep(LOOK_PAUSE_S)
    reached(Stage.PURGED)


async def _holders(reporters: Reporters, partition: Partition, swept: Position, deleted: Position) -> list[Heard]:
    """Return those whose disks may still hold something, by their last words."""
    await reporters.read_on()
    if reporters.later_format:
        named = ", ".join(sorted(reporter.hex() for reporter in reporters.later_format))
        message = (
            f"of partition {partition} somebody reports in a format of a later release: {named}. Wait with that "
            "release, or, of a disk that is destroyed, say so with 'turnledger process forget-reporter' and that ID"
        )
        raise Unavailable("upgrade", message)
    return [heard for heard in reporters.watch.heard.values() if not _is_purged(heard, swept, deleted)]


def _is_purged(heard: Heard, swept: Position, deleted: Position) -> bool:
    """Return whether a reporter's disk holds nothing any more of what was swept from rows and deleted from contents."""
    content = heard.report.purged_content_position
    return heard.report.purged_position >= swept and (content is None or content >= deleted)


class _Facts(NamedTuple):
    """What the facts of a partition say."""

    erased: dict[bytes, int]
    """The last erasure of each principal."""
    unneeded: set[bytes]
    """IDs of contents."""


async def _facts(lifecycle: EventLog, partition: Partition, offset: Offset) -> _Facts:
    """Return what all facts say that are kept, of erasures up to ``offset``."""
    facts = _Facts({}, set())
    end = await lifecycle.end(partition, timeout_s=ASK_TIMEOUT_S)
    async for record in _records(lifecycle, partition, Position(0), end):
        try:
            fact = decode_fact(record.value)
        except UndecodableRecord:
            continue
        match fact:
            case ContentUnneeded():
                facts.unneeded.add(fact.content.id)
            case ErasureOrdered():
                if fact.offset <= offset:
                    facts.erased[fact.principal] = max(fact.offset, facts.erased.get(fact.principal, 0))
    return facts


class _Table:
    """The nodes of one partition's table, read once."""

    def __init__(self, tables: EventLog, partition: Partition) -> None:
        self._tables = tables
        self._partition = partition
        self._position = Position(0)
        self._folded_to = 0
        self._nodes: dict[int, bytes] = {}
        """The principal of each node."""

    async def folded(self, offset: Offset) -> None:
        """Return when the table holds what the record at ``offset`` did."""
        while self._folded_to <= offset:
            await self._read()

    async def swept(self, erased: Mapping[bytes, int]) -> Position:
        """Return a position of the log up to which no node is left that was erased, when there is one."""
        last = max(erased.values(), default=-1)
        while self._folded_to <= last or any(
            offset < erased.get(principal, 0) for offset, principal in self._nodes.items()
        ):
            await self._read()
        return Position(self._folded_to)

    async def _read(self) -> None:
        end = await self._tables.end(self._partition, timeout_s=ASK_TIMEOUT_S)
        if end == self._position:
            await asyncio.sleep(LOOK_PAUSE_S)
        async for record in _records(self._tables, self._partition, self._position, end):
            key = record.key or b""
            if key == MARKER_KEY:
                # Not the highest: a table that is made again begins at 0, without the nodes that it will have.
                self._folded_to = _position(record.value)
            elif key[:1] == Kind.NODE:
                offset = int.from_bytes(key[1:], "big")
                if record.value is None:
                    self._nodes.pop(offset, None)
                else:
                    self._nodes[offset] = _decode_node(record.value).principal
        self._position = end


def _position(marker: bytes | None) -> int:
    """Return the position of a marker; 0 for one of an older release, which is on its way out of the table."""
    try:
        return decode_marker(marker).position
    except UndecodableRecord as error:
        if error.reason == "older_format":
            return 0
        raise


async def _deleted(contents: EventLog, partition: Partition, unneeded: set[bytes]) -> Position:
    """Return a position up to which the last record of every chunk of the contents is a null record, when there is
    one."""
    living: set[bytes] = set()
    position = Position(0)
    while True:
        end = await contents.end(partition, timeout_s=ASK_TIMEOUT_S)
        async for record in _records(contents, partition, position, end):
            key = record.key or b""
            if key[20:36] not in unneeded:
                continue
            if record.value is None:
                living.discard(key)
            else:
                living.add(key)
        position = end
        if not living:
            return end
        await asyncio.sleep(LOOK_PAUSE_S)


async def _holds_a_value(contents: EventLog, partition: Partition, unneeded: set[bytes]) -> bool:
    """Return whether any record of the contents that has a value can still be read."""
    end = await contents.end(partition, timeout_s=ASK_TIMEOUT_S)
    found = False
    async for record in _records(contents, partition, Position(0), end):
        found = found or (record.value is not None and (record.key or b"")[20:36] in unneeded)
    return found


def _records(topic: EventLog, partition: Partition, start: Position, end: Position) -> AsyncIterator[Record]:
    """Yield what is left in a topic from ``start`` up to ``end``, for as long as that takes: the caller has a
    deadline."""
    return read(topic, partition, start, end, gap=Gap.SKIPPED, silence=Silence.WAITED_FOR)
