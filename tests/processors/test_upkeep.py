"""Upkeep of lanes: erased rows leave the disk soon, and no lane is rewritten again and again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ledger.adapters.kafka_settings import KafkaSettings
from processors import upkeep
from tests.adapters.kafka_world import P0
from tests.processors.world import caught_up, publish, replica, until, whole_worker

PAUSE_S = 3.0
LOOKS_S = 1.0
"""Some looks at each lane lie within it."""


async def test_lane_is_purged_at_once_after_a_while_and_then_not_before_a_pause(
    kafka_settings: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "PURGE_PAUSE_S", PAUSE_S)
    async with (
        replica(kafka_settings, tmp_path / "replica") as ledger,
        whole_worker(kafka_settings, tmp_path / "worker", sweep_interval_s=LOOKS_S / 5) as parts,
    ):
        await publish(ledger, 20)
        await until(lambda: caught_up(parts.materializer, ledger))
        purged = parts.materializer.lanes()[P0].purged
        # What it was opened with may be purged first.
        await until(lambda: not purged.is_due)
        await asyncio.sleep(PAUSE_S)
        purged.erased()
        await until(lambda: not purged.is_due, timeout_s=LOOKS_S * 2)
        purged.erased()
        await asyncio.sleep(LOOKS_S)
        assert purged.is_due, "it was rewritten just now"
        await until(lambda: not purged.is_due)
