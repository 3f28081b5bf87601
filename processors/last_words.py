"""What a worker says of partitions that it has no more and whose rows it still keeps: its last word, again.

Place in the flow: lane → **last words** → report → watch. Whoever waits for an erasure waits for these rows too, and a
worker that lives is not silent about them. Rules kept here:

- The rows do not change, so neither does the word; but nobody digests them, so it says nothing of their digest.
- A word is repeated only while nothing happens to the rows: not of a partition that is being restored, and not once the
  rows are being removed, since the withdrawal must come last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ledger.log import EventLog
from ledger.report import Report
from ledger.reporter import Holding, Standing
from ledger.rows import MetaRow
from ledger.turn import Partition, Position
from processors.leftovers import rows_directory
from processors.reporters import Reporters


class LastWords:
    """The last words of one worker."""

    def __init__(self, directory: Path, held: Callable[[], set[Partition]]) -> None:
        """``directory`` is where the worker keeps its rows, ``held`` tells which partitions are its own."""
        self._directory = directory
        self._held = held
        self._last: dict[Partition, Holding] = {}

    async def recall(self, reports: EventLog, reporter_id: bytes, partitions: Iterable[Partition]) -> None:
        """Read what the worker said before it was restarted, of partitions whose rows it found.

        What it said in the format of a later release stays where it is: nobody can repeat it here. Raises
        ``Unavailable``.
        """
        found = {number: Reporters(reports, number) for number in partitions if self._is_kept(number)}
        await asyncio.gather(*(reporters.read_on() for reporters in found.values()))
        for partition, reporters in found.items():
            heard = reporters.watch.heard.get(reporter_id)
            if heard is not None:
                self._last[partition] = _said(heard.report)

    def with_lanes(self, lanes: Mapping[Partition, Holding]) -> dict[Partition, Holding]:
        """Return what is to be said now: of the running lanes, and of partitions that were given up."""
        held = self._held()
        for partition in [number for number in self._last if number in held or not self._is_kept(number)]:
            del self._last[partition]
        said = {**self._last, **lanes}
        self._last |= {number: _without_digest(holding) for number, holding in lanes.items()}
        return said

    def _is_kept(self, partition: Partition) -> bool:
        return rows_directory(self._directory, partition).exists()


def _without_digest(holding: Holding) -> Holding:
    return holding._replace(standing=holding.standing._replace(rows=None))


def _said(report: Report) -> Holding:
    meta = MetaRow(
        ledger_id=report.ledger_id,
        position=report.position,
        anchor_offset=report.anchor_offset,
        chain=report.chain,
        clock_ms=report.clock_ms,
    )
    return Holding(Standing(meta, report.log_id, None), Position(report.purged_position), None)
