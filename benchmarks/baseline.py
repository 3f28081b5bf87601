"""What the parts can do without the ledger, measured in the same run: the figures to compare with."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from rocksdict import Options, Rdict, WriteBatch

from benchmarks.measure import Figure, figure, timed
from ledger.adapters.kafka_settings import TURNS, KafkaSettings

VALUE = b"x" * 220
"""As large as a native turn's event."""


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
