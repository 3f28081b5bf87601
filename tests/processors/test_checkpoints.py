"""Which checkpoints a lane publishes: what a failed transaction did not write comes again."""

from __future__ import annotations

import pytest

from ledger.checkpoint import Signer
from ledger.report import is_crossing
from ledger.tables import Marker
from ledger.turn import Partition
from processors import checkpoints
from processors.checkpoints import Checkpoints

ALIGNED = next(offset for offset in range(1, 1 << 24) if is_crossing(offset - 1, offset))
"""The first record behind an aligned place."""


def marker(anchor_offset: int) -> Marker:
    return Marker(
        ledger_id=b"ledger of tests!",
        log_id="log",
        position=anchor_offset + 1,
        clock_ms=100,
        chain=b"c" * 32,
        chain_before=b"b" * 32,
        anchor_offset=anchor_offset,
        rows_digest=b"d" * 32,
        rows_count=3,
    )


def test_checkpoint_of_an_aligned_place_is_due_until_it_is_written_and_then_no_more() -> None:
    published = Checkpoints(Signer(b"s" * 32), Partition(0), lambda: 5)
    before, after = marker(ALIGNED - 1), marker(ALIGNED)
    first = published.due(before, after)
    assert [key for key, _ in first] == [ALIGNED.to_bytes(8, "big")]
    # The transaction failed.
    assert published.due(before, after) == first
    published.written(first)
    assert published.due(before, after) == []


def test_checkpoint_after_a_long_time_is_due_until_it_is_written_and_then_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_INTERVAL_S", 0.0)
    published = Checkpoints(Signer(b"s" * 32), Partition(0), lambda: 5)
    (first,) = published.timed(marker(7))
    assert published.timed(marker(7)) == [first]
    monkeypatch.setattr(checkpoints, "CHECKPOINT_INTERVAL_S", 60.0)
    published.written([first])
    assert published.timed(marker(8)) == []
