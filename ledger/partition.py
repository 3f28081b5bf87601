"""One partition in one process: its state, and folding some of its records without telling anybody yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ledger.errors import Unavailable
from ledger.fold import UnsupportedUpgrade, fold
from ledger.log import Record
from ledger.table import Rows
from ledger.turn import Partition, Position
from ledger.verdict import Fact, Outcome

COUNT_EVERY_RECORDS = 4
"""How often the changes of a part are counted: so many ticks with all that they carry out take about 15 ms."""


@dataclass(slots=True)
class PartitionState:
    """What a process knows of one of its partitions beyond the rows."""

    rows: Rows
    stopped: Unavailable | None = None
    """Why the partition is not served until somebody acts; None: it is."""
    end_seen: Position = Position(0)
    """Highest end that a validated leader has named."""
    progressed_at_s: float = 0.0
    """Loop time of the last progress."""
    caught_up_at_s: float = 0.0
    """Loop time at which it last had nothing to do."""
    confirmed_at_s: float = float("-inf")
    """Loop time before which an end was asked for that the position has reached since."""
    waiters: list[tuple[Position, asyncio.Future[None]]] = field(default_factory=list)
    started_position: Position = field(init=False)
    """Of the rows that this process found."""

    def __post_init__(self) -> None:
        self.started_position = self.rows.position


class Part(NamedTuple):
    """Some consecutive records of one partition; ``next_position`` is set when they end a batch of the tail."""

    partition: Partition
    records: Sequence[Record]
    next_position: Position | None


class Folded(NamedTuple):
    """What came of a part; not to be told to anybody before its rows are written."""

    state: PartitionState
    outcomes: list[tuple[Record, Outcome]]
    facts: list[Fact]
    rest: Part | None = None
    """What was not folded, because enough had changed."""
    upgrade: UnsupportedUpgrade | None = None


def fold_part(state: PartitionState, part: Part, *, changes_max: int) -> Folded:
    """Fold the records of a part up to the first that this build does not support, or until about ``changes_max`` rows
    have changed: a tick may carry out as many due tasks as a hundred turns make changes."""
    rows = state.rows
    outcomes: list[tuple[Record, Outcome]] = []
    facts: list[Fact] = []
    for number, record in enumerate(part.records):
        if number and number % COUNT_EVERY_RECORDS == 0 and rows.changes_count >= changes_max:
            return Folded(state, outcomes, facts, rest=part._replace(records=part.records[number:]))
        try:
            outcome, record_facts = fold(rows, record)
        except UnsupportedUpgrade as error:
            return Folded(state, outcomes, facts, upgrade=error)
        outcomes.append((record, outcome))
        facts.extend(record_facts)
    if part.next_position is not None:
        rows.skip_to(part.next_position)
    return Folded(state, outcomes, facts)
