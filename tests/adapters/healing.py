"""Waiting until an adapter works again after its broker does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from broker.launcher import Cluster
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.errors import Unavailable
from ledger.log import AppendUncertain
from tests.adapters.kafka_world import made_topics

HEALED_S = 15.0
"""Bound on the time until an adapter works again after its broker does."""
Answer = TypeVar("Answer")


async def when_healed(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Return the first answer that is not a refusal, within ``HEALED_S``."""
    async with asyncio.timeout(HEALED_S):
        while True:
            try:
                return await call()
            except (Unavailable, AppendUncertain):
                await asyncio.sleep(0.05)


async def topics_on(cluster: Cluster, *, replication_factor: int = 1) -> KafkaSettings:
    """Make topics, also when the cluster is only just coming back from what the test before did to it."""
    return await when_healed(lambda: made_topics(cluster.bootstrap, replication_factor=replication_factor))
