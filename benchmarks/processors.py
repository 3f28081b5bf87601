"""Figures of the processors: how fast a worker makes tables, and a replica's start from them beside folding the log."""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks import in_process
from benchmarks.measure import Figure
from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_settings import TABLES, KafkaSettings
from ledger.adapters.rocks import RocksViewStore
from ledger.bootstrap import bootstrap
from ledger.turn import Partition
from processors.composition import materializer, signer_in

POLL_S = 0.05


@asynccontextmanager
async def _worker(settings: KafkaSettings, directory: Path) -> AsyncIterator[subprocess.Popen[str]]:
    """Run one worker as a process of its own, which prints what it has folded."""
    child = _start(settings, directory)
    try:
        yield child
    finally:
        child.terminate()
        await asyncio.to_thread(child.communicate)


def _start(settings: KafkaSettings, directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.processors", settings.bootstrap, settings.prefix, str(directory)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def all_figures(bootstrap_servers: str, directory: Path, *, events: int, prefix: str) -> list[Figure]:
    """Measure one worker, two workers on the same log again, a bootstrap, and a replay."""
    figures = []
    for workers in (1, 2):
        settings = await in_process.prepare_kafka(bootstrap_servers, f"{prefix}-{workers}")
        async with in_process.kafka(settings, directory / f"replica-{workers}") as ledger:
            await in_process.fill(ledger, events=events)
        figures.append(await _materialized(settings, directory, workers))
        if workers == 1:
            figures.append(await _bootstrapped(settings, directory / "bootstrapped"))
            opened = functools.partial(in_process.kafka, settings)
            figures.append(await in_process.rebuild(opened, directory / "again", "Kafka, from the log"))
    return figures


async def _materialized(settings: KafkaSettings, directory: Path, workers: int) -> Figure:
    """Time from the first record that any worker folded to the last."""
    log = KafkaLog(settings)
    count = (await log.manifest(timeout_s=10)).partition_count
    end = sum([await log.end(Partition(number), timeout_s=10) for number in range(count)])
    await log.close()
    folded: dict[int, int] = {}
    began_s = 0.0

    async def follow(child: subprocess.Popen[str]) -> None:
        nonlocal began_s
        assert child.stdout is not None
        while sum(folded.values()) < end:
            line = await asyncio.to_thread(child.stdout.readline)
            if not line:
                return
            if not line.startswith("{"):
                continue  # A line of the log.
            positions = {int(key): position for key, position in json.loads(line).items()}
            if any(positions.values()) and not began_s:
                began_s = time.perf_counter()
            folded.update({key: max(position, folded.get(key, 0)) for key, position in positions.items()})

    async def all_workers() -> None:
        async with asyncio.TaskGroup() as group, _workers(settings, directory, workers) as children:
            tasks = [group.create_task(follow(child)) for child in children]
            await asyncio.gather(*tasks)

    await all_workers()
    elapsed_s = time.perf_counter() - began_s
    return Figure(name=f"materialize, {workers} at once", where="Kafka", count=end, rate_per_s=end / elapsed_s)


@asynccontextmanager
async def _workers(settings: KafkaSettings, directory: Path, count: int) -> AsyncIterator[list[subprocess.Popen[str]]]:
    if count == 0:
        yield []
        return
    async with (
        _worker(settings, directory / f"worker-{count}-{settings.prefix}") as first,
        _workers(settings, directory, count - 1) as others,
    ):
        yield [first, *others]


async def _bootstrapped(settings: KafkaSettings, directory: Path) -> Figure:
    """Time of reading and verifying all tables, per event that they stand for."""
    store = RocksViewStore(directory)
    log, tables = KafkaLog(settings), KafkaLog(settings, TABLES)
    try:
        count = (await log.manifest(timeout_s=10)).partition_count
        began_s = time.perf_counter()
        results = await bootstrap(store, log, tables, [Partition(number) for number in range(count)])
        elapsed_s = time.perf_counter() - began_s
    finally:
        await log.close()
        await tables.close()
        store.close()
    assert not any(result.refused for result in results), results
    events = sum(result.marker.position for result in results if result.marker is not None)
    return Figure(name="bootstrap, events", where="Kafka", count=events, rate_per_s=events / elapsed_s)


async def _run_worker(settings: KafkaSettings, directory: Path) -> None:
    async with materializer(settings, directory, signer_in(directory / "checkpoint.key")) as service:
        running = asyncio.create_task(service.run())
        while not running.done():
            await asyncio.sleep(POLL_S)
            print(json.dumps({status.partition: status.position for status in service.statuses()}), flush=True)
        running.result()


if __name__ == "__main__":
    import uvloop

    servers, prefix, path = sys.argv[1:]
    uvloop.run(_run_worker(KafkaSettings(bootstrap=servers, prefix=prefix), Path(path)))
