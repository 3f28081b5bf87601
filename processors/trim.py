"""Retention of the log itself: what may be dropped, because a signed checkpoint and a table that verifies stand for it.

A partition is trimmed to the position of a checkpoint and no further, so that what is left begins where a trusted
statement says which records were before it and what came of them. From then on a new replica needs the table, and a
replay begins at that position.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger.bootstrap import bootstrap
from ledger.checkpoint import BadSignature, Checkpoint, decode_checkpoint
from ledger.errors import UndecodableRecord
from ledger.log import BoundedLog, EventLog
from ledger.reading import read
from ledger.turn import Partition, Position
from ledger.view import ViewStore

ASK_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimPlan:
    """What may be removed of one partition."""

    partition: Partition
    first: Position
    """Where the log begins now."""
    before: Position
    """Where it may begin; ``first`` when nothing may be removed."""
    reason: str
    """Why nothing may be removed, or an empty string."""


async def plan_trim(
    log: BoundedLog,
    tables: EventLog,
    checkpoints: EventLog,
    partition: Partition,
    *,
    before_ms: int,
    public_key: bytes,
    scratch: ViewStore,
) -> TrimPlan:
    """Return what of a partition lies below a trusted checkpoint of before ``before_ms`` (partition clock).

    ``scratch`` is space that the table is read into, to verify it. Raises ``Unavailable``.
    """
    first = await log.first(partition, timeout_s=ASK_TIMEOUT_S)

    def nothing(reason: str) -> TrimPlan:
        return TrimPlan(partition=partition, first=first, before=first, reason=reason)

    checkpoint = await _last_checkpoint(checkpoints, partition, before_ms, public_key)
    if checkpoint is None:
        return nothing("no signed checkpoint is old enough")
    position = Position(checkpoint.marker.position)
    if position <= first:
        return nothing("nothing lies below the checkpoint")
    if checkpoint.marker.log_id != (await log.manifest(timeout_s=ASK_TIMEOUT_S)).log_id:
        return nothing("the checkpoint is of another log")
    (result,) = await bootstrap(scratch, log, tables, [partition])
    if result.marker is None:
        return nothing(f"the table does not verify ({result.refused})")
    if result.marker.position < position:
        return nothing("the table does not reach the checkpoint")
    return TrimPlan(partition=partition, first=first, before=position, reason="")


async def _last_checkpoint(
    checkpoints: EventLog, partition: Partition, before_ms: int, public_key: bytes
) -> Checkpoint | None:
    """Return the newest trusted checkpoint whose clock is not after ``before_ms``."""
    end = await checkpoints.end(partition, timeout_s=ASK_TIMEOUT_S)
    found: Checkpoint | None = None
    async for record in read(checkpoints, partition, Position(0), end):
        checkpoint = _trusted(record.value, partition, public_key)
        if checkpoint is not None and checkpoint.marker.clock_ms <= before_ms:
            found = checkpoint
    return found


def _trusted(value: bytes | None, partition: Partition, public_key: bytes) -> Checkpoint | None:
    try:
        checkpoint = decode_checkpoint(value)
    except (UndecodableRecord, BadSignature):
        return None
    return checkpoint if (checkpoint.partition, checkpoint.public_key) == (partition, public_key) else None
