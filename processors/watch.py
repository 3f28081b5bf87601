"""Watch: checkpoints and reports are compared as they come, and the first difference is an alarm.

Two checkpoints of one partition at one position say the same, a position never goes back, and every signature is that
of a key that is trusted. What replicas and workers report is compared with the checkpoints and with each other
(``processors.comparison``). Anything else means that two processes hold different things, or that somebody else wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from ledger.checkpoint import BadSignature, Checkpoint, decode_checkpoint
from ledger.errors import UndecodableRecord
from ledger.log import EventLog
from ledger.reading import Gap, read
from ledger.report import decode_report
from ledger.turn import Offset, Partition, Position
from processors.comparison import Alarm, Heard, PartitionWatch

logger = structlog.get_logger("processors.watch")

REMEMBERED_MAX = 64
"""Checkpoints of one partition that later ones are compared with: a worker that took over writes at most a few
positions again."""


class Watcher:
    """Compares checkpoints and reports, and counts what differs."""

    def __init__(self, public_key: bytes, reports: EventLog, *, now_ms: Callable[[], int]) -> None:
        """``public_key`` is the one key that is trusted; ``reports`` the topic, of which a partition that comes to this
        worker is read once from its beginning."""
        self._public_key = public_key
        self._reports = reports
        self._now_ms = now_ms
        self._seen: dict[Partition, list[Checkpoint]] = {}
        self._watched: dict[Partition, PartitionWatch] = {}
        self._read: set[Partition] = set()
        """Partitions whose earlier reports were read."""
        self.checkpoints_count = 0
        self.reports_count = 0
        self.alarms_count = 0
        self.last_alarm = ""

    def assigned(self, partitions: Iterable[Partition]) -> None:
        """Keep what is known of these partitions, and forget the others: another worker watches them now."""
        kept = set(partitions)
        for known in (self._seen, self._watched):
            for partition in set(known) - kept:
                del known[partition]
        self._read &= kept

    def take(self, partition: Partition, value: bytes | None) -> None:
        """Compare one checkpoint with those before it, and with what was reported."""
        self.checkpoints_count += 1
        try:
            checkpoint = decode_checkpoint(value)
        except (UndecodableRecord, BadSignature) as error:
            self._alarm(partition, f"a checkpoint cannot be trusted: {error}")
            return
        if checkpoint.public_key != self._public_key:
            self._alarm(partition, f"a checkpoint is signed by another key, {checkpoint.public_key.hex()}")
            return
        if checkpoint.partition != partition:
            self._alarm(partition, f"a checkpoint is of partition {checkpoint.partition}")
            return
        seen = self._seen.setdefault(partition, [])
        for earlier in seen:
            difference = _difference(earlier, checkpoint)
            if difference:
                self._alarm(partition, difference)
                return
        seen.append(checkpoint)
        del seen[:-REMEMBERED_MAX]
        self._tell(partition, self._of(partition).take_checkpoint(checkpoint))

    async def take_report(
        self, partition: Partition, offset: Offset, key: bytes | None, value: bytes | None, appended_at_ms: int
    ) -> None:
        """Compare one report with what was said before. Raises ``Unavailable`` when that cannot be read."""
        if partition not in self._read:
            start = Position(0)
            async for record in read(self._reports, partition, start, Position(offset), gap=Gap.SKIPPED):
                self._take_report(partition, record.key, record.value, record.appended_at_ms)
            self._read.add(partition)
        self._take_report(partition, key, value, appended_at_ms)

    def _take_report(self, partition: Partition, key: bytes | None, value: bytes | None, appended_at_ms: int) -> None:
        self.reports_count += 1
        watched = self._of(partition)
        if value is None:
            watched.withdraw(key or b"")
            return
        try:
            report = decode_report(value)
        except UndecodableRecord as error:
            # One that a later release has written is nobody's fault.
            logger.warning("report_unreadable", partition=partition, reason=error.reason)
            return
        if report.partition != partition:
            self._alarm(partition, f"a report of {report.kind} {report.name} is of partition {report.partition}")
            return
        self._tell(partition, watched.take_report(key or b"", report, appended_at_ms))

    def last(self, partition: Partition) -> Checkpoint | None:
        """Return the newest checkpoint of a partition that agrees with those before it."""
        seen = self._seen.get(partition)
        return seen[-1] if seen else None

    def silent(self) -> list[Heard]:
        """Return who is silent, once per partition."""
        now_ms = self._now_ms()
        return [heard for watched in self._watched.values() for heard in watched.silent(now_ms)]

    def _of(self, partition: Partition) -> PartitionWatch:
        return self._watched.setdefault(partition, PartitionWatch())

    def _tell(self, partition: Partition, alarms: Iterable[Alarm]) -> None:
        for alarm in alarms:
            self._count(partition, str(alarm))
            logger.error(
                "report_differs",
                partition=partition,
                anchor_offset=alarm.anchor_offset,
                reporter=alarm.who,
                other=alarm.other,
                message=alarm.difference,
            )

    def _alarm(self, partition: Partition, message: str) -> None:
        self._count(partition, message)
        logger.error("checkpoints_differ", partition=partition, message=message)

    def _count(self, partition: Partition, message: str) -> None:
        self.alarms_count += 1
        self.last_alarm = f"partition {partition}: {message}"


def _difference(earlier: Checkpoint, later: Checkpoint) -> str:
    a, b = earlier.marker, later.marker
    if a.log_id != b.log_id or a.ledger_id != b.ledger_id:
        return "two checkpoints are of different logs"
    if a.position == b.position and a.chain != b.chain:
        return f"two checkpoints at {a.position} are of different records"
    if a.position == b.position and (a.rows_digest, a.rows_count) != (b.rows_digest, b.rows_count):
        return f"two checkpoints at {a.position} have different rows"
    if b.position < a.position and b.clock_ms > a.clock_ms:
        return f"the checkpoint at {b.position} has a later clock than the one at {a.position}"
    return ""
