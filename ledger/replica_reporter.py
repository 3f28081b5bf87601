"""What a replica reports of itself: its partitions at aligned places and when they are idle, and now and then a digest
of all their rows.

The digest is read from the rows as they are on the disk, so it also finds what the fold did not do. Its scan is opened
at the very place that it speaks of, and is then read in small pieces while the fold goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import structlog

from ledger.disk import Disk, DiskUse
from ledger.errors import StoreFailed
from ledger.replica import Replica
from ledger.report import RowsStatement
from ledger.reporter import Holding, Identity, Reporter, Reports, Standing
from ledger.table import partition_prefix
from ledger.tables import encode_digest, scan_digests
from ledger.turn import Partition
from ledger.verdict import Fact

logger = structlog.get_logger("ledger.replica_reporter")

DIGEST_ROWS = 200
"""Rows digested before the event loop runs: one or two milliseconds, for which a read would wait."""
DIGEST_SHARE = 0.2
"""The part of one core that a digest may take."""


class Digests:
    """Which partition's rows are read next, and the reading; one at a time, since a scan keeps files on the disk."""

    def __init__(self, replica: Replica, use: DiskUse, *, interval_s: float) -> None:
        self._replica = replica
        self._use = use
        self._interval_s = interval_s
        self._due_s: dict[Partition, float] = {}
        self._reading: asyncio.Task[None] | None = None
        self.digests_count = 0

    def is_due(self, partition: Partition) -> bool:
        """Return whether a digest of the partition should begin now."""
        if self._use.is_purging or self._use.is_purge_due or self._use.is_scanning:
            return False
        now_s = asyncio.get_running_loop().time()
        if partition not in self._due_s:
            # Partitions take turns, and processes that started together begin with all of them alike.
            count = self._replica.partition_count
            self._due_s[partition] = now_s + self._interval_s * (partition + 1) / count
        due_s = self._due_s[partition]
        # Whoever waits longer is first; but for one that does not come to an aligned place, nobody waits long.
        longer = [other_s for other_s in self._due_s.values() if now_s - 2 * self._interval_s < other_s < due_s]
        return now_s >= due_s and not longer

    def begin(self, partition: Partition, standing: Standing, reporter: Reporter) -> None:
        """Read the rows as they are at this moment, and report them when that is done."""
        self._due_s[partition] = asyncio.get_running_loop().time() + self._interval_s
        self._use.is_scanning = True
        prefix = partition_prefix(partition)
        try:
            scan = self._replica.store.scan(prefix, prefix + b"\xff")
        except BaseException:
            self._use.is_scanning = False
            raise
        self._reading = asyncio.create_task(self._read(partition, standing, scan, reporter))

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(
        self, partition: Partition, standing: Standing, scan: Iterator[tuple[bytes, bytes]], reporter: Reporter
    ) -> None:
        try:
            rows = await digested(scan)
            self.digests_count += 1
            reporter.digested(partition, standing._replace(rows=rows))
        except StoreFailed as error:
            logger.warning("digest_failed", partition=partition, message=str(error))
        finally:
            # RocksDB keeps the files that a scan reads.
            close = getattr(scan, "close", None)
            if close is not None:
                close()
            self._use.is_scanning = False


async def digested(scan: Iterator[tuple[bytes, bytes]]) -> RowsStatement:
    """Return row digest and number of the rows that tables carry in a scan of one partition. Raises ``StoreFailed``."""
    loop = asyncio.get_running_loop()
    total = count = 0
    while True:
        began_s = loop.time()
        rows = list(islice(scan, DIGEST_ROWS))
        part_total, part_count = scan_digests(rows)
        total += part_total
        count += part_count
        if len(rows) < DIGEST_ROWS:
            return RowsStatement(encode_digest(total), count)
        await asyncio.sleep((loop.time() - began_s) * (1 / DIGEST_SHARE - 1))


class ReplicaReporter:
    """Reports what a replica holds; kept beside its ledger."""

    def __init__(
        self,
        replica: Replica,
        identity: Identity,
        reports: Reports,
        *,
        rows: Disk,
        contents: Disk,
        use: DiskUse,
        digest_interval_s: float,
        now_ms: Callable[[], int],
    ) -> None:
        self._replica = replica
        self._rows = rows
        self._contents = contents
        self._reporter = Reporter(identity, reports, self._holdings, now_ms=now_ms, on_idle=self._on_idle)
        self.digests = Digests(replica, use, interval_s=digest_interval_s)
        replica.on_aligned = self._on_aligned

    async def start(self) -> None:
        """Start reporting. What an earlier process with this directory held and this one does not is withdrawn."""
        count, held = self._replica.partition_count, self._replica.held
        self._reporter.give_up(Partition(number) for number in range(count) if number not in held)
        await self._reporter.start()

    async def close(self) -> None:
        """Stop reporting."""
        self._replica.on_aligned = None
        await self.digests.close()
        await self._reporter.close()

    def take(self, partition: Partition, facts: Sequence[Fact]) -> None:
        """Nothing: no report follows from a fact."""

    def _standing(self, partition: Partition) -> Standing:
        return Standing(self._replica.states()[partition].rows.stored_meta, self._replica.log_id, None)

    def _holdings(self) -> dict[Partition, Holding]:
        return {
            partition: Holding(
                self._standing(partition), self._rows.purged(partition), self._contents.purged(partition)
            )
            for partition in self._replica.states()
        }

    def _on_aligned(self, partition: Partition) -> None:
        self._reporter.aligned(partition, self._standing(partition))
        self._on_idle(partition)

    def _on_idle(self, partition: Partition) -> None:
        """The rows are those of a place that others report too: begin a digest if one is due."""
        standing = self._standing(partition)
        if standing.meta.anchor_offset >= 0 and self.digests.is_due(partition):
            try:
                self.digests.begin(partition, standing, self._reporter)
            except StoreFailed as error:
                logger.warning("digest_failed", partition=partition, message=str(error))
