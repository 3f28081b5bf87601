"""What is said of one partition, by checkpoints and by reports, compared: pure.

Two statements about one anchor name the same chain, and the same rows if they are of the same position. Anything else
means that two processes folded different records, or that what one of them holds is not what it folded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ledger.checkpoint import Checkpoint
from ledger.report import Report, ReporterKind, RowsStatement

ANCHORS_MAX = 1_024
"""Anchors of one partition that later statements are compared with: a digest takes minutes, in which checkpoints follow
at every aligned place."""
SILENT_INTERVALS = 3
"""A reporter that has missed so many of the intervals that it promised is silent."""
CHECKPOINT = "the checkpoint"


class Statement(NamedTuple):
    """What somebody says of an anchor."""

    who: str
    ledger_id: bytes
    log_id: str
    position: int
    anchor_offset: int
    chain: bytes
    rows: RowsStatement | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The last word of a reporter on a partition."""

    id: bytes
    report: Report
    heard_at_ms: int
    """Append time of the report."""
    digest_at_ms: int | None = None
    """When a digest of its rows was last compared with somebody else's and agreed."""

    @property
    def who(self) -> str:
        """What people call it."""
        return f"{self.report.kind} {self.report.name} ({self.id.hex()[:8]})"

    @property
    def is_purged(self) -> bool:
        """Whether no erased row is on its disk."""
        return self.report.purged_position >= self.report.position

    def is_silent(self, now_ms: int) -> bool:
        """Return whether it should have reported again long ago."""
        return now_ms - self.heard_at_ms > SILENT_INTERVALS * self.report.interval_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A difference."""

    anchor_offset: int
    who: str
    """Whose statement came second,"""
    other: str
    """and whom it differs from: which of them is right, a replay of the log tells."""
    difference: str

    def __str__(self) -> str:
        return f"at offset {self.anchor_offset} {self.who} and {self.other} {self.difference}"


@dataclass(slots=True)
class PartitionWatch:
    """One partition."""

    heard: dict[bytes, Heard] = field(default_factory=dict)
    """Who holds it, by reporter ID."""
    alarms: list[Alarm] = field(default_factory=list)
    """Each first difference between two."""
    _said: dict[int, dict[str, Statement]] = field(default_factory=dict)
    """By anchor, oldest first, and by who said it."""

    def take_checkpoint(self, checkpoint: Checkpoint) -> list[Alarm]:
        """Compare a checkpoint that is trusted; return the differences that are new."""
        marker = checkpoint.marker
        rows = RowsStatement(marker.rows_digest, marker.rows_count)
        said = Statement(
            CHECKPOINT, marker.ledger_id, marker.log_id, marker.position, marker.anchor_offset, marker.chain, rows
        )
        alarms, _ = self._compare(said)
        return alarms

    def take_report(self, reporter_id: bytes, report: Report, heard_at_ms: int) -> list[Alarm]:
        """Compare a report; return the differences that are new."""
        before = self.heard.get(reporter_id)
        heard = Heard(
            id=reporter_id,
            report=report,
            heard_at_ms=heard_at_ms,
            digest_at_ms=None if before is None else before.digest_at_ms,
        )
        said = Statement(
            heard.who,
            report.ledger_id,
            report.log_id,
            report.position,
            report.anchor_offset,
            report.chain,
            report.rows,
        )
        alarms, agreed = self._compare(said)
        if report.kind is ReporterKind.WORKER:
            # Its rows are those that its marker tells, and checkpoints are signed from the same: no second opinion.
            agreed.discard(CHECKPOINT)
        if agreed:
            heard = Heard(id=reporter_id, report=report, heard_at_ms=heard_at_ms, digest_at_ms=heard_at_ms)
        self.heard[reporter_id] = heard
        return alarms

    def withdraw(self, reporter_id: bytes) -> None:
        """A reporter holds the partition no more."""
        self.heard.pop(reporter_id, None)

    def silent(self, now_ms: int) -> list[Heard]:
        """Return the reporters that are silent."""
        return [heard for heard in self.heard.values() if heard.is_silent(now_ms)]

    def _compare(self, said: Statement) -> tuple[list[Alarm], set[str]]:
        """Return new differences, and who else has said the same of the rows."""
        if said.anchor_offset < 0:
            return [], set()
        there = self._said.setdefault(said.anchor_offset, {})
        found: list[Alarm] = []
        agreed: set[str] = set()
        for other in there.values():
            if other.who == said.who and said.who != CHECKPOINT:
                continue
            difference = _difference(other, said)
            if difference:
                found.append(
                    Alarm(anchor_offset=said.anchor_offset, who=said.who, other=other.who, difference=difference)
                )
            elif said.rows is not None and other.rows == said.rows:
                agreed.add(other.who)
        # A report without a digest takes nothing back of one with it.
        if said.rows is not None or said.who not in there:
            there[said.who] = said
        if len(self._said) > ANCHORS_MAX:
            del self._said[next(iter(self._said))]
        known = {(alarm.who, alarm.other, alarm.difference) for alarm in self.alarms}
        new = [alarm for alarm in found if (alarm.who, alarm.other, alarm.difference) not in known]
        self.alarms += new
        return new, agreed


def _difference(earlier: Statement, later: Statement) -> str:
    if (earlier.log_id, earlier.ledger_id) != (later.log_id, later.ledger_id):
        return "are of different logs"
    if earlier.chain != later.chain:
        return "have folded different records"
    if earlier.position != later.position or earlier.rows is None or later.rows is None:
        return ""
    return "" if earlier.rows == later.rows else "have different rows"
