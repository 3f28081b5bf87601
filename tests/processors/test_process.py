"""``turnledger process`` as processes of their own: they work, stop in order, take over, and what they write
verifies."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from ledger import reporter
from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_settings import CONTENT, TABLES, KafkaSettings
from ledger.rows import Kind
from ledger.settings import LedgerSettings
from ledger.table import partition_prefix
from processors.composition import locked
from processors.status import TableStatus, table_statuses
from tests.adapters.kafka_world import made_topics
from tests.cli.conftest import CONTINUED, PORTABLE, Ran, Run, home, ndjson, run, serving
from tests.forked import Forked
from tests.processors.world import (
    PARTITIONS,
    bootstrapped,
    publish,
    replica,
    reported,
    rows_of,
    turn,
    until,
)

__all__ = ["home", "run"]

FAST = {
    "segment.ms": "1000",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "1000",
    "delete.retention.ms": "120000",
    "file.delete.delay.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
}
"""Compaction as soon as the broker's cleaner looks, every 15 s."""
TAKEOVER_MAX_S = 10.0


class Process:
    """One worker."""

    def __init__(self, settings: KafkaSettings, directory: Path, name: str) -> None:
        key_file = str(directory / "checkpoint.key")
        self._words = ["process", "--bootstrap", settings.bootstrap, "--prefix", settings.prefix, "--port", "0"]
        self._words += ["--directory", str(directory / name), "--checkpoint-key-file", key_file]
        self._log = directory / f"{name}.log"
        self._log.touch()
        self._child: Forked | None = None

    def start(self) -> None:
        self._child = Forked(*self._words, environ=os.environ, log=self._log)

    def send(self, number: signal.Signals) -> None:
        assert self._child is not None
        self._child.send(number)

    def wait(self, timeout_s: float) -> int:
        assert self._child is not None
        return self._child.wait(timeout_s)

    def kill(self) -> None:
        if self._child is not None:
            self._child.end()


@contextmanager
def processes(settings: KafkaSettings, directory: Path, *names: str) -> Iterator[list[Process]]:
    found = [Process(settings, directory, name) for name in names]
    try:
        yield found
    finally:
        for one in found:
            one.kill()


@asynccontextmanager
async def watching(settings: KafkaSettings) -> AsyncIterator[Watching]:
    log, tables = KafkaLog(settings), KafkaLog(settings, TABLES)
    yield Watching(log, tables)
    await tables.close()
    await log.close()


class Watching:
    """Looks at the tables from outside."""

    def __init__(self, log: KafkaLog, tables: KafkaLog) -> None:
        self._log = log
        self._tables = tables

    async def statuses(self) -> list[TableStatus]:
        return await table_statuses(self._log, self._tables, PARTITIONS)

    async def is_caught_up(self) -> bool:
        return all(status.marker is not None and not status.lag for status in await self.statuses())


async def test_worker_makes_tables_erases_and_stops_in_order(kafka_bootstrap: str, tmp_path: Path, run: Run) -> None:
    settings = await made_topics(kafka_bootstrap, overrides={CONTENT: FAST, TABLES: FAST})
    with processes(settings, tmp_path, "worker") as (process,):
        async with replica(settings, tmp_path / "replica") as ledger, watching(settings) as outside:
            await asyncio.to_thread(process.start)
            await ledger.committer.commit(turn("a", text="hello"))
            await until(outside.is_caught_up)
            words = ["--bootstrap", settings.bootstrap, "--prefix", settings.prefix]
            status = await asyncio.to_thread(run, "process", "status", "--json", *words)
            assert (status.code, status.json()["healthy"]) == (0, True)
            assert [one["lag"] for one in status.json()["partitions"]] == [0, 0]
        process.send(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == 0


async def test_worker_process_hears_reports_and_raises_an_alarm_at_the_first_difference(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = await made_topics(kafka_bootstrap)
    monkeypatch.setenv("TURNLEDGER_REPORT_INTERVAL_S", "1")
    monkeypatch.setattr(reporter, "PAUSE_S", 0.5)
    limits = LedgerSettings(reporter_name="tampered", report_interval_s=1.0, digest_interval_s=1.0)

    def log() -> bytes:
        return (tmp_path / "worker.log").read_bytes()

    with processes(settings, tmp_path, "worker") as (process,):
        async with replica(settings, tmp_path / "replica", limits=limits) as ledger, watching(settings) as outside:
            await asyncio.to_thread(process.start)
            await publish(ledger, 40)
            await until(outside.is_caught_up)
            await until(lambda: is_compared(settings, "tampered"))
            assert b"report_differs" not in log()
            prefix = partition_prefix(PARTITIONS[0]) + Kind.RESPONSE
            key, row = next(iter(ledger.store.scan(prefix, prefix + b"\xff")))
            ledger.store.write({key: row[:-1] + bytes([row[-1] ^ 1])})
            await until(lambda: b"report_differs" in log())
            (alarm,) = [line for line in log().splitlines() if b"report_differs" in line]
            assert b"replica tampered" in alarm
            assert b"have different rows" in alarm


async def is_compared(settings: KafkaSettings, name: str) -> bool:
    """Return whether digests of a reporter's rows were found to be those of somebody else, in every partition."""
    found = [heard for one in await reported(settings) for heard in one.watch.heard.values()]
    return sum(heard.digest_at_ms is not None for heard in found if heard.report.name == name) == len(PARTITIONS)


def test_second_worker_on_one_directory_and_one_without_a_broker_end_with_the_reason(run: Run, tmp_path: Path) -> None:
    words = ["process", "--bootstrap", "127.0.0.1:1", "--port", "0", "--directory", str(tmp_path / "worker")]
    words += ["--checkpoint-key-file", str(tmp_path / "checkpoint.key"), "--log-level", "error"]
    with locked(tmp_path / "worker"):
        ran = run(*words)
        assert ran.code == 6
        assert "is open in another place" in ran.err
    ran = run(*words)
    assert ran.code == 4, ran.err


@pytest.mark.timeout(300)
async def test_erase_waits_until_the_last_copy_is_gone_from_every_disk(
    kafka_bootstrap: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = await made_topics(kafka_bootstrap, overrides={CONTENT: FAST, TABLES: FAST})
    key_file = tmp_path / "alias.key"
    key_file.write_text((b"k" * 32).hex())
    limits = LedgerSettings(reporter_name="lost", report_interval_s=1.0)
    async with replica(settings, tmp_path / "lost", limits=limits) as ledger:
        await ledger.committer.commit(turn("a", text="hello"))
        await until(lambda: is_reporting(settings, "lost"))
    kafka = ["--bootstrap", settings.bootstrap, "--prefix", settings.prefix]
    monkeypatch.setenv("TURNLEDGER_REPORTER_NAME", "served")

    def erase_while_served() -> tuple[Ran, Ran]:
        words = [*kafka, "--alias-key-file", str(key_file), "--directory", str(tmp_path / "served")]
        with serving(*words) as url:
            assert run("publish", "-", "--url", url, stdin=ndjson(PORTABLE, CONTINUED)).code == 0
            erase = ["erase", "--principal", "local", "--yes", "--url", url, *kafka, "--event-id", "erase", "--wait"]
            # Nobody works yet: it says what is missing, and can be asked again.
            ran = run(*erase, "--wait-timeout", "2")
            assert (ran.code, "not yet so far" in ran.err) == (4, True)
            worker.start()
            # A replica that is gone may have anything on its disk, until somebody vouches for it.
            for _ in range(10):
                silent = run(*erase, "--wait-timeout", "10")
                last = silent.err.splitlines()[-1]
                if "may still hold" in last and "served" not in last:
                    break
            assert run("process", "forget-reporter", "lost", "--yes", *kafka).code == 0
            return silent, run(*erase, "--wait-timeout", "100")

    with processes(settings, tmp_path, "worker") as (worker,):
        silent, ran = await asyncio.to_thread(erase_while_served)
    said = ["have folded the erasure", "no row of the principal", "deleted for every reader", "gone from the brokers"]
    assert silent.code == 4
    assert [phrase for phrase in said if phrase not in silent.err] == []
    last = silent.err.splitlines()[-1]
    assert "may still hold" in last
    assert "replica lost (" in last
    assert "last heard" in last
    assert "served" not in last
    assert ran.code == 0, ran.err
    assert [phrase for phrase in [*said, "gone from the disks"] if phrase not in ran.err] == []


async def is_reporting(settings: KafkaSettings, name: str) -> bool:
    """Return whether a reporter has said that it holds every partition, with what was published."""
    found = [heard for one in await reported(settings) for heard in one.watch.heard.values()]
    named = [heard for heard in found if heard.report.name == name]
    return len(named) == len(PARTITIONS) and sum(heard.report.position for heard in named) > len(PARTITIONS)


async def test_partitions_are_taken_over_within_the_bound_after_a_kill(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    with processes(kafka_settings, tmp_path, "one", "two") as (one, two):
        async with replica(kafka_settings, tmp_path / "replica") as ledger, watching(kafka_settings) as outside:
            await asyncio.to_thread(one.start)
            await publish(ledger, 40)
            await until(outside.is_caught_up)
            await asyncio.to_thread(two.start)
            await until(lambda: b"lane_restored" in (tmp_path / "two.log").read_bytes())
            await until(outside.is_caught_up)
            one.kill()
            killed_at_s = time.monotonic()
            await publish(ledger, 40)
            await until(outside.is_caught_up)
            assert time.monotonic() - killed_at_s < TAKEOVER_MAX_S
            store, results = await bootstrapped(kafka_settings)
            assert [result.refused for result in results] == ["", ""]
            assert rows_of(store) == rows_of(ledger.store)


@pytest.mark.timeout(400)
async def test_tables_verify_after_kills_at_any_moment(kafka_settings: KafkaSettings, tmp_path: Path) -> None:
    chance = random.Random(5)
    with processes(kafka_settings, tmp_path, "one", "two") as both:
        async with replica(kafka_settings, tmp_path / "replica") as ledger, watching(kafka_settings) as outside:
            for process in both:
                await asyncio.to_thread(process.start)
            for number in range(20):
                publishing = asyncio.create_task(publish(ledger, 100))
                await asyncio.sleep(chance.uniform(0.2, 3.0))
                both[number % 2].kill()
                await asyncio.to_thread(both[number % 2].start)
                await publishing
                store, results = await bootstrapped(kafka_settings)
                # What is there verifies at every moment, or there is nothing yet.
                assert {result.refused for result in results} <= {"", "empty"}
            await until(outside.is_caught_up)
            store, results = await bootstrapped(kafka_settings)
            assert [result.refused for result in results] == ["", ""]
            assert rows_of(store) == rows_of(ledger.store)


@pytest.mark.timeout(300)
async def test_worker_that_was_paused_until_it_was_replaced_writes_nothing_old(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    with processes(kafka_settings, tmp_path, "one", "two") as (one, two):
        async with replica(kafka_settings, tmp_path / "replica") as ledger, watching(kafka_settings) as outside:
            await asyncio.to_thread(one.start)
            await publish(ledger, 40)
            await until(outside.is_caught_up)
            publishing = asyncio.create_task(publish(ledger, 400))
            one.send(signal.SIGSTOP)
            await asyncio.to_thread(two.start)
            await publishing
            await until(outside.is_caught_up)
            one.send(signal.SIGCONT)
            for _ in range(4):
                await publish(ledger, 40)
                await until(outside.is_caught_up)
                store, results = await bootstrapped(kafka_settings)
                assert [result.refused for result in results] == ["", ""]
                await asyncio.sleep(1)
            assert rows_of(store) == rows_of(ledger.store)
