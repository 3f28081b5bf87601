"""What a replica on Kafka does for its disk: a purge that fails is tried again after a pause, and harms no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

from ledger import keeper
from ledger.adapters import rocks
from ledger.adapters.kafka_copy import CopyDisk
from ledger.adapters.memory import MemoryContents, MemoryContentStore, MemoryLog, MemoryTopic
from ledger.adapters.rocks import RocksViewStore
from ledger.alias import AliasKey
from ledger.disk import DiskUse, RowsDisk
from ledger.keeper import DiskKeeper
from ledger.ledger import Ledger
from ledger.policy import Policy
from ledger.purged import Purged
from ledger.query import Reader
from ledger.replica import Replica
from ledger.turn import Position
from tests.test_keeper import P0, SCOPE, Clock, native, until

PAUSE_S = 1.0
LOOK_S = 0.05
NEVER_S = 3_600.0
EVERYTHING = (b"", b"\xff")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A replica and its disk."""

    ledger: Ledger
    view: RocksViewStore
    rows: RowsDisk
    contents: Purged
    use: DiskUse


@asynccontextmanager
async def replica(path: Path) -> AsyncIterator[Kept]:
    """Give a replica that has folded the erasure of a principal whose turn is in a table file."""
    view, copies = RocksViewStore(path / "view"), RocksViewStore(path / "content")
    contents, use, clock = Purged(copies, P0, Position(0)), DiskUse(), Clock()
    rows: list[RowsDisk] = []

    def keeping(_: Reader, folded: Replica) -> DiskKeeper:
        rows.append(RowsDisk(view, folded))
        copy = CopyDisk(copies, lambda: {P0: (contents, Position(9))})
        return DiskKeeper(rows[0], copy, use, stop_purging=view.stop_purging)

    async def close() -> None:
        copies.close()

    ledger = Ledger(
        MemoryLog(MemoryTopic(1, log_id="log"), now_ms=clock),
        MemoryContentStore(MemoryContents(), now_ms=clock),
        view,
        AliasKey(bytes(32)),
        now_ms=clock,
        keeper=keeping,
        on_close=close,
    )
    await ledger.start(format_policy=Policy())
    async with ledger:
        await ledger.committer.commit(native(clock, "resp_1"))
        view.flush()
        yield Kept(ledger=ledger, view=view, rows=rows[0], contents=contents, use=use)


async def erase(kept: Kept) -> None:
    await kept.ledger.conversations.erase_principal(SCOPE, event_id="erasure")
    async with asyncio.timeout(10.0):
        while not kept.rows.is_due():
            # Another worker's, on Kafka.
            await kept.ledger.reader.tick_due()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "KEEP_INTERVAL_S", LOOK_S)
    monkeypatch.setattr(keeper, "ORDERED_PURGE_INTERVAL_S", PAUSE_S)
    monkeypatch.setattr(rocks, "REMOVAL_WAIT_S", LOOK_S)


async def test_purge_that_fails_is_tried_again_after_a_pause_and_holds_up_neither_contents_nor_digests(
    tmp_path: Path,
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with replica(tmp_path) as kept:
            scan = kept.view.scan(*EVERYTHING)
            kept.contents.erased()
            await erase(kept)
            await until(lambda: not kept.contents.is_due)
            await until(lambda: not kept.use.is_purging)
            for _ in range(5):
                await asyncio.sleep(PAUSE_S / 10)
                assert not kept.use.is_purge_due, "a digest need not wait for what is tried again later"
            failures = [log["message"] for log in logs if log["event"] == "keeping_interrupted"]
            assert len(failures) == 1
            assert "a scan that is open keeps" in failures[0]
            assert kept.rows.is_due()
            assert len(list(scan)) > 0
            await until(lambda: not kept.rows.is_due())


async def test_replica_that_is_closed_while_its_disk_is_purged_stops_the_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocks, "REMOVAL_WAIT_S", NEVER_S)
    with structlog.testing.capture_logs() as logs:
        async with replica(tmp_path) as kept:
            scan = kept.view.scan(*EVERYTHING)
            await erase(kept)
            # It waits for the scan, until it is stopped.
            await until(lambda: kept.use.is_purging)
            async with asyncio.timeout(10.0):
                await kept.ledger.close()
            del scan
    assert [log for log in logs if log["event"] == "keeping_interrupted"] == []
    store = RocksViewStore(tmp_path / "view")
    assert Purged(store, P0, kept.ledger.replica.rows(P0).position).is_due, "at the next start"
    store.close()
