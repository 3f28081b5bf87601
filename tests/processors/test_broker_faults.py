"""A worker outlives its broker: what it was writing is decided, and it goes on from the last marker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.launcher import Cluster
from tests.adapters.kafka_world import made_topics
from tests.processors.world import bootstrapped, caught_up, publish, replica, rows_of, until, worker


@pytest.mark.timeout(300)
async def test_worker_goes_on_after_its_broker_was_killed_and_paused(tmp_path: Path) -> None:
    with Cluster() as cluster:
        settings = await made_topics(cluster.bootstrap)
        async with (
            replica(settings, tmp_path / "replica") as ledger,
            worker(settings, tmp_path / "worker") as service,
        ):
            for fault in (cluster.restart, pause_for_seconds(cluster)):
                publishing = asyncio.create_task(publish(ledger, 200))
                await asyncio.sleep(0.3)
                await asyncio.to_thread(fault, 0)
                await asyncio.gather(publishing, return_exceptions=True)
                await publish(ledger, 20)
                await until(lambda: caught_up(service, ledger), timeout_s=90)
            store, results = await bootstrapped(settings)
            assert [result.refused for result in results] == ["", ""]
            assert rows_of(store) == rows_of(ledger.store)


def pause_for_seconds(cluster: Cluster) -> Callable[[int], None]:
    """Return a fault: the broker answers nothing for longer than a transaction may take, and then goes on."""

    def pause(index: int) -> None:
        cluster.pause(index)
        time.sleep(9)
        cluster.resume(index)

    return pause
