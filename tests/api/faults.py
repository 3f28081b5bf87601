"""A ledger whose log fails as a test says, over the in-memory reference adapters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ledger.adapters.memory import (
    AppendFate,
    AppendOutcome,
    MemoryContents,
    MemoryContentStore,
    MemoryLog,
    MemoryTopic,
    MemoryViewStore,
)
from ledger.alias import AliasKey
from ledger.ledger import Ledger, wall_clock_ms
from ledger.policy import Policy
from ledger.settings import LedgerSettings
from ledger.turn import Partition, Position

REFUSED = AppendFate(outcome=AppendOutcome.REFUSED)
LOST = AppendFate(outcome=AppendOutcome.LATE, delay_s=3600.0)
"""Not acknowledged, and not in the log while the test runs."""
DELIVERED = AppendFate(outcome=AppendOutcome.DELIVERED)

SETTINGS = LedgerSettings(
    commit_timeout_s=0.3, read_timeout_s=0.3, read_index_timeout_s=0.3, max_staleness_s=0.0, abandon_retry_s=3600.0
)
"""Short deadlines: every test that fails on purpose waits for one."""


class ScriptedFaults:
    """What goes wrong next, as a test sets it."""

    def __init__(self) -> None:
        self.fates: defaultdict[Partition, list[AppendFate]] = defaultdict(list)
        """Of the next appends; afterwards they are delivered."""
        self.held_back_at: Position | None = None
        """Where the tail sees nothing more."""
        self.leaderless: set[Partition] = set()
        """Partitions whose end nobody names."""
        self.topic: MemoryTopic | None = None

    def append(self, partition: Partition) -> AppendFate:
        return self.fates[partition].pop(0) if self.fates[partition] else DELIVERED

    def visible(self, partition: Partition, end: Position) -> Position:
        return end if self.held_back_at is None else min(end, self.held_back_at)

    def end(self, partition: Partition) -> float | None:
        return None if partition in self.leaderless else 0.0


@asynccontextmanager
async def faulty_ledger(
    faults: ScriptedFaults, *, partition_count: int = 1, settings: LedgerSettings = SETTINGS
) -> AsyncIterator[Ledger]:
    """Open a formatted ledger on a log with ``faults``."""
    faults.topic = MemoryTopic(partition_count, log_id="test")
    ledger = Ledger(
        MemoryLog(faults.topic, now_ms=wall_clock_ms, faults=faults),
        MemoryContentStore(MemoryContents(), now_ms=wall_clock_ms),
        MemoryViewStore(),
        AliasKey(b"k" * 32),
        settings=settings,
    )
    async with ledger:
        await ledger.start(format_policy=Policy())
        yield ledger
