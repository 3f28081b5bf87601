"""Orphans: contents that no event refers to, found by the partition clock.

A content is written before its event, so a commit that died in between leaves one. The fold refuses an event whose
content is older than ``content_grace_ms`` by the partition clock. So once that clock has passed, what no row refers to
will never be referred to, and is reported as unneeded like everything else.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from ledger.content import ContentRef
from ledger.log import EventLog, Record
from ledger.reading import Gap, read
from ledger.rows import LocalKind
from ledger.table import partition_prefix, referenced_contents
from ledger.turn import Partition, Position
from ledger.verdict import ContentUnneeded
from processors.lane import Lane

logger = structlog.get_logger("processors.orphans")

GRACE_FACTOR = 2
"""Contents are left alone for so many times the grace: a policy may be changed to a longer one."""
FACTS_MAX = 500
"""Facts of one transaction."""
CHUNKS_AT_ONCE = 16
"""Records read before others on the event loop get their turn: each may be half a megabyte."""
ASK_TIMEOUT_S = 10.0
_KEY_BYTES = 40


@dataclass(slots=True)
class _Chunks:
    """What is there of one content."""

    scope: bytes
    numbers: set[int] = field(default_factory=set)
    last_offset: int = 0
    oldest_at_ms: int = 2**63 - 1


async def sweep(lane: Lane, contents: EventLog) -> int:
    """Report the orphans among the contents that have become old enough since the last sweep; return how many.

    ``contents`` is the topic ``content``. Raises ``Unavailable``, and as ``Lane.fold`` does.
    """
    marker = lane.marker
    if marker is None or not marker.position:
        return 0
    grace_ms = lane.rows.meta.policy.content_grace_ms
    horizon_ms = marker.clock_ms - GRACE_FACTOR * grace_ms
    key = partition_prefix(lane.partition) + LocalKind.SWEPT
    start = Position(int.from_bytes(lane.store.get(key) or b"", "big"))
    found, position = await _old_contents(contents, lane.partition, start, horizon_ms)
    if found:
        # In a thread: it reads every node. The rows are those of the marker or later ones, and neither lets an old
        # content be referred to anew.
        needed = await asyncio.to_thread(referenced_contents, lane.store, lane.partition)
        orphans = [ContentUnneeded(_reference(name, chunks)) for name, chunks in found.items() if name not in needed]
        for first in range(0, len(orphans), FACTS_MAX):
            await lane.write_facts(orphans[first : first + FACTS_MAX])
        if orphans:
            logger.info("orphans_found", partition=lane.partition, count=len(orphans))
        count = len(orphans)
    else:
        count = 0
    if position != start:
        lane.store.write({key: position.to_bytes(8, "big")})
    return count


async def _old_contents(
    contents: EventLog, partition: Partition, start: Position, horizon_ms: int
) -> tuple[dict[bytes, _Chunks], Position]:
    """Return by ID the contents written from ``start`` on and before the horizon, and where those end.

    Chunks that were erased meanwhile are left out.
    """
    found: dict[bytes, _Chunks] = {}
    end = await contents.end(partition, timeout_s=ASK_TIMEOUT_S)
    if start > end:
        # Of another topic of the same name.
        start = Position(0)
    reached: Position | None = None
    async for record in read(contents, partition, start, end, gap=Gap.SKIPPED, at_once=CHUNKS_AT_ONCE):
        if reached is None and record.appended_at_ms >= horizon_ms:
            reached = Position(record.offset)
        _take(found, record, is_old=reached is None)
    return found, end if reached is None else reached


def _take(found: dict[bytes, _Chunks], record: Record, *, is_old: bool) -> None:
    key = record.key
    if key is None or len(key) != _KEY_BYTES:
        return
    scope, name, number = key[:20], key[20:36], int.from_bytes(key[36:], "big")
    if record.value is None:
        chunks = found.get(name)
        if chunks is not None:
            chunks.numbers.discard(number)
            if not chunks.numbers:
                del found[name]
    elif is_old:
        chunks = found.setdefault(name, _Chunks(scope))
        chunks.numbers.add(number)
        chunks.last_offset = record.offset
        chunks.oldest_at_ms = min(chunks.oldest_at_ms, record.appended_at_ms)


def _reference(name: bytes, chunks: _Chunks) -> ContentRef:
    return ContentRef(
        scope=chunks.scope,
        id=name,
        chunks=min(max(chunks.numbers) + 1, 256),
        size_bytes=0,
        last_offset=chunks.last_offset,
        oldest_at_ms=max(0, chunks.oldest_at_ms),
    )
