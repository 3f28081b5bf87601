"""The six topics: how they are made, and how existing ones are checked.

Every setting that a guarantee rests on is named here with its reason; ``check_topics`` compares what a cluster really
has.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from aiokafka.errors import TopicAlreadyExistsError, for_code
from aiokafka.protocol.admin import CreateTopicsRequest

from ledger.adapters.kafka_leader import NO_LEADER, UNKNOWN_TOPIC
from ledger.adapters.kafka_nodes import BrokerSilent, KafkaNodes
from ledger.adapters.kafka_settings import CHECKPOINTS, CONTENT, LIFECYCLE, REPORTS, TABLES, TURNS, KafkaSettings
from ledger.adapters.kafka_wire import TopicMetadata
from ledger.errors import Unavailable

PARTITION_COUNT_DEFAULT = 16
"""One principal is bound to one partition, so this is the number of principals that can be busy at once; it never
changes."""
REPLICATION_FACTOR_DEFAULT = 3
"""Survives the loss of one broker while another is being restarted."""
COMPACTION_LAG_MIN_MS = 60 * 60 * 1000
"""A record is left alone for an hour: above the bootstrap deadline, so that a starting replica reads whole batches."""
COMPACTION_LAG_MAX_MS = 24 * 60 * 60 * 1000
"""An erasure is real after a day, also in a partition that is hardly written to."""
DELETE_RETENTION_MS = 7 * 24 * 60 * 60 * 1000
"""A null record is kept for a week after it took effect: far above the bootstrap deadline, and a replica that was off
for half of it need not copy everything again."""
SEGMENT_MS = 6 * 60 * 60 * 1000
"""A segment that is still written to is never compacted, so it is closed after a quarter of
``COMPACTION_LAG_MAX_MS``."""
MESSAGE_BYTES_MAX = 1024 * 1024 + 12
"""Kafka's default, written down because a content chunk with its headers and a batch of appends must fit."""
LIFECYCLE_RETENTION_MS = 30 * 24 * 60 * 60 * 1000
"""Lifecycle facts are acted on within seconds and can be derived from the log again; a month is for people who look."""
REPORTS_RETENTION_MS = 30 * 24 * 60 * 60 * 1000
"""A reporter that says nothing for a month is forgotten; only the last word of each is of use for longer than hours."""
FOR_EVER = -1
CREATE_TIMEOUT_MS = 30_000
"""For the creation of all six: a controller takes milliseconds per partition, and only an operator waits for it."""

_EVERY_TOPIC = {
    # The one clock that no producer can set.
    "message.timestamp.type": "LogAppendTime",
    # A replica without the newest records must never become leader.
    "unclean.leader.election.enable": "false",
    "max.message.bytes": str(MESSAGE_BYTES_MAX),
}
_COMPACTED = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": str(COMPACTION_LAG_MIN_MS),
    "max.compaction.lag.ms": str(COMPACTION_LAG_MAX_MS),
    "delete.retention.ms": str(DELETE_RETENTION_MS),
    "segment.ms": str(SEGMENT_MS),
}
_KEPT = {"cleanup.policy": "delete", "retention.ms": str(FOR_EVER), "retention.bytes": str(FOR_EVER)}
_SETTINGS: Mapping[str, Mapping[str, str]] = {
    TURNS: _KEPT,
    CONTENT: _COMPACTED,
    TABLES: _COMPACTED,
    LIFECYCLE: {"cleanup.policy": "delete", "retention.ms": str(LIFECYCLE_RETENTION_MS)},
    # What is left of the log after it was trimmed rests on them.
    CHECKPOINTS: _KEPT,
    REPORTS: {
        "cleanup.policy": "compact,delete",
        "retention.ms": str(REPORTS_RETENTION_MS),
        "min.compaction.lag.ms": str(COMPACTION_LAG_MIN_MS),
        "segment.ms": str(SEGMENT_MS),
    },
}
_AT_LEAST = frozenset({"min.compaction.lag.ms", "delete.retention.ms", "max.message.bytes"})
"""Settings of which more is fine."""
_AT_MOST = frozenset({"max.compaction.lag.ms", "segment.ms"})
"""Settings of which less is fine."""


def in_sync_min(replication_factor: int) -> int:
    """Return how many replicas must have a record before it is acknowledged: a majority."""
    return replication_factor // 2 + 1


def topic_settings(name: str, replication_factor: int) -> dict[str, str]:
    """Return the configuration of one of the topics."""
    return {**_EVERY_TOPIC, **_SETTINGS[name], "min.insync.replicas": str(in_sync_min(replication_factor))}


async def create_topics(
    settings: KafkaSettings,
    *,
    partition_count: int = PARTITION_COUNT_DEFAULT,
    replication_factor: int = REPLICATION_FACTOR_DEFAULT,
    overrides: Mapping[str, Mapping[str, str]] | None = None,
) -> list[str]:
    """Create those of the topics that are missing, and return their full names; existing ones are left as they
    are.

    ``partition_count`` is for a new ledger; what an existing one lacks is made with the number it has. ``overrides``
    changes configuration by topic name without prefix. Raises ``Unavailable`` when the cluster cannot be
    reached or refuses.
    """
    patient = dataclasses.replace(settings, end_request_timeout_ms=CREATE_TIMEOUT_MS)
    nodes = KafkaNodes(patient)
    try:
        node, turns = await nodes.metadata_of_any(settings.topic(TURNS))
        # All topics have as many partitions as the events, also those that a later release adds.
        count = partition_count if turns.error_code else len(turns.partitions)
        topics: list[tuple[Any, ...]] = []
        for name in _SETTINGS:
            configs = {**topic_settings(name, replication_factor), **(overrides or {}).get(name, {})}
            topics.append((settings.topic(name), count, replication_factor, [], list(configs.items())))
        # Any broker hands this on to the controller (KIP-590).
        request = CreateTopicsRequest(topics, CREATE_TIMEOUT_MS, validate_only=False)
        response = await nodes.send(node, request)
        created = []
        for topic, error_code, message in response.topic_errors:
            if error_code == 0:
                created.append(topic)
            elif error_code != TopicAlreadyExistsError.errno:
                raise Unavailable("broker", f"{topic} was not created: {message or for_code(error_code).__name__}")
        async with asyncio.timeout(CREATE_TIMEOUT_MS / 1000):
            for name in _SETTINGS:
                await _wait_until_led(nodes, settings.topic(name), settings.retry_backoff_ms / 1000)
    except BrokerSilent as error:
        raise Unavailable("broker", f"the topics could not be created: {error}") from error
    except TimeoutError:
        raise Unavailable("leader", "the topics were created, but not every partition has a leader") from None
    finally:
        await nodes.close()
    return created


async def _wait_until_led(nodes: KafkaNodes, topic: str, interval_s: float) -> None:
    """Return when a broker names a leader for every partition; the answer to a creation comes a little before that."""
    while True:
        _, metadata = await nodes.metadata_of_any(topic)
        partitions = metadata.partitions.values()
        if partitions and all(partition.leader != NO_LEADER for partition in partitions):
            return
        await asyncio.sleep(interval_s)


async def check_topics(
    settings: KafkaSettings,
    *,
    partition_count: int | None = None,
    replication_factor: int = REPLICATION_FACTOR_DEFAULT,
) -> list[str]:
    """Return every problem in plain words, [] when all is well.

    ``partition_count`` None: whatever the topic ``turns`` has. Raises ``Unavailable`` when the cluster cannot be
    reached.
    """
    nodes = KafkaNodes(settings)
    try:
        problems: list[str] = []
        for name in _SETTINGS:
            topic = settings.topic(name)
            node, metadata = await nodes.metadata_of_any(topic)
            if metadata.error_code == UNKNOWN_TOPIC:
                problems.append(f"{topic} does not exist")
                continue
            if metadata.error_code:
                problems.append(f"{topic} cannot be described: {for_code(metadata.error_code).__name__}")
                continue
            if partition_count is None:
                partition_count = len(metadata.partitions)
            problems += _shape_problems(topic, metadata, partition_count, replication_factor)
            configs = await nodes.topic_configs(topic, node)
            if not configs:
                problems.append(f"{topic}: this client may not read its configuration (ACL DescribeConfigs)")
                continue
            problems += _config_problems(topic, configs, topic_settings(name, replication_factor))
    except BrokerSilent as error:
        raise Unavailable("broker", f"the topics could not be checked: {error}") from error
    finally:
        await nodes.close()
    return problems


def _shape_problems(
    topic: str, metadata: TopicMetadata, partition_count: int, replication_factor: int
) -> Iterator[str]:
    if len(metadata.partitions) != partition_count:
        yield f"{topic} has {len(metadata.partitions)} partitions, not {partition_count}"
    replicas = {len(partition.replicas) for partition in metadata.partitions.values()}
    if min(replicas) < replication_factor:
        yield f"{topic} has {min(replicas)} replicas of a partition, fewer than {replication_factor}"


def _config_problems(topic: str, configs: Mapping[str, Any], expected: Mapping[str, str]) -> Iterator[str]:
    for name, wanted in expected.items():
        found = configs.get(name)
        if name in _AT_LEAST or name == "min.insync.replicas":
            fine, relation = int(found or 0) >= int(wanted), "at least "
        elif name in _AT_MOST:
            fine, relation = int(found or 0) <= int(wanted), "at most "
        else:
            fine, relation = _parts(found) == _parts(wanted), ""
        if not fine:
            yield f"{topic} has {name}={found}, needed is {relation}{wanted}"


def _parts(value: str | None) -> set[str]:
    """Return the parts of a value that may be a list: a broker gives them in an order of its own."""
    return set((value or "").split(","))
