"""Rows of partitions that moved to another worker: kept for a while, then removed, never under a lane that is back."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from ledger.adapters.kafka_settings import KafkaSettings
from ledger.turn import Partition
from processors import leftovers
from processors.leftovers import REMOVED, Leftovers, rows_directory
from processors.materialize import Materializer
from tests.adapters.kafka_world import P0, P1
from tests.processors.world import Assigned, caught_up, publish, replica, reported, until, whole_worker, worker

BOTH = frozenset({P0, P1})


class Looking:
    """Leftovers of a worker, and who was withdrawn."""

    def __init__(self, directory: Path, service: Materializer) -> None:
        self.withdrawn: list[Partition] = []
        self.leftovers = Leftovers(
            directory, partition_count=2, held=service.held, discard=service.discard, withdraw=self._withdraw
        )

    async def _withdraw(self, partition: Partition) -> None:
        self.withdrawn.append(partition)


def source(service: Materializer, partition: Partition) -> str:
    """Return where the rows of a running lane came from, or an empty string."""
    return service.lanes()[partition].restored_from if partition in service.lanes() else ""


async def test_rows_of_a_partition_that_moved_away_are_removed_after_a_while_and_not_before(
    kafka_settings: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "UNASSIGNED_S", 0.5)
    shared, directory = Assigned(*BOTH), tmp_path / "worker"
    async with (
        replica(kafka_settings, tmp_path / "replica") as ledger,
        worker(kafka_settings, directory, join=shared.join) as service,
    ):
        await publish(ledger, 20)
        await until(lambda: caught_up(service, ledger))
        looking = Looking(directory, service)
        for _ in range(3):
            # It comes back in time, with its rows.
            shared.assign(frozenset({P0}))
            await until(lambda: P1 not in service.held())
            await looking.leftovers.look()
            shared.assign(BOTH)
            await until(lambda: source(service, P1) == "local")
            await looking.leftovers.look()
        shared.assign(frozenset({P0}))
        await until(lambda: P1 not in service.held())
        await looking.leftovers.look()
        assert (rows_directory(directory, P1).exists(), looking.withdrawn) == (True, [])
        await asyncio.sleep(0.6)
        await looking.leftovers.look()
        assert (rows_directory(directory, P1).exists(), looking.withdrawn) == (False, [P1])
        assert rows_directory(directory, P0).exists()
        assert not list(directory.glob(f"*{REMOVED}"))
        shared.assign(BOTH)
        await until(lambda: source(service, P1) == "tables")


async def test_partition_that_comes_back_while_its_rows_are_removed_is_opened_after_that(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    shared, directory = Assigned(*BOTH), tmp_path / "worker"

    def remove() -> None:
        time.sleep(1)
        shutil.rmtree(rows_directory(directory, P1))

    async with (
        replica(kafka_settings, tmp_path / "replica") as ledger,
        worker(kafka_settings, directory, join=shared.join) as service,
    ):
        await publish(ledger, 20)
        await until(lambda: caught_up(service, ledger))
        assert not await service.discard(P1, remove), "it is this worker's"
        shared.assign(frozenset({P0}))
        await until(lambda: P1 not in service.held())
        removing = asyncio.create_task(service.discard(P1, remove))
        await asyncio.sleep(0.3)
        shared.assign(BOTH)
        assert await removing
        await until(lambda: source(service, P1) == "tables")
        await publish(ledger, 20)
        await until(lambda: caught_up(service, ledger))


async def test_rows_that_a_worker_finds_at_its_start_and_does_not_get_are_removed_and_withdrawn(
    kafka_settings: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "UNASSIGNED_S", 1.0)
    given = {"report_interval_s": 1.0, "sweep_interval_s": 1.0}
    async with replica(kafka_settings, tmp_path / "replica") as ledger:
        await publish(ledger, 20)
        async with whole_worker(kafka_settings, tmp_path / "one", reporter_name="one", **given):
            await until(lambda: is_held(kafka_settings, one=BOTH))
        async with whole_worker(kafka_settings, tmp_path / "two", reporter_name="two", **given) as two:
            await until(lambda: is_held(kafka_settings, one=BOTH, two=BOTH))
            async with whole_worker(kafka_settings, tmp_path / "one", reporter_name="one", **given) as one:
                # Each has one of the two now, and removes the other.
                await until(lambda: one.leftovers.removed_count == two.leftovers.removed_count == 1)
                mine, theirs = one.materializer.held(), two.materializer.held()
                assert (len(mine), mine | theirs) == (1, set(BOTH))
                await until(lambda: is_held(kafka_settings, one=mine, two=theirs))
                found = {path.name for path in (tmp_path / "one").glob("partition-*")}
                assert found == {rows_directory(tmp_path, number).name for number in mine}


class Alone:
    """Leftovers of a worker that has no partition."""

    def __init__(self, directory: Path) -> None:
        self.withdrawn: list[Partition] = []
        self.held: set[Partition] = set()
        self.leftovers = Leftovers(
            directory, partition_count=2, held=lambda: self.held, discard=self._discard, withdraw=self._withdraw
        )

    async def _discard(self, partition: Partition, remove: Callable[[], None]) -> bool:
        await asyncio.to_thread(remove)
        return True

    async def _withdraw(self, partition: Partition) -> None:
        self.withdrawn.append(partition)


def removed_directory(directory: Path, partition: Partition) -> Path:
    return directory / (rows_directory(directory, partition).name + REMOVED)


async def test_removal_that_a_crash_cut_off_is_finished_before_the_partition_is_withdrawn(tmp_path: Path) -> None:
    half = removed_directory(tmp_path, P1)
    half.mkdir()
    (half / "rows").write_bytes(b"erased")
    alone = Alone(tmp_path)
    assert alone.leftovers.is_removing(P1)
    await alone.leftovers.look()
    assert (half.exists(), sorted(alone.withdrawn)) == (False, [P0, P1])
    assert not alone.leftovers.is_removing(P1)


async def test_removal_that_fails_is_tried_again_at_each_look_and_not_withdrawn_until_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "UNASSIGNED_S", 0.0)
    rows_directory(tmp_path, P1).mkdir()
    rmtree = shutil.rmtree

    def fail(path: Path, *, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(5, "Input/output error", str(path))

    alone = Alone(tmp_path)
    monkeypatch.setattr(shutil, "rmtree", fail)
    with pytest.raises(OSError, match="Input/output"):
        await alone.leftovers.look()
    await alone.leftovers.look()
    assert (removed_directory(tmp_path, P1).exists(), alone.withdrawn) == (True, [P0])
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    await alone.leftovers.look()
    assert (removed_directory(tmp_path, P1).exists(), alone.withdrawn) == (False, [P0, P1])


async def is_held(settings: KafkaSettings, **expected: Collection[Partition]) -> bool:
    """Return whether the workers of these names say that they hold just these partitions."""
    found: dict[str, set[Partition]] = {name: set() for name in expected}
    for one in await reported(settings):
        for heard in one.watch.heard.values():
            if heard.report.name in found:
                found[heard.report.name].add(one.partition)
    return all(found[name] == set(partitions) for name, partitions in expected.items())
