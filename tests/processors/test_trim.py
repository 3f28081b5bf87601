"""The log is trimmed below signed checkpoints only, and only while the tables stand for what goes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ledger import report
from ledger.adapters.kafka_settings import TABLES, KafkaSettings
from ledger.audit import Filter, replay
from ledger.composition import open_kafka, scratch_view
from ledger.errors import Unavailable
from ledger.table import folded_rows
from tests.adapters.kafka_world import P1, foreign_transactions
from tests.cli.conftest import Run, home, run
from tests.processors.world import ALIAS_KEY, PARTITIONS, caught_up, publish, replica, rows_of, until, worker

__all__ = ["home", "run"]


async def test_log_is_trimmed_to_a_checkpoint_and_everybody_says_where_it_begins(
    kafka_settings: KafkaSettings, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "ALIGNED_RECORDS", 5)
    key_file = tmp_path / "checkpoint.key"
    key_file.write_text((b"s" * 32).hex())
    kafka = ["--bootstrap", kafka_settings.bootstrap, "--prefix", kafka_settings.prefix]
    words = [*kafka, "--checkpoint-key-file", str(key_file), "--older-than-days", "0", "--yes", "--json"]
    async with replica(kafka_settings, tmp_path / "first") as ledger:
        await publish(ledger, 40)
        ran = await asyncio.to_thread(run, "process", "trim", *words)
        assert (ran.code, ran.json()["trimmed"]) == (3, {}), "there is no checkpoint yet"
        async with worker(kafka_settings, tmp_path / "worker") as service:
            await until(lambda: caught_up(service, ledger))
        async with foreign_transactions(kafka_settings) as producer, producer.transaction():
            await producer.send(kafka_settings.topic(TABLES), key=b"rforged", value=b"row", partition=P1)
        ran = await asyncio.to_thread(run, "process", "trim", *words)
        assert ran.code == 0, ran.err
        assert list(ran.json()["trimmed"]) == ["0"]
        assert ran.json()["kept"] == {"1": "the table does not verify (unclosed)"}
        async with worker(kafka_settings, tmp_path / "worker") as service:
            await until(lambda: caught_up(service, ledger))
        assert (await asyncio.to_thread(run, "process", "trim", *words)).code == 0
        status = (await asyncio.to_thread(run, "process", "status", "--json", *kafka)).json()
        firsts = [one["first"] for one in status["partitions"]]
        assert all(first > 0 for first in firsts)
        with scratch_view() as scratch:
            with pytest.raises(Unavailable) as refused:
                [_ async for _ in replay(ledger.log, scratch, PARTITIONS, Filter())]
            assert f"complete only from offset {firsts[0]} on" in str(refused.value)
        await publish(ledger, 10)
        await ledger.confirm()
        async with replica(kafka_settings, tmp_path / "second") as other:
            await other.confirm()
            assert rows_of(other.store) == rows_of(ledger.store)
        # Whose ledger partition 0 is, its table says to a replica that does not hold it.
        partial = await open_kafka(kafka_settings, tmp_path / "partial", ALIAS_KEY, partitions=frozenset({P1}))
        async with partial:
            assert partial.ledger_id == ledger.ledger_id
            await partial.confirm()
            assert list(folded_rows(partial.store, P1)) == list(folded_rows(ledger.store, P1))
