"""What the parts can do without the ledger, measured in the same run: the figures to compare with."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from rocksdict import Options, Rdict, WriteBatch

from benchmarks.measure import Figure, figure, timed
from ledger import codec
from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_settings import TABLES, TURNS, KafkaSettings
from ledger.adapters.kafka_transactions import KafkaTransactions
from ledger.adapters.rocks import RocksViewStore
from ledger.event import TurnCompleted
from ledger.log import RecordBatch
from ledger.turn import Partition, Position

VALUE = b"x" * 220
"""As large as a native turn's event."""
PLAIN_BATCH_RECORDS = 500
"""Records of one transaction, as a worker of the processors has them."""


async def raw_kafka(settings: KafkaSettings, *, count: int) -> list[Figure]:
    """Append with an idempotent aiokafka producer and wait until an own consumer has the record."""
    topic = settings.topic(TURNS)
    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap, acks="all", enable_idempotence=True, linger_ms=0)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.bootstrap, auto_offset_reset="none", isolation_level="read_committed"
    )
    await producer.start()
    await consumer.start()
    partitions = [TopicPartition(topic, number) for number in range(16)]
    consumer.assign(partitions)
    await consumer.seek_to_end(*partitions)
    waiting: dict[tuple[int, int], asyncio.Future[None]] = {}

    async def follow() -> None:
        while True:
            for partition, records in (await consumer.getmany(timeout_ms=500)).items():
                for record in records:
                    key = (partition.partition, record.offset)
                    waiting.setdefault(key, asyncio.get_running_loop().create_future()).set_result(None)

    follower = asyncio.create_task(follow())

    async def call(number: int) -> None:
        sent = await producer.send_and_wait(topic, VALUE, partition=number % 16)
        key = (sent.partition, sent.offset)
        await waiting.setdefault(key, asyncio.get_running_loop().create_future())
        del waiting[key]

    try:
        return [
            await timed(
                f"append and see it, {concurrency} at once",
                "aiokafka alone",
                call,
                count=count // 10 if concurrency == 1 else count,
                concurrency=concurrency,
                warm_up=count // 20,
            )
            for concurrency in (1, 64)
        ]
    finally:
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
        await consumer.stop()
        await producer.stop()


def raw_rocks(directory: Path, *, count: int) -> list[Figure]:
    """Write ten rows per batch, and read rows back one by one."""
    database = Rdict(str(directory), Options(raw_mode=True))
    latencies_s = []
    began_s = time.perf_counter()
    for number in range(count // 10):
        started_s = time.perf_counter()
        batch = WriteBatch(raw_mode=True)
        for row in range(10):
            batch.put(b"%d:%d" % (number * 7919 % count, row), VALUE)
        database.write(batch)
        latencies_s.append(time.perf_counter() - started_s)
    writes = figure("write a batch of 10 rows", "rocksdict alone", latencies_s, time.perf_counter() - began_s)
    latencies_s = []
    began_s = time.perf_counter()
    for number in range(count):
        started_s = time.perf_counter()
        database.get(b"%d:%d" % (number % (count // 10) * 7919 % count, number % 10))
        latencies_s.append(time.perf_counter() - started_s)
    reads = figure("get a row", "rocksdict alone", latencies_s, time.perf_counter() - began_s)
    database.close()
    return [writes, reads]


async def plain_loop(turns: KafkaSettings, tables: KafkaSettings, directory: Path) -> Figure:
    """Read a log of turns and write two rows of each, who owns it and what its lineage ends in, in a transaction per
    batch: what a worker would do if nothing had to be judged, remembered, limited, expired or verified."""
    log, store = KafkaLog(turns), RocksViewStore(directory)
    count = (await log.manifest(timeout_s=10)).partition_count
    partitions = [Partition(number) for number in range(count)]
    ends = {partition: await log.end(partition, timeout_s=10) for partition in partitions}
    writers = {partition: await KafkaTransactions.start(tables, partition) for partition in partitions}
    tail = await log.tail(dict.fromkeys(partitions, Position(0)))
    waiting: dict[Partition, list[RecordBatch]] = {partition: [] for partition in partitions}
    writing: dict[Partition, asyncio.Task[None]] = {}
    read: dict[Partition, Position] = {}

    async def write(partition: Partition) -> None:
        while waiting[partition]:
            batches, waiting[partition] = waiting[partition], []
            records = [record for batch in batches for record in batch.records]
            for first in range(0, len(records), PLAIN_BATCH_RECORDS):
                rows: dict[bytes, bytes] = {}
                for record in records[first : first + PLAIN_BATCH_RECORDS]:
                    event = codec.decode(record.value)
                    if isinstance(event, TurnCompleted):
                        rows[b"r" + event.response] = event.owner.target.encode() + event.owner.digest
                        rows[b"l" + (event.parent or event.response)] = record.offset.to_bytes(8, "big")
                store.write({partition.to_bytes(2, "big") + key: row for key, row in rows.items()})
                await writers[partition].write({TABLES: list(rows.items())})

    began_s = time.perf_counter()
    while read != ends or any(not task.done() for task in writing.values()):
        for batch in await tail.next(0.05):
            waiting[batch.partition].append(batch)
            read[batch.partition] = batch.next_position
        for partition in partitions:
            task = writing.get(partition)
            if waiting[partition] and (task is None or task.done()):
                writing[partition] = asyncio.create_task(write(partition))
    for task in writing.values():
        task.result()
    elapsed_s = time.perf_counter() - began_s
    await tail.close()
    for writer in writers.values():
        await writer.close()
    await log.close()
    store.close()
    total = sum(ends.values())
    return Figure(name="plain loop, 2 rows", where="Kafka", count=total, rate_per_s=total / elapsed_s)
