"""The materialize service on a real broker: tables are the rows of the log, whatever happens to the workers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ledger import report
from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_settings import CHECKPOINTS, TABLES, KafkaSettings
from ledger.adapters.kafka_transactions import KafkaTransactions
from ledger.adapters.rocks import RocksViewStore
from ledger.checkpoint import decode_checkpoint
from ledger.policy import Policy
from ledger.rows import Kind
from ledger.tables import TableCopy, WriterFenced
from ledger.turn import Partition, Position
from tests.adapters.kafka_world import P0, foreign_transactions, read_to
from tests.processors.world import (
    PARTITIONS,
    SIGNER,
    bootstrapped,
    caught_up,
    caught_up_together,
    publish,
    replica,
    rows_of,
    until,
    worker,
)


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


async def test_table_that_does_not_verify_is_made_again_from_the_log(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    async with replica(kafka_settings, tmp_path / "replica") as ledger:
        await publish(ledger, 20)
        async with worker(kafka_settings, tmp_path / "worker") as service:
            await until(lambda: caught_up(service, ledger))
        async with foreign_transactions(kafka_settings) as producer, producer.transaction():
            await producer.send(kafka_settings.topic(TABLES), key=b"rforged", value=b"row", partition=0)
            await producer.send(kafka_settings.topic(TABLES), key=b"?", value=b"row", partition=1)
        store, results = await bootstrapped(kafka_settings)
        assert [result.refused for result in results] == ["unclosed", "unreadable"]
        assert rows_of(store) == {}
        async with worker(kafka_settings, tmp_path / "worker") as service:
            await until(lambda: caught_up(service, ledger))
            assert {status.restored_from for status in service.statuses()} == {"log"}
        store, results = await bootstrapped(kafka_settings)
        assert [result.refused for result in results] == ["", ""], "what was there before does not count"
        assert rows_of(store) == rows_of(ledger.store)


async def test_worker_whose_rows_differ_from_the_table_takes_the_tables(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    async with replica(kafka_settings, tmp_path / "replica") as ledger:
        await publish(ledger, 20)
        async with worker(kafka_settings, tmp_path / "worker") as service:
            await until(lambda: caught_up(service, ledger))
        for number in PARTITIONS:
            copy = TableCopy(RocksViewStore(tmp_path / "worker" / f"partition-{number:05}"), number)
            state = copy.load()
            assert state is not None
            copy.apply(state, {Kind.LOCK + b"other": b"row"}, state.position, state.marker)
            copy.store.close()
        async with worker(kafka_settings, tmp_path / "worker") as service:
            await until(lambda: caught_up(service, ledger))
            assert {status.restored_from for status in service.statuses()} == {"tables"}


async def test_replaced_writer_writes_nothing_more(kafka_settings: KafkaSettings) -> None:
    first = await KafkaTransactions.start(kafka_settings, P0)
    await first.write({TABLES: [(b"n1", b"first")]})
    second = await KafkaTransactions.start(kafka_settings, P0)
    with pytest.raises(WriterFenced):
        await first.write({TABLES: [(b"n2", b"first")]})
    written = await second.write({TABLES: [(b"n3", b"second"), (b"n4", b"second")]})
    await first.close()
    await second.close()
    log = KafkaLog(kafka_settings, TABLES)
    tail = await log.tail({P0: Position(0)})
    records, _ = await read_to(tail, P0, Position(written[TABLES] + 1))
    assert [record.key for record in records] == [b"n1", b"n3", b"n4"]
    await log.close()


async def test_two_workers_share_the_partitions_and_one_goes_on_alone(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    async with (
        replica(kafka_settings, tmp_path / "replica") as ledger,
        worker(kafka_settings, tmp_path / "one") as one,
    ):
        await until(lambda: len(one.statuses()) == 2)
        async with worker(kafka_settings, tmp_path / "two") as two:
            await until(lambda: len(one.statuses()) == len(two.statuses()) == 1)
            await publish(ledger, 40)
            await until(lambda: caught_up_together([one, two], ledger))
        await publish(ledger, 40)
        await until(lambda: caught_up(one, ledger))
        store, results = await bootstrapped(kafka_settings)
        assert [result.refused for result in results] == ["", ""]
        assert rows_of(store) == rows_of(ledger.store)


async def test_idle_partition_is_ticked_when_something_is_due(kafka_settings: KafkaSettings, tmp_path: Path) -> None:
    policy = Policy(active_ttl_ms=1_000, commit_grace_ms=500, tombstone_ttl_ms=60_000, idempotency_ttl_ms=1_000)
    async with (
        replica(kafka_settings, tmp_path / "replica", policy=policy) as ledger,
        worker(kafka_settings, tmp_path / "worker") as service,
    ):
        await publish(ledger, 4)
        await until(lambda: service.ticks_count > 0 and living(rows_of(ledger.store)) == 0)
        await until(lambda: caught_up(service, ledger))
        store, _ = await bootstrapped(kafka_settings)
        assert living(rows_of(store)) == 0


def living(rows: Mapping[bytes, bytes]) -> int:
    """Return how many responses are not tombstones yet."""
    return sum(key[2:3] == Kind.LIVING for key in rows)


async def test_checkpoints_are_signed_and_name_the_marker(kafka_settings: KafkaSettings, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "ALIGNED_RECORDS", 5)
        async with (
            replica(kafka_settings, tmp_path / "replica") as ledger,
            worker(kafka_settings, tmp_path / "worker") as service,
        ):
            await publish(ledger, 40)
            await until(lambda: caught_up(service, ledger))
            markers = {number: one.marker for number, one in service.lanes().items()}
    log = KafkaLog(kafka_settings, CHECKPOINTS)
    tail = await log.tail({number: Position(0) for number in PARTITIONS})
    checkpoints = [decode_checkpoint(record.value) for batch in await tail.next(20) for record in batch.records]
    await log.close()
    assert checkpoints
    assert {checkpoint.public_key for checkpoint in checkpoints} == {SIGNER.public_key}
    for checkpoint in checkpoints:
        marker = markers[Partition(checkpoint.partition)]
        assert marker is not None
        assert checkpoint.marker.position <= marker.position
        assert checkpoint.marker.log_id == marker.log_id


class Everything:
    """A membership that gives every partition to everybody, and takes them for members whatever happens."""

    def __init__(self, on_assigned: Callable[[frozenset[Partition]], None]) -> None:
        self._on_assigned = on_assigned

    async def start(self) -> None:
        self._on_assigned(frozenset(PARTITIONS))

    async def confirm(self, partition: Partition, position: Position) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        pass


async def test_two_workers_that_fight_over_all_partitions_leave_tables_that_verify(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    async with (
        replica(kafka_settings, tmp_path / "replica") as ledger,
        worker(kafka_settings, tmp_path / "one", join=Everything) as one,
    ):
        async with worker(kafka_settings, tmp_path / "two", join=Everything) as two:
            for _ in range(6):
                await publish(ledger, 50)
                store, results = await bootstrapped(kafka_settings)
                assert {result.refused for result in results} <= {"", "empty"}
            await until(lambda: one.fenced_count + two.fenced_count > 0)
        # Two that fence each other may both get nowhere for long; one alone goes on.
        await until(lambda: caught_up(one, ledger))
        store, results = await bootstrapped(kafka_settings)
        assert [result.refused for result in results] == ["", ""]
        assert rows_of(store) == rows_of(ledger.store)
