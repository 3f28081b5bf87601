"""Fixtures of the Kafka adapters' tests: topics of their own for every test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from broker.launcher import Cluster
from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_settings import KafkaSettings
from tests.adapters.kafka_world import made_topics


@pytest.fixture
async def kafka_settings(kafka_bootstrap: str) -> KafkaSettings:
    """Return settings whose topics exist, are empty and belong to this test."""
    return await made_topics(kafka_bootstrap)


@pytest.fixture
async def kafka_log(kafka_settings: KafkaSettings) -> AsyncIterator[KafkaLog]:
    log = KafkaLog(kafka_settings)
    yield log
    await log.close()


@pytest.fixture(scope="module")
def fragile_cluster() -> Iterator[Cluster]:
    """Start one broker that a test may pause and kill; every test leaves it running."""
    with Cluster() as cluster:
        yield cluster
