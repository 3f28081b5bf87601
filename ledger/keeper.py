"""What the embedded ledger does for itself: expire without traffic, and delete contents that nothing needs.

With Kafka the processors do this for all replicas; an embedded ledger has one process, so it is its own eraser.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import structlog

from ledger.content import ContentRef, ContentStore
from ledger.errors import Unavailable
from ledger.query import Reader
from ledger.turn import Partition
from ledger.verdict import ContentUnneeded, Fact

logger = structlog.get_logger("ledger.keeper")

KEEP_INTERVAL_S = 1.0
"""How often due work is looked for: what is due is gone for readers at once, so only disk space waits for it."""
ERASE_TIMEOUT_S = 10.0


class Keeper:
    """Ticks due partitions and erases unneeded contents, in the background."""

    def __init__(self, contents: ContentStore, reader: Reader) -> None:
        self._contents = contents
        self._reader = reader
        self._unneeded: dict[Partition, list[ContentRef]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start keeping."""
        self._task = asyncio.create_task(self._keep_forever())

    async def close(self) -> None:
        """Stop; contents not erased yet are erased after the next start, when their facts are folded again or swept."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def take(self, partition: Partition, facts: Sequence[Fact]) -> None:
        """Take the lifecycle facts of a folded batch."""
        for fact in facts:
            if isinstance(fact, ContentUnneeded):
                self._unneeded.setdefault(partition, []).append(fact.content)

    async def _keep_forever(self) -> None:
        while True:
            await asyncio.sleep(KEEP_INTERVAL_S)
            try:
                await self._reader.tick_due()
                await self.erase_unneeded()
            except Unavailable as error:
                logger.warning("keeping_interrupted", message=str(error))

    async def erase_unneeded(self) -> int:
        """Erase what has become unneeded; return how many contents."""
        erased = 0
        for partition in list(self._unneeded):
            refs = self._unneeded.pop(partition)
            try:
                await self._contents.erase(partition, refs, timeout_s=ERASE_TIMEOUT_S)
            except Unavailable:
                self._unneeded.setdefault(partition, []).extend(refs)
                raise
            erased += len(refs)
        return erased
