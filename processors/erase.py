"""Erase: lifecycle facts become null records on the topic ``content``, and compaction makes them real.

At least once, in any order, by any worker: a content that is unneeded stays so, and erasing it again changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

import structlog

from ledger.content import ContentRef
from ledger.errors import Unavailable, UndecodableRecord
from ledger.facts import decode_fact
from ledger.turn import Partition
from ledger.verdict import ContentUnneeded

logger = structlog.get_logger("processors.erase")

ERASE_TIMEOUT_S = 10.0
RETRY_PAUSE_S = 0.5
RETRY_PAUSE_MAX_S = 10.0
NOBODY = ContentRef(scope=bytes(20), id=bytes(16), chunks=1, size_bytes=0, last_offset=0, oldest_at_ms=0)
"""A content that never was: erasing it writes a record, and nothing else."""


class Erasing(Protocol):
    """The part of ``ContentStore`` that erases."""

    async def erase(self, partition: Partition, refs: Sequence[ContentRef], *, timeout_s: float) -> None: ...


class Eraser:
    """Carries facts out, and counts."""

    def __init__(self, contents: Erasing) -> None:
        self._contents = contents
        self.facts_count = 0
        self.erased_count = 0
        self.unreadable_count = 0
        self.problem = ""

    async def take(self, facts: Iterable[tuple[Partition, bytes | None]]) -> None:
        """Carry out facts as they were read from the topic; return only when all is durable.

        An agent that gives up would lose them, so this tries for ever.
        """
        refs: dict[Partition, list[ContentRef]] = {}
        for partition, value in facts:
            self.facts_count += 1
            try:
                fact = decode_fact(value)
            except UndecodableRecord as error:
                self.unreadable_count += 1
                logger.warning("fact_unreadable", partition=partition, reason=error.reason)
                continue
            if isinstance(fact, ContentUnneeded):
                refs.setdefault(partition, []).append(fact.content)
        await asyncio.gather(*(self._erase(partition, unneeded) for partition, unneeded in refs.items()))

    async def _erase(self, partition: Partition, refs: Sequence[ContentRef]) -> None:
        failures = 0
        while True:
            try:
                await self._contents.erase(partition, refs, timeout_s=ERASE_TIMEOUT_S)
            except Unavailable as error:
                failures += 1
                self.problem = str(error)
                logger.warning("erasing_interrupted", partition=partition, message=str(error))
                await asyncio.sleep(min(RETRY_PAUSE_S * failures, RETRY_PAUSE_MAX_S))
            else:
                self.erased_count += len(refs)
                self.problem = ""
                return

    async def roll(self, partition: Partition) -> None:
        """Write a record that means nothing, so that a partition to which nothing is written begins a new segment.

        Raises ``Unavailable``.
        """
        await self._contents.erase(partition, [NOBODY], timeout_s=ERASE_TIMEOUT_S)
