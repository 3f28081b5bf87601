"""What a run leaves for the checkers: the raw records, what each replica decided, and what clients saw.

Nothing here comes from the rows except their digests, which are only compared with each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ledger.answer import Answer, Verdict
from ledger.log import Record
from ledger.turn import Partition, Position, Scope, Selector
from ledger.verdict import Outcome

Items = tuple[list[Any], list[Any]]
"""Input and output items."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One call that appends."""

    host: str
    began_s: float
    ended_s: float | None = None
    timeout_s: float
    verdict: Verdict | None = None
    failure: str = ""
    """``unknown``, ``unavailable``, ``lost`` (the replica crashed or hung), ``refused`` before anything was written."""


@dataclass(slots=True, kw_only=True)
class Sent:
    """One event as its router knows it: all attempts carry the same event ID."""

    kind: str
    scope: Scope
    partition: Partition
    event_id: str
    digest: bytes
    is_plain: bool = False
    """Nothing but fresh IDs: no verdict but acceptance can be right."""
    attempts: list[Attempt] = field(default_factory=list)
    is_abandoned: bool = False
    """Its router gave it up, and the abandonment was acknowledged or is on the disk of a replica that kept it."""

    @property
    def verdicts(self) -> list[Verdict]:
        return [attempt.verdict for attempt in self.attempts if attempt.verdict is not None]


@dataclass(slots=True, kw_only=True)
class Read:
    """One read and its answer."""

    host: str
    selector: Selector
    partition: Partition
    mode: str
    """``weak``, ``strong`` or ``history``."""
    began_s: float
    acknowledged: Position
    """Above every record of the partition of which a client knew when the read began."""
    acknowledged_before: Position
    """The same, ``max_staleness_s`` earlier for a weak read."""
    ended_s: float | None = None
    end: Position = Position(0)
    """End of the partition when the answer came."""
    answer: Answer | None = None
    failure: str = ""
    is_broken: bool = False
    """It failed with an error that says that the ledger is not whole."""
    timeout_s: float


@dataclass(slots=True, kw_only=True)
class Folded:
    """A replica's rows of one partition at one position."""

    host: str
    partition: Partition
    position: Position
    digest: str


@dataclass(slots=True, kw_only=True)
class Evidence:
    """Everything that the checkers look at."""

    partition_count: int
    alias_names: dict[bytes, str] = field(default_factory=dict)
    """Item alias → raw item ID."""
    documents: dict[bytes, Items] = field(default_factory=dict)
    """Digest of an event ID → the items it adds."""
    records: dict[Partition, list[Record]] = field(default_factory=dict)
    outcomes: dict[tuple[Partition, int], tuple[str, Outcome]] = field(default_factory=dict)
    """The first replica that judged a record, and its outcome."""
    sent: list[Sent] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    folded: list[Folded] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    """What was found while the run went on."""
