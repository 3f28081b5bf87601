"""The topics as they are made, and every way in which existing ones can be wrong."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.admin import NewPartitions

from ledger.adapters.kafka_settings import REPORTS, TOPICS, KafkaSettings
from ledger.adapters.kafka_topics import check_topics, create_topics, in_sync_min
from ledger.errors import Unavailable
from tests.adapters.kafka_world import PARTITION_COUNT, TIMEOUT_S, admin, made_topics


async def test_created_topics_have_no_problems(kafka_settings: KafkaSettings) -> None:
    assert await check_topics(kafka_settings, partition_count=PARTITION_COUNT, replication_factor=1) == []
    assert await check_topics(kafka_settings, replication_factor=1) == []


async def test_topics_that_exist_are_left_alone(kafka_settings: KafkaSettings) -> None:
    assert await create_topics(kafka_settings, partition_count=PARTITION_COUNT + 1, replication_factor=1) == []
    assert await check_topics(kafka_settings, partition_count=PARTITION_COUNT, replication_factor=1) == []


async def test_topic_that_an_older_ledger_lacks_is_made_with_its_number_of_partitions(
    kafka_settings: KafkaSettings,
) -> None:
    name = kafka_settings.topic(REPORTS)
    async with admin(kafka_settings) as client:
        await client.delete_topics([name])
    async with asyncio.timeout(TIMEOUT_S):
        # A broker forgets a deleted topic a little later than the controller, and would show the old one as the new.
        while True:
            if await check_topics(kafka_settings, replication_factor=1) == [f"{name} does not exist"]:
                break
            await asyncio.sleep(0.05)
    assert await create_topics(kafka_settings, partition_count=PARTITION_COUNT + 1, replication_factor=1) == [name]
    assert await check_topics(kafka_settings, partition_count=PARTITION_COUNT, replication_factor=1) == []


async def test_missing_topics_are_named(kafka_settings: KafkaSettings) -> None:
    other = KafkaSettings(bootstrap=kafka_settings.bootstrap, prefix=f"{kafka_settings.prefix}-other")
    expected = [f"{other.topic(name)} does not exist" for name in TOPICS]
    assert await check_topics(other, partition_count=PARTITION_COUNT, replication_factor=1) == expected


async def test_topic_with_another_partition_count_is_named(kafka_settings: KafkaSettings) -> None:
    async with admin(kafka_settings) as client:
        await client.create_partitions({kafka_settings.topic("content"): NewPartitions(PARTITION_COUNT + 1)})
    expected = [f"{kafka_settings.topic('content')} has {PARTITION_COUNT + 1} partitions, not {PARTITION_COUNT}"]
    problems: list[str] = []
    async with asyncio.timeout(TIMEOUT_S):
        # A broker's metadata come a little after the answer to the change.
        while not problems:
            problems = await check_topics(kafka_settings, replication_factor=1)
    assert problems == expected


async def test_too_few_replicas_are_named_for_every_topic(kafka_settings: KafkaSettings) -> None:
    problems = await check_topics(kafka_settings, replication_factor=3)
    replicas = [problem for problem in problems if problem.endswith("has 1 replicas of a partition, fewer than 3")]
    in_sync = [problem for problem in problems if problem.endswith("has min.insync.replicas=1, needed is at least 2")]
    assert (len(replicas), len(in_sync), len(problems)) == (6, 6, 12)


@pytest.mark.parametrize(
    ("topic", "setting", "value", "needed"),
    [
        ("turns", "retention.ms", "1000", "-1"),
        ("turns", "retention.bytes", "1000", "-1"),
        ("turns", "cleanup.policy", "compact", "delete"),
        ("turns", "message.timestamp.type", "CreateTime", "LogAppendTime"),
        ("turns", "unclean.leader.election.enable", "true", "false"),
        ("content", "cleanup.policy", "delete", "compact"),
        ("content", "max.message.bytes", "524288", "at least 1048588"),
        ("content", "delete.retention.ms", "1000", "at least 604800000"),
        ("content", "min.compaction.lag.ms", "0", "at least 3600000"),
        ("tables", "max.compaction.lag.ms", "9223372036854775807", "at most 86400000"),
        ("tables", "segment.ms", "604800000", "at most 21600000"),
        ("lifecycle", "retention.ms", "1000", "2592000000"),
        ("checkpoints", "retention.ms", "1000", "-1"),
        ("reports", "cleanup.policy", "delete", "compact,delete"),
        ("reports", "retention.ms", "1000", "2592000000"),
    ],
)
async def test_wrong_setting_is_named(kafka_bootstrap: str, topic: str, setting: str, value: str, needed: str) -> None:
    settings = await made_topics(kafka_bootstrap, overrides={topic: {setting: value}})
    expected = f"{settings.topic(topic)} has {setting}={value}, needed is {needed}"
    assert await check_topics(settings, partition_count=PARTITION_COUNT, replication_factor=1) == [expected]


async def test_unreachable_cluster_is_unavailable() -> None:
    settings = KafkaSettings(bootstrap="127.0.0.1:1")
    with pytest.raises(Unavailable):
        await create_topics(settings)
    with pytest.raises(Unavailable):
        await check_topics(settings)


@pytest.mark.parametrize(("replication_factor", "needed"), [(1, 1), (2, 2), (3, 2), (5, 3)])
def test_a_majority_must_have_a_record(replication_factor: int, needed: int) -> None:
    assert in_sync_min(replication_factor) == needed
