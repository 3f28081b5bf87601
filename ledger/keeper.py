"""What a process does for itself. The embedded ledger: expire without traffic, and delete contents that nothing needs.

With Kafka the processors do this for all replicas; an embedded ledger has one process, so it is its own eraser. At its
start nothing is being written, so a content that no row refers to is an orphan: of a commit that a crash cut off, or of
an erasure that it did. Those are swept then, which makes the facts of a running process safe to keep in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

import structlog

from ledger.closing import close_each
from ledger.content import ContentRef, ContentStore
from ledger.disk import Disk, DiskUse, RowsDisk
from ledger.errors import PurgeStopped, StoreFailed, Unavailable
from ledger.query import Reader
from ledger.replica import Replica
from ledger.table import referenced_contents
from ledger.turn import Partition, Position
from ledger.verdict import ContentUnneeded, ErasureOrdered, Fact

logger = structlog.get_logger("ledger.keeper")

KEEP_INTERVAL_S = 1.0
"""How often due work is looked for: what is due is gone for readers at once, so only disk space waits for it."""
PURGE_INTERVAL_S = 300.0
"""Erased bytes leave the disk when the database is compacted, which rewrites it: at most this often by itself, and so
long after a purge that failed."""
ERASE_TIMEOUT_S = 10.0
COPY_PURGE_INTERVAL_S = 6 * 3_600.0
"""The same for a replica on Kafka, whose copy holds everybody's contents;"""
ORDERED_PURGE_INTERVAL_S = 30.0
"""but so often while an erased principal's rows are on the disk, and"""
ORDERED_S = 3_600.0
"""for so long after it was erased, while its contents are being erased by the processors."""


class Keeping(Protocol):
    """What runs beside a ledger and gets the lifecycle facts of its folds."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def take(self, partition: Partition, facts: Sequence[Fact]) -> None: ...


class Keeper:
    """Ticks due partitions, erases unneeded contents and takes their bytes off the disk, in the background."""

    def __init__(
        self,
        contents: ContentStore,
        reader: Reader,
        replica: Replica,
        *,
        sweeps: Callable[[Partition], Iterable[ContentRef]],
        purge: Callable[[], Awaitable[None]],
        trim: Callable[[Position], Awaitable[None]],
    ) -> None:
        """``sweeps`` lists the contents that are stored; ``purge`` compacts where they were; ``trim`` gets the position
        of the view, and removes what the log need not keep below it."""
        self._contents = contents
        self._reader = reader
        self._replica = replica
        self._stored = sweeps
        self._purge = purge
        self._trim = trim
        self._unneeded: dict[Partition, list[ContentRef]] = {}
        self._purge_due_s: float | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Sweep what an earlier process left, then start keeping."""
        for partition, state in self._replica.states().items():
            needed = referenced_contents(state.rows.store, partition)
            orphans = [ref for ref in self._stored(partition) if ref.id not in needed]
            if orphans:
                logger.info("orphans_swept", partition=partition, count=len(orphans))
                self._unneeded.setdefault(partition, []).extend(orphans)
        self._task = asyncio.create_task(self._keep_forever())

    async def close(self) -> None:
        """Stop keeping; what is not erased yet is swept at the next start."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def take(self, partition: Partition, facts: Sequence[Fact]) -> None:
        """Take the lifecycle facts of a folded batch."""
        for fact in facts:
            match fact:
                case ContentUnneeded():
                    self._unneeded.setdefault(partition, []).append(fact.content)
                case ErasureOrdered():
                    self._purge_due_s = 0.0

    async def _keep_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(KEEP_INTERVAL_S)
            try:
                await self._reader.tick_due()
                for state in self._replica.states().values():
                    await self._trim(state.rows.position)
                erased_count = await self.erase_unneeded()
                if erased_count and self._purge_due_s is None:
                    self._purge_due_s = loop.time() + PURGE_INTERVAL_S
                if self._purge_due_s is not None and loop.time() >= self._purge_due_s and not erased_count:
                    await self._purge_now()
            except Unavailable as error:
                logger.warning("keeping_interrupted", message=str(error))

    async def _purge_now(self) -> None:
        # First, since an erasure that comes meanwhile makes another one due.
        self._purge_due_s = None
        try:
            await self._purge()
        except Unavailable:
            self._purge_due_s = asyncio.get_running_loop().time() + PURGE_INTERVAL_S
            raise

    async def erase_unneeded(self) -> int:
        """Erase what has become unneeded; return how many contents."""
        erased_count = 0
        for partition in list(self._unneeded):
            refs = self._unneeded.pop(partition)
            try:
                await self._contents.erase(partition, refs, timeout_s=ERASE_TIMEOUT_S)
            except Unavailable:
                self._unneeded.setdefault(partition, []).extend(refs)
                raise
            erased_count += len(refs)
        return erased_count


class DiskKeeper:
    """What a replica on Kafka does for itself: it takes what was erased off its own disk.

    The fold deletes an erased principal's rows, the processors write null records, and this replica's copy deletes the
    contents that they name. The bytes go when a database is rewritten. That is done seldom, and soon after a principal
    was erased, once for the rows and again for contents whose null records come later. One that fails is due again, and
    tried again no sooner than one that has succeeded: it may have filled the disk.
    """

    def __init__(self, rows: RowsDisk, contents: Disk, use: DiskUse, *, stop_purging: Callable[[], None]) -> None:
        """``stop_purging`` lets a purge in another thread end soon; nothing is purged afterwards."""
        self._rows = rows
        self._contents = contents
        self._use = use
        self._stop_purging = stop_purging
        self._purged_at_s = 0.0
        """When the last purge ended, completed or not."""
        self._ordered_until_s = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._purging: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start keeping."""
        self._purged_at_s = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(self._keep_forever())

    async def close(self) -> None:
        """Stop keeping; a purge that is under way is stopped, and due again after the next start."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._purging is not None and not self._purging.done():
            try:
                self._stop_purging()
            except StoreFailed as error:
                logger.warning("keeping_interrupted", message=str(error))
            await asyncio.gather(self._purging, return_exceptions=True)
        with contextlib.suppress(StoreFailed):
            # What is not stored is purged once more after the next start.
            self._rows.save()

    def take(self, partition: Partition, facts: Sequence[Fact]) -> None:
        """Take the lifecycle facts of a folded batch."""
        if any(isinstance(fact, ErasureOrdered) for fact in facts):
            self._rows.erased(partition)
            self._ordered_until_s = asyncio.get_running_loop().time() + ORDERED_S

    async def _keep_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(KEEP_INTERVAL_S)
            try:
                due: list[Disk] = [disk for disk in (self._rows, self._contents) if disk.is_due()]
            except StoreFailed as error:
                logger.warning("keeping_interrupted", message=str(error))
                continue
            is_soon = self._rows in due or loop.time() < self._ordered_until_s
            pause_s = ORDERED_PURGE_INTERVAL_S if is_soon else COPY_PURGE_INTERVAL_S
            self._use.is_purge_due = bool(due) and loop.time() - self._purged_at_s >= pause_s
            if self._use.is_purge_due and not self._use.is_scanning:
                self._use.is_purging = True
                try:
                    for disk in due:
                        await self._purge(disk)
                finally:
                    self._use.is_purging = self._use.is_purge_due = False
                    self._purged_at_s = loop.time()

    async def _purge(self, disk: Disk) -> None:
        """Purge one disk; what it refuses keeps nobody from purging the other."""
        is_purged = False
        try:
            disk.begin()
            self._purging = asyncio.create_task(asyncio.to_thread(disk.purge))
            await asyncio.shield(self._purging)
            is_purged = True
        except PurgeStopped:
            logger.info("purge_stopped")
        except StoreFailed as error:
            logger.warning("keeping_interrupted", message=str(error))
        finally:
            disk.end(is_purged=is_purged)


class Together:
    """Several that keep beside one ledger."""

    def __init__(self, *kept: Keeping) -> None:
        self._kept = kept

    async def start(self) -> None:
        """Start them in their order."""
        for one in self._kept:
            await one.start()

    async def close(self) -> None:
        """Close them, the last one first."""
        await close_each(*(one.close for one in reversed(self._kept)))

    def take(self, partition: Partition, facts: Sequence[Fact]) -> None:
        """Give each the facts."""
        for one in self._kept:
            one.take(partition, facts)
