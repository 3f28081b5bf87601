"""Which checkpoints a lane publishes: at places where replicas stop too, so that what they report can be compared, and
often enough for whoever trims or verifies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ledger.checkpoint import Signer
from ledger.report import is_crossing
from ledger.tables import Marker
from ledger.turn import Partition

CHECKPOINT_INTERVAL_S = 60.0
"""Between the last checkpoint and one that no aligned place asks for."""


class Checkpoints:
    """The checkpoints of one partition."""

    def __init__(self, signer: Signer, partition: Partition, now_ms: Callable[[], int]) -> None:
        self._signer = signer
        self._partition = partition
        self._now_ms = now_ms
        self._position = -1
        """Of the last one."""
        self._due_s = time.monotonic() + CHECKPOINT_INTERVAL_S

    def due(self, before: Marker | None, marker: Marker) -> list[tuple[bytes, bytes | None]]:
        """Return the checkpoint that goes with a marker: of the one before it, if an aligned place lies between them,
        since only the record behind such a place tells that it is one; or its own, if there was none for long.
        """
        if before is not None and is_crossing(before.anchor_offset, marker.anchor_offset):
            return self._signed(before)
        return self.timed(marker)

    def timed(self, marker: Marker) -> list[tuple[bytes, bytes | None]]:
        """Return the checkpoint of a partition's last marker, if there was none for long."""
        if not marker.position or time.monotonic() < self._due_s:
            return []
        return self._signed(marker)

    def written(self, checkpoint: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Note what ``due`` or ``timed`` returned once its transaction is written: one that failed comes again."""
        for key, _ in checkpoint:
            self._position = int.from_bytes(key, "big")
            self._due_s = time.monotonic() + CHECKPOINT_INTERVAL_S

    def _signed(self, marker: Marker) -> list[tuple[bytes, bytes | None]]:
        if marker.position == self._position:
            return []
        return [(marker.position.to_bytes(8, "big"), self._signer.sign(self._partition, marker, self._now_ms()))]
