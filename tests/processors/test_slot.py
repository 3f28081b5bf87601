"""When a lane's tail counts as silent."""

from __future__ import annotations

import pytest

from ledger.turn import Partition, Position
from processors.slot import QUEUEING_MAX_S, SILENCE_MAX_S, Phase, Slot


@pytest.mark.parametrize(
    ("waited_s", "dry_after_s", "silent"),
    [
        (SILENCE_MAX_S - 1, 1.0, False),
        (SILENCE_MAX_S + 1, 1.0, True),
        (SILENCE_MAX_S + 1, -1.0, False),
        (QUEUEING_MAX_S + 1, -1.0, True),
    ],
    ids=["soon", "the tail is dry", "the tail gives to others", "the tail gives to others for ever"],
)
def test_lane_behind_its_end_waits_longer_while_the_tail_gives_to_others(
    waited_s: float, dry_after_s: float, silent: bool
) -> None:
    slot = Slot(Partition(0), phase=Phase.RUNNING, progressed_at_s=10.0)
    slot.learn_end(Position(5), 100.0)
    slot.learn_end(Position(6), 100.0 + waited_s)
    assert slot.is_silent(100.0 + waited_s, 100.0 + dry_after_s) == silent


def test_lane_at_its_end_or_not_running_is_never_silent() -> None:
    at_end = Slot(Partition(0), phase=Phase.RUNNING, end=Position(5), read_to=Position(5))
    restoring = Slot(Partition(0), phase=Phase.RESTORING, end=Position(5))
    unknown = Slot(Partition(0), phase=Phase.RUNNING)
    assert not any(slot.is_silent(1e9, 1e8) for slot in (at_end, restoring, unknown))
