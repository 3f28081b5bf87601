"""A partition that is assigned to a worker: its lane, what waits for it, and what is shown of it."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field

from ledger.log import RecordBatch
from ledger.turn import Partition, Position
from processors.lane import Lane

BATCH_RECORDS_MAX = 500
"""Records folded in one transaction: large enough that the transaction costs little, small enough for its timeout."""
SILENCE_MAX_S = 10.0
"""How long a lane may be behind its end while nothing arrives for any lane: then the tail is opened anew."""
QUEUEING_MAX_S = 60.0
"""The same while something always arrives for others, whose turn may come first."""


class Phase(enum.StrEnum):
    """Where a lane is."""

    RESTORING = "restoring"
    RUNNING = "running"
    STOPPED = "stopped"
    """Until somebody acts; ``Slot.problem`` says why."""


@dataclass(slots=True)
class Slot:
    """One assigned partition: its lane, and what is waiting for it."""

    partition: Partition
    lane: Lane | None = None
    phase: Phase = Phase.RESTORING
    problem: str = ""
    """Why it is stopped, or was restored last."""
    task: asyncio.Task[None] | None = None
    """Restores or folds."""
    backlog: list[RecordBatch] = field(default_factory=list)
    read_to: Position = Position(0)
    """Where the tail goes on for this lane."""
    hinted: int = -1
    """The position that was last committed to the group."""
    epoch: int = 0
    """Counts restores: a tail opened for an earlier one is of no use."""
    failures: int = 0
    end: Position | None = None
    progressed_at_s: float = 0.0
    behind_at_s: float = 0.0
    """When the end was first seen beyond ``read_to``."""
    ticked_at_s: float = 0.0
    ticking: asyncio.Task[None] | None = None

    @property
    def backlog_records(self) -> int:
        return sum(len(batch.records) for batch in self.backlog)

    def take(self) -> list[RecordBatch]:
        """Take whole batches from the backlog, up to about ``BATCH_RECORDS_MAX`` records."""
        taken: list[RecordBatch] = []
        count = 0
        while self.backlog and (not taken or count + len(self.backlog[0].records) <= BATCH_RECORDS_MAX):
            batch = self.backlog.pop(0)
            count += len(batch.records)
            taken.append(batch)
        return taken

    def status(self) -> LaneStatus:
        """Return what is shown of it."""
        marker = None if self.lane is None else self.lane.marker
        return LaneStatus(
            partition=self.partition,
            phase=self.phase,
            problem=self.problem,
            position=Position(0 if marker is None else marker.position),
            end=self.end,
            clock_ms=0 if marker is None else marker.clock_ms,
            rows_count=0 if self.lane is None else self.lane.rows_count,
            restored_from="" if self.lane is None else self.lane.restored_from,
        )

    @property
    def is_idle(self) -> bool:
        return self.phase is Phase.RUNNING and self.task is None and not self.backlog

    def is_silent(self, now_s: float, dry_at_s: float) -> bool:
        """Return whether the log has records for an idle lane that do not arrive.

        ``dry_at_s`` is when the tail last had none for any lane: one that has some gives them a lane at a time.
        """
        if not self.is_idle or not self.is_behind:
            return False
        since_s = max(self.progressed_at_s, self.behind_at_s)
        return now_s - since_s > (SILENCE_MAX_S if dry_at_s > since_s else QUEUEING_MAX_S)

    @property
    def is_behind(self) -> bool:
        """Whether the log has more than the tail has given."""
        return self.end is not None and self.read_to < self.end

    def learn_end(self, end: Position, now_s: float) -> None:
        """Take the end of the log as it is at this moment."""
        was_behind = self.is_behind
        self.end = end
        if self.is_behind and not was_behind:
            self.behind_at_s = now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatus:
    """What is shown of one partition."""

    partition: Partition
    phase: Phase
    problem: str
    position: Position
    """Of the last marker."""
    end: Position | None
    clock_ms: int
    rows_count: int
    restored_from: str
