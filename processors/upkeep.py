"""Upkeep of partitions: orphans are looked for, erased rows leave this worker's disk, and closed segments are made so
that erasures become real.

A broker closes a segment only when something is appended after ``segment.ms``, and compacts only closed ones. So a
partition that has fallen silent gets one more record, once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from ledger.errors import LedgerError, PurgeStopped, StoreFailed, Unavailable
from ledger.log import AppendUncertain, EventLog
from ledger.tables import Marker, PartitionLost, WriterFenced
from ledger.turn import Partition, Position
from processors.erase import Eraser
from processors.lane import Lane
from processors.leftovers import Leftovers
from processors.orphans import sweep

logger = structlog.get_logger("processors.upkeep")

SWEEP_INTERVAL_S = 600.0
"""Between two looks for orphans in one partition: each reads all its nodes, and only disk space waits for it."""
PURGE_PAUSE_S = 30.0
"""Between two purges of one lane, each of which rewrites all its rows: erasures that follow each other share one, and
the first after a while is purged at once."""
ASK_TIMEOUT_S = 10.0


@dataclass(slots=True)
class _Seen:
    """What was seen of one partition."""

    swept_at_s: float = float("-inf")
    purged_at_s: float = float("-inf")
    """When the last purge ended, completed or not."""
    marker: Marker | None = None
    """At the last look: a partition that has the same one is idle."""
    looked_at_s: float = 0.0
    """When the ends were last compared."""
    ends: dict[str, Position] = field(default_factory=dict)
    rolled: dict[str, Position] = field(default_factory=dict)
    """Ends after the last record that was written only to begin a new segment."""


class Upkeep:
    """Goes over the lanes that run here, for ever."""

    def __init__(
        self,
        lanes: Callable[[], dict[Partition, Lane]],
        eraser: Eraser,
        *,
        contents: EventLog,
        tables: EventLog,
        leftovers: Leftovers | None = None,
        roll_interval_s: float,
        sweep_interval_s: float = SWEEP_INTERVAL_S,
    ) -> None:
        """``roll_interval_s`` is ``segment.ms`` of the compacted topics, or more."""
        self._lanes = lanes
        self._eraser = eraser
        self._contents = contents
        self._tables = tables
        self._leftovers = leftovers
        self._roll_interval_s = roll_interval_s
        self._sweep_interval_s = sweep_interval_s
        self._seen: dict[Partition, _Seen] = {}
        self.orphans_count = 0
        self.rolled_count = 0

    async def run(self) -> None:
        """Work until cancelled."""
        pause_s = min(5.0, self._roll_interval_s / 2, self._sweep_interval_s / 2)
        while True:
            for partition, lane in self._lanes().items():
                try:
                    await self._look_after(partition, lane)
                except PurgeStopped:
                    # By whoever closes the lane; the rows are purged when they are opened again.
                    logger.info("purge_stopped", partition=partition)
                except (LedgerError, StoreFailed, AppendUncertain, WriterFenced, PartitionLost) as error:
                    # A lane that was lost meanwhile is somebody else's; one that is ours comes again.
                    logger.warning(
                        "upkeep_interrupted", partition=partition, message=f"{type(error).__name__}: {error}"
                    )
            if self._leftovers is not None:
                try:
                    await self._leftovers.look()
                except (Unavailable, OSError) as error:
                    logger.warning("leftovers_kept", message=f"{type(error).__name__}: {error}")
            await asyncio.sleep(pause_s)

    async def _look_after(self, partition: Partition, lane: Lane) -> None:
        now_s = time.monotonic()
        seen = self._seen.setdefault(partition, _Seen(looked_at_s=now_s))
        if now_s - seen.swept_at_s >= self._sweep_interval_s:
            seen.swept_at_s = now_s
            found = await sweep(lane, self._contents)
            self.orphans_count += found
        if self._may_purge(partition, lane, seen):
            try:
                await lane.purge()
            finally:
                seen.purged_at_s = time.monotonic()
        if lane.marker == seen.marker:
            await lane.write_idle_checkpoint()
        seen.marker = lane.marker
        if now_s - seen.looked_at_s >= self._roll_interval_s:
            seen.looked_at_s = now_s
            if await self._is_silent(seen, "content", self._contents, partition):
                await self._eraser.roll(partition)
                self.rolled_count += 1
                seen.rolled["content"] = await self._contents.end(partition, timeout_s=ASK_TIMEOUT_S)
            if await self._is_silent(seen, "tables", self._tables, partition):
                await lane.write_again()
                self.rolled_count += 1
                seen.rolled["tables"] = await self._tables.end(partition, timeout_s=ASK_TIMEOUT_S)

    def _may_purge(self, partition: Partition, lane: Lane, seen: _Seen) -> bool:
        """Return whether a purge would take off the disk what was erased, and the last one is long enough ago."""
        if not lane.purged.is_due or lane.swept_position is None:
            return False
        if self._leftovers is not None and self._leftovers.is_removing(partition):
            # Earlier rows of the partition, which no purge of the present ones takes off.
            return False
        return time.monotonic() - seen.purged_at_s >= PURGE_PAUSE_S

    async def _is_silent(self, seen: _Seen, name: str, topic: EventLog, partition: Partition) -> bool:
        """Return whether something was written, nothing since the last look, and no new segment was begun since."""
        end = await topic.end(partition, timeout_s=ASK_TIMEOUT_S)
        before = seen.ends.get(name)
        seen.ends[name] = end
        return end > 0 and end == before and end != seen.rolled.get(name)
