"""The materialize service on a real broker: tables are the rows of the log, whatever happens to the workers."""

from __future__ import annotations

import shutil
from pathlib import Path

from ledger.adapters.kafka_settings import KafkaSettings
from tests.processors.world import bootstrapped, caught_up, publish, replica, rows_of, until, worker


async def test_tables_are_the_rows_of_the_log(kafka_settings: KafkaSettings, tmp_path: Path) -> None:
    async with replica(kafka_settings, tmp_path / "replica") as ledger:
        await publish(ledger, 200)
        async with worker(kafka_settings, tmp_path / "worker") as service:
            await until(lambda: caught_up(service, ledger))
            await publish(ledger, 100)
            await until(lambda: caught_up(service, ledger))
        store, results = await bootstrapped(kafka_settings)
        assert [result.refused for result in results] == ["", ""]
        assert rows_of(store) == rows_of(ledger.store)


async def test_next_worker_goes_on_from_the_table_with_or_without_rows_of_its_own(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    async with replica(kafka_settings, tmp_path / "replica") as ledger:
        sources = []
        for lost in (True, False):
            await publish(ledger, 50)
            async with worker(kafka_settings, tmp_path / "worker") as service:
                await until(lambda: caught_up(service, ledger))
                sources.append({status.restored_from for status in service.statuses()})
            if lost:
                shutil.rmtree(tmp_path / "worker")
        await publish(ledger, 50)
        async with worker(kafka_settings, tmp_path / "worker") as service:
            await until(lambda: caught_up(service, ledger))
            sources.append({status.restored_from for status in service.statuses()})
        assert sources == [{"log"}, {"tables"}, {"local"}]
        store, results = await bootstrapped(kafka_settings)
        assert [result.refused for result in results] == ["", ""]
        assert rows_of(store) == rows_of(ledger.store)
