"""Who holds a partition, and whether what they say agrees: read from the topics, whoever watches them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from ledger.checkpoint import BadSignature, decode_checkpoint
from ledger.errors import UndecodableRecord
from ledger.log import EventLog, Record
from ledger.reading import Gap, Silence, read
from ledger.report import decode_report
from ledger.turn import Partition, Position
from processors.comparison import PartitionWatch

ASK_TIMEOUT_S = 10.0
SILENCE_MAX_S = 3.0
"""An open transaction hides what follows it for a few seconds."""
CHECKPOINTS_BACK = 2_048
"""Offsets of checkpoints that reports are compared with; each takes one, and one for the end of its transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReporters:
    """What the topics say of one partition."""

    partition: Partition
    end: Position
    """Of the log."""
    watch: PartitionWatch
    later_format: frozenset[bytes]
    """IDs of those whose last word is in a format of a later release: nothing is known of their disks here."""


async def partition_reporters(
    log: EventLog, reports: EventLog, checkpoints: EventLog, partitions: Iterable[Partition]
) -> list[PartitionReporters]:
    """Return who holds each partition, with the differences among what is kept of their reports and the last
    checkpoints. Signatures are not compared with a key here. Raises ``Unavailable``."""
    return list(await asyncio.gather(*(_one(log, reports, checkpoints, partition) for partition in partitions)))


async def _one(log: EventLog, reports: EventLog, checkpoints: EventLog, partition: Partition) -> PartitionReporters:
    watch = PartitionWatch()
    end = await checkpoints.end(partition, timeout_s=ASK_TIMEOUT_S)
    start = Position(max(0, end - CHECKPOINTS_BACK))
    async for record in read(
        checkpoints, partition, start, end, gap=Gap.SKIPPED, silence=Silence.ENDS, silence_max_s=SILENCE_MAX_S
    ):
        try:
            watch.take_checkpoint(decode_checkpoint(record.value))
        except (UndecodableRecord, BadSignature):
            continue
    reporters = Reporters(reports, partition, watch)
    await reporters.read_on()
    return PartitionReporters(
        partition=partition,
        end=await log.end(partition, timeout_s=ASK_TIMEOUT_S),
        watch=watch,
        later_format=frozenset(reporters.later_format),
    )


class Reporters:
    """The reporters of one partition, read from their topic as far as it goes, again and again."""

    def __init__(self, reports: EventLog, partition: Partition, watch: PartitionWatch | None = None) -> None:
        self._reports = reports
        self._partition = partition
        self._position = Position(0)
        self.watch = watch or PartitionWatch()
        self.later_format: set[bytes] = set()
        """IDs of those whose last word is in a format of a later release. Whoever asks for disks must not pass them
        over, as if they were purged."""

    async def read_on(self) -> None:
        """Read what came since the last call. Raises ``Unavailable``."""
        end = await self._reports.end(self._partition, timeout_s=ASK_TIMEOUT_S)
        async for record in read(self._reports, self._partition, self._position, end, gap=Gap.SKIPPED):
            self._take(record)
        self._position = max(end, self._position)

    def _take(self, record: Record) -> None:
        key = record.key or b""
        if record.value is None:
            self.later_format.discard(key)
            self.watch.withdraw(key)
            return
        try:
            report = decode_report(record.value)
        except UndecodableRecord as error:
            if error.reason == "newer_format":
                self.later_format.add(key)
                # What it said before is not true of its disk any more.
                self.watch.withdraw(key)
            return
        self.later_format.discard(key)
        if report.partition == self._partition:
            self.watch.take_report(key, report, record.appended_at_ms)
