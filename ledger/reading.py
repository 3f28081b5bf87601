"""Reading a topic from a position to its end as it was known, for everybody who reads one on the side.

What differs between readers are three policies: what a gap means (``Gap``), what silence below the end means
(``Silence``), and how many records one may take before the event loop runs.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator

from ledger.errors import Unavailable
from ledger.log import EventLog, LogGap, Record
from ledger.turn import Partition, Position

WAIT_S = 0.5
"""One wait for records that are known to be there."""
SILENCE_MAX_S = 10.0
"""How long nothing may come below the known end."""
RECORDS_AT_ONCE = 64
"""Records given before the event loop runs, so that a reader does not hold up the process's others."""


class Gap(enum.Enum):
    """What it means that records from the start on are not there any more."""

    REFUSED = enum.auto()
    """The reader needs all of them: ``Unavailable('log_gap')``."""
    SKIPPED = enum.auto()
    """Whatever was removed says nothing any more: reading goes on where the topic begins now."""


class Silence(enum.Enum):
    """What it means that nothing comes although the end was not reached: often an open transaction."""

    REFUSED = enum.auto()
    """``Unavailable('lagging')``."""
    ENDS = enum.auto()
    """What was read is good enough."""
    WAITED_FOR = enum.auto()
    """The caller has a deadline of its own."""


async def read(
    topic: EventLog,
    partition: Partition,
    start: Position,
    end: Position,
    *,
    gap: Gap = Gap.REFUSED,
    silence: Silence = Silence.REFUSED,
    silence_max_s: float = SILENCE_MAX_S,
    at_once: int = RECORDS_AT_ONCE,
) -> AsyncGenerator[Record, None]:
    """Yield the records of a partition with ``start <= offset < end``.

    Raises ``Unavailable``: ``log_gap`` and ``lagging`` as the policies say, ``log_diverged`` when the topic ends below
    the start. Close it (``aclosing``) when it is left early.
    """
    position, given = start, 0
    while position < end:
        tail = await topic.tail({partition: position})
        quiet_s = 0.0
        try:
            while position < end:
                batches = await tail.next(WAIT_S)
                quiet_s = 0.0 if batches else quiet_s + WAIT_S
                if quiet_s >= silence_max_s and _is_given_up(silence, partition, position, end):
                    return
                for batch in batches:
                    for record in batch.records:
                        if record.offset >= end:
                            return
                        yield record
                        given += 1
                        if given % at_once == 0:
                            await asyncio.sleep(0)
                    position = batch.next_position
        except LogGap as found:
            position = _after(found, position, gap)
        finally:
            await tail.close()


def _is_given_up(silence: Silence, partition: Partition, position: Position, end: Position) -> bool:
    if silence is Silence.REFUSED:
        raise Unavailable("lagging", f"partition {partition} gives nothing from {position} on, its end is {end}")
    return silence is Silence.ENDS


def _after(gap: LogGap, position: Position, policy: Gap) -> Position:
    """Return where to go on behind a gap. Raises ``Unavailable``."""
    if gap.first <= position:
        message = f"partition {gap.partition} ends at {gap.end}, below {position}: it lost records"
        raise Unavailable("log_diverged", message) from gap
    if policy is Gap.REFUSED:
        message = f"partition {gap.partition} is complete only from offset {gap.first} on; {position} was asked for"
        raise Unavailable("log_gap", message) from gap
    return gap.first
