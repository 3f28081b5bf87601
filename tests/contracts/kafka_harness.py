"""The Kafka adapters for the contract suites: topics of their own for every test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_content import KafkaContentStore
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.adapters.memory import MemoryViewStore
from ledger.turn import Partition, Position
from tests.adapters.kafka_world import PARTITION_COUNT, made_topics, recreate, trim
from tests.contracts.harness import ContentHarness, LogHarness


class _KafkaLogHarness:
    partition_count = PARTITION_COUNT

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._log: KafkaLog | None = None

    async def start(self) -> KafkaLog:
        await self.close()
        self._log = KafkaLog(self._settings)
        return self._log

    async def trim(self, partition: Partition, before: Position) -> None:
        await trim(self._settings, partition, before)

    async def recreate(self) -> None:
        await self.close()
        await recreate(self._settings)

    async def close(self) -> None:
        if self._log is not None:
            await self._log.close()


class _KafkaContentHarness:
    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._rows = MemoryViewStore()
        self._store: KafkaContentStore | None = None

    async def start(self) -> KafkaContentStore:
        await self.close()
        self._store = KafkaContentStore(self._settings, self._rows)
        await self._store.start()
        return self._store

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()


@asynccontextmanager
async def kafka_log(request: pytest.FixtureRequest) -> AsyncIterator[LogHarness]:
    harness = _KafkaLogHarness(await made_topics(request.getfixturevalue("kafka_bootstrap")))
    yield harness
    await harness.close()


@asynccontextmanager
async def kafka_content(request: pytest.FixtureRequest) -> AsyncIterator[ContentHarness]:
    harness = _KafkaContentHarness(await made_topics(request.getfixturevalue("kafka_bootstrap")))
    yield harness
    await harness.close()
