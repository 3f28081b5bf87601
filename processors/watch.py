"""Watch: checkpoints are compared as they come, and the first difference is an alarm.

Two checkpoints of one partition at one position say the same, a position never goes back, and every signature is that
of a key that is trusted. Anything else means that two workers folded different things, or that somebody else wrote.
"""

from __future__ import annotations

import structlog

from ledger.checkpoint import BadSignature, Checkpoint, decode_checkpoint
from ledger.errors import UndecodableRecord
from ledger.turn import Partition

logger = structlog.get_logger("processors.watch")

REMEMBERED_MAX = 64
"""Checkpoints of one partition that later ones are compared with: a worker that took over writes at most a few
positions again."""


class Watcher:
    """Compares checkpoints, and counts what differs."""

    def __init__(self, public_key: bytes) -> None:
        """``public_key`` is the one key that is trusted."""
        self._public_key = public_key
        self._seen: dict[Partition, list[Checkpoint]] = {}
        self.checkpoints_count = 0
        self.alarms_count = 0
        self.last_alarm = ""

    def take(self, partition: Partition, value: bytes | None) -> None:
        """Compare one checkpoint with those before it."""
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

    def last(self, partition: Partition) -> Checkpoint | None:
        """Return the newest checkpoint of a partition that agrees with those before it."""
        seen = self._seen.get(partition)
        return seen[-1] if seen else None

    def _alarm(self, partition: Partition, message: str) -> None:
        self.alarms_count += 1
        self.last_alarm = f"partition {partition}: {message}"
        logger.error("checkpoints_differ", partition=partition, message=message)


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
