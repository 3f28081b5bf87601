"""Rows of partitions that a worker has no more: another one has them now, and nobody would erase anything in these.

They are kept for a while, since partitions come back. Then they are removed, and the worker says that it holds them no
more.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from ledger.turn import Partition

logger = structlog.get_logger("processors.leftovers")

UNASSIGNED_S = 600.0
"""How long the rows of a partition that was given up are kept: longer than workers take to be restarted one by one."""
REMOVED = ".removed"
"""Ending of a directory that is being removed: a half of one must not be opened after a crash."""
_NAME = re.compile(r"partition-(\d{5})")
_REMOVED_NAME = re.compile(_NAME.pattern + re.escape(REMOVED))


def rows_directory(directory: Path, partition: Partition) -> Path:
    """Return where a worker keeps the rows of a partition."""
    return directory / f"partition-{partition:05}"


class Leftovers:
    """Removes what is left of partitions that are not this worker's."""

    def __init__(
        self,
        directory: Path,
        *,
        partition_count: int,
        held: Callable[[], set[Partition]],
        discard: Callable[[Partition, Callable[[], None]], Awaitable[bool]],
        withdraw: Callable[[Partition], Awaitable[None]],
    ) -> None:
        """``held`` tells which partitions are this worker's, ``discard`` is the materialize service's, ``withdraw``
        says that the worker holds a partition no more."""
        self._directory = directory
        self._held = held
        self._discard = discard
        self._withdraw = withdraw
        self._since_s: dict[Partition, float] = {}
        # A worker that was killed between a removal and its withdrawal still counts as a holder.
        everything = {Partition(number) for number in range(partition_count)}
        self._owed = everything - self._found()
        self.removed_count = 0

    def is_removing(self, partition: Partition) -> bool:
        """Return whether earlier rows of a partition are on the disk yet, although they count for nothing any more."""
        return _removed_directory(self._directory, partition).exists()

    async def look(self) -> None:
        """Remove what was not this worker's for long enough. Raises ``Unavailable``, ``OSError``."""
        await self._finish_removals()
        now_s = time.monotonic()
        held = self._held()
        for partition in held:
            self._since_s.pop(partition, None)
        for partition in self._found() - held:
            if now_s - self._since_s.setdefault(partition, now_s) < UNASSIGNED_S or self.is_removing(partition):
                continue
            # Owed from the first moment on: when the removal fails in its midst, a later look withdraws.
            self._owed.add(partition)
            if await self._discard(partition, lambda found=partition: self._remove(found)):  # type: ignore[misc]
                logger.info("rows_removed", partition=partition)
                del self._since_s[partition]
                self.removed_count += 1
        for partition in sorted(self._owed - self._held()):
            if not self._is_there(partition):
                await self._withdraw(partition)
                self._owed.discard(partition)
        self._owed -= self._held()

    async def _finish_removals(self) -> None:
        """Remove what a removal that failed, or that a crash cut off, has left."""
        for partition in sorted(self._numbers(_REMOVED_NAME)):
            try:
                await asyncio.to_thread(shutil.rmtree, _removed_directory(self._directory, partition))
            except OSError as error:
                # The others come first; this one is tried again at the next look, and not withdrawn until then.
                logger.warning("rows_not_removed", partition=partition, message=str(error))
            else:
                logger.info("rows_removed", partition=partition)

    def _remove(self, partition: Partition) -> None:
        removed = _removed_directory(self._directory, partition)
        rows_directory(self._directory, partition).rename(removed)
        shutil.rmtree(removed)

    def _is_there(self, partition: Partition) -> bool:
        return rows_directory(self._directory, partition).exists() or self.is_removing(partition)

    def _found(self) -> set[Partition]:
        return self._numbers(_NAME)

    def _numbers(self, pattern: re.Pattern[str]) -> set[Partition]:
        names = (pattern.fullmatch(path.name) for path in self._directory.glob("partition-*"))
        return {Partition(int(name[1])) for name in names if name is not None}


def _removed_directory(directory: Path, partition: Partition) -> Path:
    rows = rows_directory(directory, partition)
    return rows.with_name(rows.name + REMOVED)
