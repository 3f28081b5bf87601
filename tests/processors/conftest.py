"""Fixtures of the processors' tests: topics of their own for every test."""

import pytest

from ledger.adapters.kafka_settings import KafkaSettings
from tests.adapters.kafka_world import made_topics


@pytest.fixture
async def kafka_settings(kafka_bootstrap: str) -> KafkaSettings:
    """Return settings whose topics exist, are empty and belong to this test."""
    return await made_topics(kafka_bootstrap)
