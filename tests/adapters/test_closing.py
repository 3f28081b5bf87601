"""A disk that refuses while a ledger is opened or closed: the first error is to be seen, and nothing stays locked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import structlog

from ledger.adapters.kafka_settings import KafkaSettings
from ledger.adapters.rocks import RocksViewStore
from ledger.alias import AliasKey
from ledger.closing import close_each
from ledger.composition import open_embedded, open_kafka
from ledger.errors import StoreFailed, Unavailable
from ledger.table import partition_prefix
from tests.adapters.kafka_world import P0, P1

ROWS = 20_000


def damage(path: Path) -> None:
    """Fill a store of partition 0 with rows, and damage a block of them."""
    store = RocksViewStore(path)
    prefix = partition_prefix(P0)
    store.write({prefix + b"~%06d" % number: bytes([number % 251]) * 100 for number in range(ROWS)})
    store.write({partition_prefix(P1) + b"~": b"row"})
    store.flush()
    store.close()
    table = max(path.glob("*.sst"), key=lambda found: found.stat().st_size)
    with table.open("r+b") as file:
        file.seek(table.stat().st_size // 2)
        file.write(b"\xff" * 4_096)


def assert_free(*paths: Path) -> None:
    for path in paths:
        RocksViewStore(path, create=False).close()


async def test_replica_that_cannot_purge_what_it_gives_up_says_so_and_leaves_both_directories_free(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    damage(tmp_path / "view")
    with structlog.testing.capture_logs() as logs, pytest.raises(StoreFailed, match="were not rewritten"):
        await open_kafka(kafka_settings, tmp_path, AliasKey(bytes(32)), partitions=frozenset({P0}))
    assert [log["event"] for log in logs] == ["not_closed"], "RocksDB repeats the error of the purge"
    assert_free(tmp_path / "view", tmp_path / "content")


async def test_ledger_whose_view_cannot_be_closed_leaves_its_log_free(tmp_path: Path) -> None:
    (tmp_path / "view").mkdir()
    damage(tmp_path / "view")
    ledger = await open_embedded(tmp_path)
    assert isinstance(ledger.store, RocksViewStore)
    with pytest.raises(StoreFailed, match="were not rewritten"):
        await asyncio.to_thread(ledger.store.purge)
    with pytest.raises(StoreFailed, match="closing"):
        await ledger.close()
    assert_free(tmp_path / "view", tmp_path / "log")


async def test_each_is_closed_in_order_and_the_first_error_is_raised() -> None:
    closed: list[int] = []

    async def close(number: int, error: BaseException | None) -> None:
        closed.append(number)
        if error is not None:
            raise error

    failures: list[BaseException | None] = [None, StoreFailed("first"), asyncio.CancelledError(), Unavailable("a", "b")]
    with structlog.testing.capture_logs() as logs, pytest.raises(StoreFailed, match="first"):
        await close_each(*(lambda n=number, e=error: close(n, e) for number, error in enumerate(failures)))
    assert closed == [0, 1, 2, 3]
    assert [log["event"] for log in logs] == ["not_closed", "not_closed"]
