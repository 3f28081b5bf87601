"""Removing the oldest records of the event log (DeleteRecords, KIP-107): the one thing that is ever taken from it."""

from __future__ import annotations

from collections.abc import Mapping

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.errors import KafkaError, for_code

from ledger.adapters.kafka_settings import TURNS, KafkaSettings
from ledger.errors import Unavailable
from ledger.turn import Partition, Position

TRIM_TIMEOUT_MS = 30_000


async def trim_log(settings: KafkaSettings, positions: Mapping[Partition, Position]) -> None:
    """Remove the records of each partition below its position. Raises ``Unavailable``; can be run again."""
    client = AIOKafkaAdminClient(**{**settings.client_options(), "request_timeout_ms": TRIM_TIMEOUT_MS})
    topic = settings.topic(TURNS)
    wanted = {TopicPartition(topic, number): RecordsToDelete(position) for number, position in positions.items()}
    try:
        await client.start()
        try:
            await client.delete_records(wanted, timeout_ms=TRIM_TIMEOUT_MS)
        finally:
            await client.close()
    except KafkaError as error:
        name = type(error).__name__ if error.errno < 0 else for_code(error.errno).__name__
        raise Unavailable("broker", f"the log was not trimmed everywhere: {name}") from error
