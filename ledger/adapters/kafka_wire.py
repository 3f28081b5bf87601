"""Requests of the Kafka protocol that aiokafka does not offer: topic IDs and leader epochs.

Metadata version 12 (KIP-516) names the topic ID and each partition's leader epoch; ListOffsets version 5 (KIP-320,
KIP-207) lets a leader refuse a client whose epoch differs, and lets a fresh leader say that it does not know its high
watermark yet. Both as in the Kafka protocol guide; every broker since Kafka 3.1 understands them.
"""

# aiokafka has no py.typed marker, so its classes are Any to mypy; deriving from them is what this module is for.
# mypy: disallow-subclassing-any=False

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

LATEST, EARLIEST = -1, -2
"""Timestamps that ListOffsets reserves for the end and the first offset."""
READ_UNCOMMITTED = 0
"""Isolation level under which the end is the high watermark instead of the last stable offset."""
NO_TOPIC_ID = bytes(16)


class Uuid(AbstractType[bytes]):
    """16 bytes, as they are."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        assert len(value) == 16, "a UUID has 16 bytes"
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        value = data.read(16)
        if len(value) != 16:
            raise ValueError("buffer underrun decoding a UUID")
        return value


class MetadataResponseV12(Response):
    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class MetadataRequestV12(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 12
    RESPONSE_TYPE = MetadataResponseV12
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("topic_id", Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicMetadataRequest(Request[MetadataRequestV12]):
    """Asks for one topic by name, and never creates it."""

    API_KEY: ClassVar[int] = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[MetadataRequestV12]) -> MetadataRequestV12:
        return request_struct_class(
            topics=[(NO_TOPIC_ID, self._topic, {})],
            allow_auto_topic_creation=False,
            include_authorized_operations=False,
            tags={},
        )


class ListOffsetsResponseV5(Response):
    API_KEY = 2
    API_VERSION = 5
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("timestamp", Int64),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                    ),
                ),
            ),
        ),
    )


class ListOffsetsRequestV5(RequestStruct):
    API_KEY = 2
    API_VERSION = 5
    RESPONSE_TYPE = ListOffsetsResponseV5
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("isolation_level", Int8),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(("partition", Int32), ("current_leader_epoch", Int32), ("timestamp", Int64)),
                ),
            ),
        ),
    )


class LeaderOffsetsRequest(Request[ListOffsetsRequestV5]):
    """Asks a leader for the end or the first offset of partitions, each with the epoch that its leader must have."""

    API_KEY: ClassVar[int] = 2

    def __init__(self, topic: str, timestamp: int, epochs: Sequence[tuple[int, int]]) -> None:
        self._topic = topic
        self._partitions = [(partition, epoch, timestamp) for partition, epoch in epochs]

    def build(self, request_struct_class: type[ListOffsetsRequestV5]) -> ListOffsetsRequestV5:
        consumer = -1
        return request_struct_class(consumer, READ_UNCOMMITTED, [(self._topic, self._partitions)])


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """Who leads a partition, and since which election."""

    leader: int
    """Node number, or -1 while there is none."""
    epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """What one broker says of one topic."""

    error_code: int
    topic_id: str
    """URL-safe base64 without padding, as Kafka's own tools print it."""
    partitions: dict[int, PartitionMetadata]
    brokers: dict[int, tuple[str, int]]
    """Host and port by node number."""


def topic_metadata(response: Any) -> TopicMetadata:
    """Return what the answer to a ``TopicMetadataRequest`` says."""
    ((error_code, _, topic_id, _, partitions, _, _),) = response.topics
    return TopicMetadata(
        error_code=error_code,
        topic_id=base64.urlsafe_b64encode(topic_id).decode().rstrip("="),
        partitions={
            number: PartitionMetadata(leader=leader, epoch=epoch, replicas=tuple(replicas), in_sync=tuple(in_sync))
            for _, number, leader, epoch, replicas, in_sync, _, _ in partitions
        },
        brokers={node: (host, port) for node, host, port, _, _ in response.brokers},
    )
