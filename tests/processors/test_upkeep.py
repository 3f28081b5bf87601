"""Upkeep of lanes: erased rows leave the disk soon, and no lane is rewritten again and again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from ledger.adapters import rocks
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.adapters.memory import MemoryContents, MemoryContentStore, MemoryLog, MemoryTopic
from ledger.adapters.rocks import RocksViewStore
from processors import upkeep
from processors.erase import Eraser
from processors.lane import Lane
from processors.upkeep import Upkeep
from tests.adapters.kafka_world import P0
from tests.processors.test_closing import FORMATTED
from tests.processors.test_lane import World
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


NEVER_S = 3_600.0


@asynccontextmanager
async def looked_after(path: Path) -> AsyncIterator[tuple[Lane, RocksViewStore]]:
    """Give a lane of one formatted partition with rows that are due for a purge, while it is looked after."""
    store = RocksViewStore(path)
    world = World([FORMATTED], [])
    lane = Lane(world.parts(lambda _: store), P0)
    await lane.restore()
    (batch,) = await (await world.log.tail({P0: lane.start})).next(NEVER_S)
    await lane.fold([batch])
    store.flush()
    lane.purged.erased()
    topic = MemoryLog(MemoryTopic(1, log_id="content"), now_ms=lambda: 0)
    eraser = Eraser(MemoryContentStore(MemoryContents(), now_ms=lambda: 0))
    kept = Upkeep(
        lambda: {P0: lane}, eraser, contents=topic, tables=world.tables, roll_interval_s=NEVER_S, sweep_interval_s=0.1
    )
    task = asyncio.create_task(kept.run())
    try:
        yield lane, store
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await lane.close()


def said(logs: Sequence[MutableMapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the level and the event of what upkeep has said."""
    mine = ("upkeep_interrupted", "purge_stopped")
    return [(log["log_level"], log["event"]) for log in logs if log["event"] in mine]


async def test_purge_that_a_scan_kept_from_being_complete_is_a_warning_and_tried_again_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocks, "REMOVAL_WAIT_S", 0.1)
    monkeypatch.setattr(upkeep, "PURGE_PAUSE_S", LOOKS_S)
    with structlog.testing.capture_logs() as logs:
        async with looked_after(tmp_path) as (lane, store):
            scan = store.scan(b"", b"\xff")
            await until(lambda: len(said(logs)) > 0)
            assert "purge again" in next(log["message"] for log in logs if log["event"] == "upkeep_interrupted")
            assert lane.purged.is_due
            await asyncio.sleep(LOOKS_S / 2)
            assert said(logs) == [("warning", "upkeep_interrupted")], "not before the pause"
            assert len(list(scan)) > 0
            await until(lambda: not lane.purged.is_due)


async def test_purge_that_is_stopped_since_its_lane_is_closed_is_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocks, "REMOVAL_WAIT_S", NEVER_S)
    with structlog.testing.capture_logs() as logs:
        async with looked_after(tmp_path) as (lane, store):
            scan = store.scan(b"", b"\xff")
            # It waits for the scan.
            await until(lambda: not lane.purged.is_due)
            await lane.close()
            await until(lambda: len(said(logs)) > 0)
            assert said(logs)[0] == ("info", "purge_stopped")
            del scan
    assert lane.purged.is_due
