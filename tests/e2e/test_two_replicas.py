"""Two service processes on a real broker: what one acknowledges the other answers, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path

import pytest

from ledger.adapters.http import LedgerClient
from ledger.adapters.kafka_settings import TURNS
from ledger.answer import Found, Missing
from ledger.composition import open_kafka
from ledger.errors import RetryableError, Unavailable
from ledger.ledger import wall_clock_ms
from ledger.settings import LedgerSettings
from ledger.table import folded_rows
from ledger.turn import Partition
from tests.adapters.kafka_world import foreign_transactions
from tests.e2e.replicas import Deployment, deploy, response, running, turn

TURN_COUNT = 1_000
KILLED_AFTER = 300
"""Acknowledged turns after which both processes are killed, while more are under way."""


async def test_what_one_replica_acknowledges_the_other_answers_at_once(kafka_bootstrap: str, tmp_path: Path) -> None:
    deployment = await deploy(kafka_bootstrap, tmp_path)
    async with running(deployment, "one", "two") as (first, second), first.client() as a, second.client() as b:
        missed = []

        async def worker(chain: int) -> None:
            previous = None
            for number in range(chain, TURN_COUNT, 8):
                writer, reader = (a, b) if number // 8 % 2 == 0 else (b, a)
                verdict = await writer.publish(turn(number, previous=previous, begun_at_ms=wall_clock_ms()))
                assert verdict.accepted
                if not isinstance(await reader.load(response(number)), Found):
                    missed.append(number)
                previous = number

        await asyncio.gather(*(worker(chain) for chain in range(8)))
        assert missed == []


async def test_a_history_continued_on_alternating_replicas_is_whole(kafka_bootstrap: str, tmp_path: Path) -> None:
    deployment = await deploy(kafka_bootstrap, tmp_path)
    async with running(deployment, "one", "two") as (first, second), first.client() as a, second.client() as b:
        for number in range(20):
            writer, reader = (a, b) if number % 2 == 0 else (b, a)
            previous = number - 1 if number else None
            await writer.publish(turn(number, portable=True, previous=previous, begun_at_ms=wall_clock_ms()))
            found = await reader.history(response(number))
            assert isinstance(found, Found)
            assert found.history is not None
            assert found.history.items() == [{"n": n * sign} for n in range(number + 1) for sign in (1, -1)]


async def test_both_killed_under_load_lose_nothing_acknowledged(kafka_bootstrap: str, tmp_path: Path) -> None:
    deployment = await deploy(kafka_bootstrap, tmp_path)
    acknowledged: list[int] = []
    numbers = itertools.count()
    enough = asyncio.Event()

    async def publish_forever(client: LedgerClient) -> None:
        with contextlib.suppress(RetryableError):
            for number in numbers:
                if (await client.publish(turn(number, portable=True, begun_at_ms=wall_clock_ms()))).accepted:
                    acknowledged.append(number)
                if len(acknowledged) >= KILLED_AFTER:
                    enough.set()

    async with running(deployment, "one", "two") as services:
        async with services[0].client() as a, services[1].client() as b:
            routers = [asyncio.create_task(publish_forever(client)) for client in (a, b) for _ in range(8)]
            await enough.wait()
            await asyncio.gather(*(service.kill() for service in services))
            await asyncio.gather(*routers)
        await asyncio.gather(*(service.start() for service in services))
        for service in services:
            async with service.client() as client:
                answers = await asyncio.gather(*(client.history(response(number)) for number in acknowledged))
                lost = [n for n, answer in zip(acknowledged, answers, strict=True) if not isinstance(answer, Found)]
                assert lost == []
        assert [await service.stop() for service in services] == [0, 0]
        await assert_rows_equal_a_rebuild(deployment, [service.directory for service in services])


async def assert_rows_equal_a_rebuild(deployment: Deployment, directories: list[Path]) -> None:
    """Open each replica's rows again, and an empty one beside them: they must be equal to the byte."""
    kafka, key = deployment.kafka, deployment.alias_key
    rows = []
    for directory in (*directories, directories[0].parent / "rebuilt"):
        async with await open_kafka(kafka, directory, key) as ledger:
            await ledger.confirm()
            count = ledger.replica.partition_count
            rows.append([list(folded_rows(ledger.store, Partition(number))) for number in range(count)])
    assert rows[0] == rows[-1]
    assert rows[1] == rows[-1]


async def test_a_view_that_is_held_back_says_unavailable_and_never_missing(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    deployment = await deploy(kafka_bootstrap, tmp_path, partition_count=1)
    settings = LedgerSettings(read_timeout_s=1.0, commit_timeout_s=1.0)
    async with await open_kafka(deployment.kafka, tmp_path / "one", deployment.alias_key, settings=settings) as ledger:
        # An open transaction of a foreign producer holds a read_committed tail back, while the log goes on.
        async with foreign_transactions(deployment.kafka) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(deployment.kafka.topic(TURNS), b"not an event", partition=0)
            with contextlib.suppress(RetryableError):
                await ledger.committer.commit(turn(1, begun_at_ms=wall_clock_ms()))
            for strong in (False, True):
                with pytest.raises(Unavailable, match="lagging"):
                    await ledger.reader.load(response(1), strong=strong)
            await producer.abort_transaction()
        assert isinstance(await ledger.reader.load(response(1)), Found)
        assert isinstance(await ledger.reader.load(response(2)), Missing)
