"""What tests of the Kafka adapters do to a broker: make topics, trim them, write to them as a foreign producer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_nodes import KafkaNodes
from ledger.adapters.kafka_settings import TOPICS, TURNS, KafkaSettings
from ledger.adapters.kafka_tail import KafkaTail
from ledger.adapters.kafka_topics import create_topics
from ledger.log import Record
from ledger.turn import Partition, Position

TIMEOUT_S = 20.0
"""Far above what anything needs: no test passes or fails by it."""
PARTITION_COUNT = 2
P0, P1 = Partition(0), Partition(1)


async def made_topics(
    bootstrap: str, *, replication_factor: int = 1, overrides: Mapping[str, Mapping[str, str]] | None = None
) -> KafkaSettings:
    """Create the topics under a prefix of their own."""
    settings = KafkaSettings(bootstrap=bootstrap, prefix=f"test-{secrets.token_hex(6)}")
    created = await create_topics(
        settings, partition_count=PARTITION_COUNT, replication_factor=replication_factor, overrides=overrides
    )
    assert len(created) == len(TOPICS)
    return settings


@asynccontextmanager
async def admin(settings: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def trim(settings: KafkaSettings, partition: Partition, before: int) -> None:
    """Remove the records below ``before``, as retention does."""
    async with admin(settings) as client:
        await client.delete_records({TopicPartition(settings.topic(TURNS), partition): RecordsToDelete(before)})


async def recreate(settings: KafkaSettings) -> None:
    """Replace the topics by empty ones of the same names."""
    async with admin(settings) as client:
        names = [settings.topic(name) for name in TOPICS]
        await client.delete_topics(names)
    nodes = KafkaNodes(settings)
    for name in names:
        # Until the broker has forgotten a deleted topic, it says that the topic exists.
        while True:
            _, metadata = await nodes.metadata_of_any(name)
            if metadata.error_code:
                break
            await asyncio.sleep(0.02)
    await nodes.close()
    assert len(await create_topics(settings, partition_count=PARTITION_COUNT, replication_factor=1)) == len(names)


@asynccontextmanager
async def foreign_transactions(settings: KafkaSettings) -> AsyncIterator[AIOKafkaProducer]:
    """Yield a producer that writes in transactions, as no part of the ledger does on this topic."""
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap, transactional_id=f"{settings.prefix}-foreign", acks="all"
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def append(log: KafkaLog, count: int, *, partition: Partition = P0) -> None:
    for number in range(count):
        await log.append(partition, b"key", b"value-%d" % number, timeout_s=TIMEOUT_S)


async def read_to(tail: KafkaTail, partition: Partition, end: Position) -> tuple[list[Record], Position]:
    """Read until the partition's position has reached ``end``; return its records and the position."""
    records: list[Record] = []
    position = Position(-1)
    while position < end:
        for batch in await tail.next(TIMEOUT_S):
            if batch.partition == partition:
                records.extend(batch.records)
                position = batch.next_position
    return records, position
