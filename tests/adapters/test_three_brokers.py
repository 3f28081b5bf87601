"""What only three brokers can show: when they are ready, and that a deposed leader gives no old end. They are started
once for both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from broker.launcher import Cluster
from broker.settings import ClusterSettings
from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_nodes import KafkaNodes
from ledger.adapters.kafka_settings import TURNS, KafkaSettings
from ledger.errors import Unavailable
from ledger.log import Appended
from tests.adapters.healing import HEALED_S, topics_on, when_healed
from tests.adapters.kafka_world import P0, TIMEOUT_S
from tests.broker.test_launcher import create_topic


@pytest.fixture(scope="module")
def started_once() -> Iterator[Cluster]:
    with Cluster(ClusterSettings(brokers=3)) as cluster:
        yield cluster


@pytest.fixture
def three_brokers(started_once: Cluster) -> Iterator[Cluster]:
    """Three brokers in sync, as every test leaves them."""
    yield started_once
    started_once.wait_until_ready()


async def in_sync_replicas(bootstrap: str, topic: str) -> set[int]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        [description] = await admin.describe_topics([topic])
    finally:
        await admin.close()
    return set(description["partitions"][0]["isr"])


async def test_three_brokers_are_ready_when_every_replica_is_in_sync(three_brokers: Cluster) -> None:
    topic = await create_topic(three_brokers.bootstrap, copies=3)
    three_brokers.wait_until_ready()
    assert await in_sync_replicas(three_brokers.bootstrap, topic) == {1, 2, 3}

    three_brokers.pause(1)
    three_brokers.kill(2)
    three_brokers.resume(1)
    three_brokers.restart(2)
    assert await in_sync_replicas(three_brokers.bootstrap, topic) == {1, 2, 3}


async def leader_of(settings: KafkaSettings) -> int:
    """Return the leader of partition 0, once the broker that is asked has heard of the new topic."""
    nodes = KafkaNodes(settings)
    try:
        async with asyncio.timeout(HEALED_S):
            while True:
                _, metadata = await nodes.metadata_of_any(settings.topic(TURNS))
                if P0 in metadata.partitions and metadata.partitions[P0].leader > 0:
                    return metadata.partitions[P0].leader
                await asyncio.sleep(0.05)
    finally:
        await nodes.close()


async def test_leader_that_was_deposed_while_paused_gives_no_old_end(three_brokers: Cluster) -> None:
    settings = await topics_on(three_brokers, replication_factor=3)
    leader = await leader_of(settings)
    reader, writer = KafkaLog(settings), KafkaLog(settings)
    await when_healed(lambda: writer.append(P0, b"key", b"before", timeout_s=5.0))
    await reader.end(P0, timeout_s=TIMEOUT_S)
    # The reader's question waits in the leader's socket and is answered by it when it wakes up.
    three_brokers.pause(leader - 1)
    try:
        appended: Appended = await when_healed(lambda: writer.append(P0, b"key", b"after", timeout_s=10.0))
        asked = [asyncio.create_task(reader.end(P0, timeout_s=10.0)) for _ in range(10)]
        await asyncio.sleep(0)
    finally:
        three_brokers.resume(leader - 1)
    for _ in range(50):
        asked.append(asyncio.create_task(reader.end(P0, timeout_s=10.0)))
        await asyncio.sleep(0.01)
    ends = await asyncio.gather(*asked, return_exceptions=True)
    # While the brokers settle a question may stay without an answer; none may get an old one.
    assert all(isinstance(end, int | Unavailable) for end in ends), ends
    assert all(end > appended.offset for end in ends if isinstance(end, int))
    assert await when_healed(lambda: reader.end(P0, timeout_s=10.0)) > appended.offset
    await asyncio.gather(reader.close(), writer.close())
