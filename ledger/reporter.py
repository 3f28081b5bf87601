"""Reporting: a process says on the topic ``reports`` what it holds of each partition, so that others can compare it.

Place in the flow: log → fold → view → **report** → watch. A report is made at aligned places, when a partition went
idle, and at least once per interval. Nothing waits for a report: what cannot be written now is written later.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from ledger.errors import InvalidInput, StoreFailed, Unavailable
from ledger.report import (
    NAME_CHARACTERS_MAX,
    REPORTER_ID_BYTES,
    Report,
    ReporterKind,
    RowsStatement,
    encode_report,
)
from ledger.rows import MetaRow
from ledger.turn import Partition, Position

logger = structlog.get_logger("ledger.reporter")

LOOK_INTERVAL_S = 1.0
"""Between two looks at all partitions: one that has not moved in between is idle."""
PAUSE_S = 10.0
"""At least between two reports on one partition: what came after a digest may wait for this."""
RETRY_PAUSE_S = 5.0
"""Before reports are written again after a failure."""
WRITE_TIMEOUT_S = 5.0
REPORTER_FILE = "reporter.id"
"""In a process's directory: hexadecimal digits of its reporter ID."""


class Reports(Protocol):
    """Where reports go."""

    async def write(self, partition: Partition, key: bytes, value: bytes | None, *, timeout_s: float) -> None:
        """Write the last word of a reporter on a partition; None: it holds the partition no more.

        Return when it is durable. Raises ``Unavailable``; the record may have been written all the same.
        """
        ...

    async def close(self) -> None: ...


class Standing(NamedTuple):
    """Where one partition is."""

    meta: MetaRow
    log_id: str
    rows: RowsStatement | None
    """If they are known at this place."""


class Holding(NamedTuple):
    """What a process has of one partition now."""

    standing: Standing
    purged: Position
    purged_content: Position | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who reports."""

    id: bytes
    kind: ReporterKind
    name: str
    interval_s: float


def reporter_id_in(directory: Path) -> bytes:
    """Return the reporter ID that is kept in a directory, made when there is none. Raises ``InvalidInput``."""
    path = directory / REPORTER_FILE
    try:
        if not path.exists():
            directory.mkdir(parents=True, exist_ok=True)
            made = path.with_suffix(".new")
            made.write_text(secrets.token_hex(REPORTER_ID_BYTES) + "\n")
            # A crash leaves a whole ID or none.
            made.rename(path)
        found = bytes.fromhex(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput("directory", f"{path} cannot be used as a reporter ID: {error}; remove it") from None
    if len(found) != REPORTER_ID_BYTES:
        raise InvalidInput("directory", f"{path} does not hold {REPORTER_ID_BYTES} bytes; remove it")
    return found


def name_or_host(name: str | None) -> str:
    """Return the name of a reporter: the given one, or the host's. Raises ``InvalidInput``."""
    if name is None:
        return socket.gethostname()[:NAME_CHARACTERS_MAX] or "unnamed"
    if not 1 <= len(name) <= NAME_CHARACTERS_MAX:
        raise InvalidInput("reporter_name", f"must have 1 to {NAME_CHARACTERS_MAX} characters")
    return name


class _Said(NamedTuple):
    """What of a report makes another one worth while."""

    position: int
    purged: int
    purged_content: int | None


@dataclass(slots=True)
class _Told:
    """What was told of one partition, and what is to be told."""

    at_s: float = float("-inf")
    said: _Said | None = None
    seen: Position | None = None
    """At the look before."""
    aligned: Standing | None = None
    """The last aligned place that was not told yet."""
    digests: list[Standing] = field(default_factory=list)
    """Places with their rows, which are told whatever was told before."""


class Reporter:
    """Writes the reports of one process."""

    def __init__(
        self,
        identity: Identity,
        reports: Reports,
        holdings: Callable[[], Mapping[Partition, Holding]],
        *,
        now_ms: Callable[[], int],
        on_idle: Callable[[Partition], None] | None = None,
    ) -> None:
        """``holdings`` tells what the process has now; ``on_idle`` gets each partition that does not move, at every
        look."""
        self.identity = identity
        self._reports = reports
        self._holdings = holdings
        self._now_ms = now_ms
        self._on_idle = on_idle
        self._told: dict[Partition, _Told] = {}
        self._given_up: set[Partition] = set()
        """Partitions whose last report is to be withdrawn."""
        self._task: asyncio.Task[None] | None = None
        self._problem = ""

    async def start(self) -> None:
        """Start reporting."""
        self._task = asyncio.create_task(self._report_forever())
        self._task.add_done_callback(_tell_defect)

    async def close(self) -> None:
        """Stop reporting. What was said stays: the disk still holds what it held."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._reports.close()

    def aligned(self, partition: Partition, standing: Standing) -> None:
        """A partition is at an aligned place."""
        self._told.setdefault(partition, _Told()).aligned = standing

    def digested(self, partition: Partition, standing: Standing) -> None:
        """The rows at a place, which the partition has left meanwhile, are known."""
        self._told.setdefault(partition, _Told()).digests.append(standing)

    def give_up(self, partitions: Iterable[Partition]) -> None:
        """Partitions are held no more, and perhaps never were; say so as soon as that can be written."""
        self._given_up.update(partitions)

    async def withdraw(self, partition: Partition) -> None:
        """Say that this process holds a partition no more. Raises ``Unavailable``."""
        await self._reports.write(partition, self.identity.id, None, timeout_s=WRITE_TIMEOUT_S)
        self._told.pop(partition, None)

    async def _give_up(self, partition: Partition) -> None:
        await self.withdraw(partition)
        self._given_up.discard(partition)

    async def _report_forever(self) -> None:
        while True:
            pause_s = LOOK_INTERVAL_S
            try:
                await self._look()
            except (Unavailable, StoreFailed) as error:
                pause_s = RETRY_PAUSE_S
                self._say(error)
            else:
                self._say(None)
            await asyncio.sleep(pause_s)

    def _say(self, error: Unavailable | StoreFailed | None) -> None:
        """Log the first of many failures, and that they ended."""
        reason = "" if error is None else getattr(error, "reason", "storage")
        if reason == self._problem:
            return
        self._problem = reason
        if error is None:
            logger.info("reporting_again")
        elif reason == "manifest":
            message = f"{error}; this process serves on, and nobody can compare it: run 'turnledger topics create'"
            logger.warning("reports_unavailable", reason=reason, message=message)
        else:
            logger.warning("reports_unavailable", reason=reason, message=str(error))

    async def _look(self) -> None:
        """Write every report that is due."""
        now_s = asyncio.get_running_loop().time()
        writing = [self._give_up(partition) for partition in sorted(self._given_up)]
        for partition, holding in self._holdings().items():
            told = self._told.setdefault(partition, _Told())
            position = Position(holding.standing.meta.position)
            is_idle, told.seen = position == told.seen, position
            if is_idle and self._on_idle is not None:
                self._on_idle(partition)
            standing = self._due(told, holding, now_s, is_idle=is_idle)
            if standing is not None:
                writing.append(self._write(partition, told, standing, holding, now_s))
        for failure in await asyncio.gather(*writing, return_exceptions=True):
            if failure is not None:
                raise failure

    def _due(self, told: _Told, holding: Holding, now_s: float, *, is_idle: bool) -> Standing | None:
        """Return what is to be told of a partition now."""
        if told.digests:
            return told.digests[0]
        if now_s - told.at_s >= self.identity.interval_s:
            return told.aligned or holding.standing
        if now_s - told.at_s < PAUSE_S:
            return None
        if told.aligned is not None:
            return told.aligned
        return holding.standing if is_idle and _said(holding.standing, holding) != told.said else None

    async def _write(
        self, partition: Partition, told: _Told, standing: Standing, holding: Holding, now_s: float
    ) -> None:
        meta, identity = standing.meta, self.identity
        report = Report(
            kind=identity.kind,
            name=identity.name,
            partition=partition,
            ledger_id=meta.ledger_id,
            log_id=standing.log_id,
            position=meta.position,
            anchor_offset=meta.anchor_offset,
            chain=meta.chain,
            clock_ms=meta.clock_ms,
            rows=standing.rows,
            purged_position=holding.purged,
            purged_content_position=holding.purged_content,
            interval_ms=max(1, int(identity.interval_s * 1000)),
            written_at_ms=self._now_ms(),
        )
        await self._reports.write(partition, identity.id, encode_report(report), timeout_s=WRITE_TIMEOUT_S)
        told.at_s, told.said = now_s, _said(standing, holding)
        if told.digests and told.digests[0] is standing:
            told.digests.pop(0)
        if told.aligned is standing:
            told.aligned = None


def _tell_defect(task: asyncio.Task[None]) -> None:
    """A task that ends by itself has met a defect of ours: this process is silent from here on."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("reporter_failed", exc_info=error)


def _said(standing: Standing, holding: Holding) -> _Said:
    return _Said(standing.meta.position, holding.purged, holding.purged_content)
