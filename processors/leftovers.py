"""Rows of partitions that a worker has no more: another one has them now, and nobody would erase anything in these.

They are kept for a while, since partitions come back. Then they are removed, and the worker says that it holds them no
more.
"""

from __future__ import annotations

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

    def _found(self) -> set[Partition]:
        names = (_NAME.fullmatch(path.name) for path in self._directory.glob("partition-*"))
        return {Partition(int(name[1])) for name in names if name is not None}

    async def look(self) -> None:
        """Remove what was not this worker's for long enough. Raises ``Unavailable``, ``OSError``."""
        now_s = time.monotonic()
        held = self._held()
        for partition in held:
            self._since_s.pop(partition, None)
        for partition in self._found() - held:
            if now_s - self._since_s.setdefault(partition, now_s) < UNASSIGNED_S:
                continue
            if await self._discard(partition, lambda found=partition: self._remove(found)):  # type: ignore[misc]
                logger.info("rows_removed", partition=partition)
                del self._since_s[partition]
                self._owed.add(partition)
                self.removed_count += 1
        for partition in sorted(self._owed - self._held()):
            await self._withdraw(partition)
            self._owed.discard(partition)
        self._owed -= self._held()

    def _remove(self, partition: Partition) -> None:
        path = rows_directory(self._directory, partition)
        removed = path.with_name(path.name + REMOVED)
        shutil.rmtree(removed, ignore_errors=True)
        path.rename(removed)
        shutil.rmtree(removed)
