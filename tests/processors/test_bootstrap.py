"""A replica that starts from tables, on a real broker: the same rows, without the records that they were made from."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import structlog

from ledger.adapters.kafka_settings import TABLES, KafkaSettings
from ledger.adapters.rocks import RocksViewStore
from ledger.answer import Found
from ledger.errors import Unavailable
from ledger.turn import Selector, SelectorKind
from tests.adapters.kafka_world import P0, P1, foreign_transactions, trim
from tests.cli.conftest import Ran, Run, home, run
from tests.processors.world import (
    PARTITIONS,
    caught_up,
    publish,
    replica,
    rows_of,
    scope,
    turn,
    until,
    worker,
)

__all__ = ["home", "run"]


async def materialized(settings: KafkaSettings, directory: Path) -> dict[bytes, bytes]:
    """Publish, make tables of it, publish a little more; return the rows."""
    async with replica(settings, directory / "first") as ledger:
        await ledger.committer.commit(turn("a", text="hello"))
        await publish(ledger, 60)
        async with worker(settings, directory / "worker") as service:
            await until(lambda: caught_up(service, ledger))
        await ledger.committer.commit(turn("b", previous="resp_a", text="again"))
        await publish(ledger, 10)
        await ledger.confirm()
        return rows_of(ledger.store)


async def test_new_replica_needs_no_record_below_the_markers(kafka_settings: KafkaSettings, tmp_path: Path) -> None:
    rows = await materialized(kafka_settings, tmp_path)
    for partition in PARTITIONS:
        await trim(kafka_settings, partition, 20)
    with structlog.testing.capture_logs() as logs:
        async with replica(kafka_settings, tmp_path / "second") as ledger:
            await ledger.confirm()
            assert rows_of(ledger.store) == rows
            selector = Selector(scope=scope(), kind=SelectorKind.RESPONSE, id="resp_b")
            found = await ledger.reader.load(selector, history=True)
            assert isinstance(found, Found)
            assert found.history is not None
            assert [entry.input for entry in found.history.entries] == [
                [{"role": "user", "content": "hello"}],
                [{"role": "user", "content": "again"}],
            ]
            assert (await ledger.committer.commit(turn("c", previous="resp_b", text="more"))).accepted
    assert {log["partition"] for log in logs if log["event"] == "table_loaded"} == set(PARTITIONS)
    async with replica(kafka_settings, tmp_path / "second") as ledger:
        await ledger.confirm()


async def test_replica_says_why_it_folds_the_log_instead(kafka_settings: KafkaSettings, tmp_path: Path) -> None:
    rows = await materialized(kafka_settings, tmp_path)
    async with foreign_transactions(kafka_settings) as producer, producer.transaction():
        await producer.send(kafka_settings.topic(TABLES), key=b"rforged", value=b"row", partition=P1)
    with structlog.testing.capture_logs() as logs:
        async with replica(kafka_settings, tmp_path / "second") as ledger:
            await ledger.confirm()
            assert rows_of(ledger.store) == rows
    refused = [(log["partition"], log["reason"]) for log in logs if log["event"] == "table_refused"]
    assert refused == [(P1, "unclosed")]
    assert [log["partition"] for log in logs if log["event"] == "table_loaded"] == [P0]


async def test_table_that_does_not_verify_is_not_served_when_the_log_was_trimmed(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    await materialized(kafka_settings, tmp_path)
    await trim(kafka_settings, P1, 5)
    async with foreign_transactions(kafka_settings) as producer, producer.transaction():
        await producer.send(kafka_settings.topic(TABLES), key=b"rforged", value=b"row", partition=P1)
    with pytest.raises(Unavailable) as refused:
        async with replica(kafka_settings, tmp_path / "second"):
            pass
    assert refused.value.reason == "log_gap"


async def test_view_is_rebuilt_from_tables_on_request(kafka_settings: KafkaSettings, tmp_path: Path, run: Run) -> None:
    await materialized(kafka_settings, tmp_path)
    await trim(kafka_settings, P0, 5)
    directory = str(tmp_path / "first")
    words = ["--directory", directory, "--bootstrap", kafka_settings.bootstrap, "--prefix", kafka_settings.prefix]
    before = rows_at(tmp_path)
    assert run_in_thread(run, "view", "rebuild", *words).code == 4
    ran = run_in_thread(run, "view", "rebuild", "--from", "tables", "--json", *words)
    assert (ran.code, ran.json()["refused"]) == (0, {}), ran.err
    assert rows_at(tmp_path) == before


def rows_at(directory: Path) -> dict[bytes, bytes]:
    store = RocksViewStore(directory / "first" / "view", create=False)
    try:
        return rows_of(store)
    finally:
        store.close()


def run_in_thread(run: Run, *words: str) -> Ran:
    """Run a command that starts an event loop of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run, *words).result()
