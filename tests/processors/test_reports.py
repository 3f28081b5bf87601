"""Reports on a real broker: processes are compared, the first difference is an alarm, and healthy ones never are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from structlog.typing import EventDict

from ledger import replica as replica_module
from ledger import report, reporter
from ledger.adapters.kafka_reports import KafkaReports
from ledger.adapters.kafka_settings import REPORTS, KafkaSettings
from ledger.adapters.kafka_topics import create_topics
from ledger.adapters.rocks import RocksViewStore
from ledger.ledger import Ledger
from ledger.reporter import Standing
from ledger.rows import Kind
from ledger.settings import LedgerSettings
from ledger.table import Rows, partition_prefix
from ledger.turn import Partition
from processors import checkpoints
from processors.comparison import Heard
from tests.adapters.kafka_world import P0, PARTITION_COUNT, admin
from tests.cli.conftest import Run, home, run
from tests.processors.world import PARTITIONS, publish, replica, reported, until, whole_worker

__all__ = ["home", "run"]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report and digest within a second, at an aligned place every 25 records."""
    monkeypatch.setattr(report, "ALIGNED_RECORDS", 25)
    monkeypatch.setattr(reporter, "LOOK_INTERVAL_S", 0.1)
    monkeypatch.setattr(reporter, "PAUSE_S", 0.2)
    monkeypatch.setattr(checkpoints, "CHECKPOINT_INTERVAL_S", 0.5)


def limits(name: str) -> LedgerSettings:
    return LedgerSettings(reporter_name=name, report_interval_s=2.0, digest_interval_s=1.0)


async def heard(settings: KafkaSettings, name: str) -> dict[Partition, Heard]:
    """Return the last words of a reporter."""
    return {
        one.partition: found
        for one in await reported(settings)
        for found in one.watch.heard.values()
        if found.report.name == name
    }


async def is_digested(settings: KafkaSettings, ledger: Ledger, *names: str) -> bool:
    """Return whether the reporters stand where a replica does, each with a digest that somebody else confirmed."""
    for name in names:
        words = await heard(settings, name)
        for partition, state in ledger.replica.states().items():
            found = words.get(partition)
            if found is None or found.digest_at_ms is None or found.report.position != state.rows.position:
                return False
    return True


async def alarms(settings: KafkaSettings) -> list[str]:
    return [str(alarm) for one in await reported(settings) for alarm in one.watch.alarms]


async def test_healthy_replicas_and_workers_agree_busy_restarted_and_bootstrapped(
    kafka_settings: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(7)
    sizes = iter(lambda: chance.randint(1, 40), 0)
    async with (
        replica(kafka_settings, tmp_path / "one", limits=limits("one")) as ledger,
        whole_worker(kafka_settings, tmp_path / "worker", reporter_name="worker", report_interval_s=1.0) as worker,
    ):
        for _ in range(3):
            # Each round the second replica folds in batches of another size, and starts anew.
            monkeypatch.setattr(replica_module, "FOLD_BATCH_RECORDS_MAX", next(sizes))
            async with replica(kafka_settings, tmp_path / "two", limits=limits("two")) as other:
                for _ in range(4):
                    await publish(ledger, chance.randint(20, 60))
                    await publish(other, chance.randint(1, 30))
                await ledger.confirm()
                await other.confirm()
                await until(lambda: is_digested(kafka_settings, ledger, "one", "two", "worker"))
        async with replica(kafka_settings, tmp_path / "bootstrapped", limits=limits("three")) as third:
            await third.confirm()
            await until(lambda: is_digested(kafka_settings, ledger, "one", "three"))
        assert await alarms(kafka_settings) == []
        await until(lambda: worker.watcher.reports_count > 20 and worker.watcher.checkpoints_count > 20)
        assert (worker.watcher.alarms_count, worker.watcher.last_alarm) == (0, "")


def said(logs: list[EventDict]) -> Iterator[tuple[str, str, str]]:
    for log in logs:
        if log["event"] == "report_differs":
            assert log["log_level"] == "error"
            yield log["reporter"], log["other"], log["message"]


async def test_row_that_was_changed_behind_the_folds_back_is_an_alarm_at_the_next_digest(
    kafka_settings: KafkaSettings, tmp_path: Path, run: Run
) -> None:
    async with (
        replica(kafka_settings, tmp_path / "one", limits=limits("one")) as ledger,
        whole_worker(kafka_settings, tmp_path / "worker", report_interval_s=1.0) as worker,
    ):
        await publish(ledger, 30)
        await ledger.confirm()
        await until(lambda: is_digested(kafka_settings, ledger, "one"))
        assert worker.watcher.alarms_count == 0
        prefix = partition_prefix(P0) + Kind.RESPONSE
        key, row = next(iter(ledger.store.scan(prefix, prefix + b"\xff")))
        with structlog.testing.capture_logs() as logs:
            ledger.store.write({key: row[:-1] + bytes([row[-1] ^ 1])})
            await until(lambda: worker.watcher.alarms_count > 0)
        assert any("replica one" in f"{who} {other}" and "different rows" in what for who, other, what in said(logs))
        words = ["--bootstrap", kafka_settings.bootstrap, "--prefix", kafka_settings.prefix]
        status = await asyncio.to_thread(run, "process", "status", "--json", *words)
        assert (status.code, status.json()["healthy"]) == (4, False)
        anchor = ledger.replica.rows(P0).meta.anchor_offset
        assert any(f"at offset {anchor} " in alarm and "replica one" in alarm for alarm in status.json()["alarms"])
        listed = await asyncio.to_thread(run, "process", "reporters", *words)
        assert (listed.code, "ALARM partition 0" in listed.out) == (4, True)


async def test_replica_that_folded_another_record_is_an_alarm(
    kafka_settings: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replica(kafka_settings, tmp_path / "one", limits=limits("one")) as ledger:
        await publish(ledger, 30)
        async with whole_worker(kafka_settings, tmp_path / "worker", report_interval_s=1.0) as worker:
            await until(lambda: is_digested(kafka_settings, ledger, "one"))
            assert worker.watcher.alarms_count == 0
    # What a replica would hold whose log had another record at that place.
    store = RocksViewStore(tmp_path / "one" / "view")
    forged = {partition: _forged(store, partition) for partition in PARTITIONS}
    store.close()
    assert all(forged.values())
    async with whole_worker(kafka_settings, tmp_path / "worker", report_interval_s=1.0) as worker:
        monkeypatch.setattr("ledger.replica.is_anchor", lambda meta, record: True)
        async with replica(kafka_settings, tmp_path / "one", limits=limits("one")):
            await until(lambda: worker.watcher.alarms_count >= len(PARTITIONS))
            assert "have folded different records" in worker.watcher.last_alarm


def _forged(store: RocksViewStore, partition: Partition) -> bool:
    """Change the head of a partition's hash chain."""
    rows = Rows(store, partition)
    chain = rows.meta.chain
    key = partition_prefix(partition) + Kind.META
    row = store.get(key)
    assert row is not None
    store.write({key: row.replace(chain, bytes(32), 1)})
    return chain in row


async def test_silent_reporter_is_shown_and_can_be_forgotten_and_a_living_one_comes_back(
    kafka_settings: KafkaSettings, tmp_path: Path, run: Run
) -> None:
    words = ["--bootstrap", kafka_settings.bootstrap, "--prefix", kafka_settings.prefix]

    async def ask(*command: str) -> tuple[int, dict[str, dict[str, object]]]:
        ran = await asyncio.to_thread(run, "process", *command, "--json", *words)
        listed = await asyncio.to_thread(run, "process", "reporters", "--json", *words)
        return ran.code, {one["name"]: one for one in listed.json()["reporters"]}

    async with replica(kafka_settings, tmp_path / "one", limits=limits("one")) as ledger:
        async with replica(kafka_settings, tmp_path / "two", limits=limits("two")):
            await publish(ledger, 10)
            await until(lambda: is_reported(kafka_settings, "one", "two"))
        code, listed = await ask("reporters")
        assert (code, {name: one["silent"] for name, one in listed.items()}) == (0, {"one": False, "two": False})
        # Three intervals, and a little.
        await asyncio.sleep(6.5)
        code, listed = await ask("reporters")
        assert (code, {name: one["silent"] for name, one in listed.items()}) == (4, {"one": False, "two": True})
        code, _ = await ask("forget-reporter", "nobody", "--yes")
        assert code == 2
        code, listed = await ask("forget-reporter", "two", "--yes")
        assert (code, set(listed)) == (0, {"one"})
        # Whoever is vouched for wrongly says so himself, by his next report.
        code, _ = await ask("forget-reporter", str(listed["one"]["id"])[:8], "--yes")
        assert code == 0
        await until(lambda: is_reported(kafka_settings, "one"))


async def test_reporter_of_a_later_release_is_shown_and_can_be_forgotten(
    kafka_settings: KafkaSettings, run: Run
) -> None:
    words = ["--bootstrap", kafka_settings.bootstrap, "--prefix", kafka_settings.prefix]
    newer = bytes(range(16))
    topic = KafkaReports(kafka_settings)
    await topic.write(P0, newer, b"\x02of a later release", timeout_s=10.0)
    await topic.close()
    listed = await asyncio.to_thread(run, "process", "reporters", *words)
    assert (listed.code, "later release" in listed.out, newer.hex()[:8] in listed.out) == (4, True, True)
    status = await asyncio.to_thread(run, "process", "status", "--json", *words)
    assert status.json()["later_format"] == [newer.hex()]
    forgotten = await asyncio.to_thread(run, "process", "forget-reporter", newer.hex()[:8], "--yes", "--json", *words)
    assert (forgotten.code, forgotten.json()) == (0, {"forgotten": newer.hex(), "partitions": [0]})
    listed = await asyncio.to_thread(run, "process", "reporters", "--json", *words)
    assert (listed.code, listed.json()["later_format"]) == (0, [])


async def is_reported(settings: KafkaSettings, *names: str) -> bool:
    for name in names:
        if set(await heard(settings, name)) != set(PARTITIONS):
            return False
    return True


async def test_replica_serves_on_without_the_topic_and_reports_once_it_is_there(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    async with admin(kafka_settings) as client:
        await client.delete_topics([kafka_settings.topic(REPORTS)])
    await asyncio.sleep(1)
    with structlog.testing.capture_logs() as logs:
        async with replica(kafka_settings, tmp_path / "one", limits=limits("one")) as ledger:
            await publish(ledger, 10)
            await until(lambda: any(log["event"] == "reports_unavailable" for log in logs))
            await asyncio.sleep(6)
            assert sum(log["event"] == "reports_unavailable" for log in logs) == 1, "it is said once"
            assert await create_topics(kafka_settings, partition_count=PARTITION_COUNT, replication_factor=1)
            await publish(ledger, 10)
            await until(lambda: is_reported(kafka_settings, "one"))


async def test_standing_at_an_aligned_place_is_the_same_however_it_was_reached(
    kafka_settings: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter.Reporter, "aligned", _remembering := _Remembering())
    async with replica(kafka_settings, tmp_path / "one", limits=limits("one")) as ledger:
        await publish(ledger, 200)
        await ledger.confirm()
        monkeypatch.setattr(replica_module, "FOLD_BATCH_RECORDS_MAX", 7)
        async with replica(kafka_settings, tmp_path / "two", limits=limits("two")) as other:
            await other.confirm()
    assert len(_remembering.places) >= 6
    assert all(len(metas) == 2 and len(set(metas)) == 1 for metas in _remembering.places.values())


class _Remembering:
    """Stands in for ``Reporter.aligned``."""

    def __init__(self) -> None:
        self.places: dict[tuple[Partition, int], list[object]] = {}

    def __call__(self, partition: Partition, standing: Standing) -> None:
        meta = standing.meta
        self.places.setdefault((partition, meta.anchor_offset), []).append((meta.chain, meta.position, meta.clock_ms))
