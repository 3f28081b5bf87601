"""A policy is one policy: changes that meet, or were interrupted, end the same in every partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ledger import codec
from ledger.adapters.memory import MemoryContents, MemoryContentStore, MemoryLog, MemoryTopic, MemoryViewStore
from ledger.alias import CONTROL_KEY, AliasKey
from ledger.event import PolicyChanged
from ledger.formatting import PolicyConflict
from ledger.ledger import Ledger, wall_clock_ms
from ledger.policy import Policy
from ledger.turn import Partition

PARTITION_COUNT = 4
FIRST, SECOND = Policy(active_ttl_ms=60_000), Policy(active_ttl_ms=120_000)


@asynccontextmanager
async def replicas(count: int) -> AsyncIterator[list[Ledger]]:
    topic, contents = MemoryTopic(PARTITION_COUNT, log_id="log"), MemoryContents()
    opened: list[Ledger] = []
    try:
        for _ in range(count):
            ledger = Ledger(
                MemoryLog(topic, now_ms=wall_clock_ms),
                MemoryContentStore(contents, now_ms=wall_clock_ms),
                MemoryViewStore(),
                AliasKey(b"k" * 32),
            )
            await ledger.start(format_policy=Policy())
            opened.append(ledger)
        yield opened
    finally:
        for ledger in opened:
            await ledger.close()


def policies(ledger: Ledger) -> set[tuple[int, Policy]]:
    return {(state.rows.meta.generation, state.rows.meta.policy) for state in ledger.replica.states().values()}


async def test_two_changes_at_once_end_with_one_policy_everywhere() -> None:
    async with replicas(2) as (one, two):
        results = await asyncio.gather(one.set_policy(FIRST), two.set_policy(SECOND), return_exceptions=True)
        assert all(isinstance(result, int | PolicyConflict) for result in results), results
        assert any(isinstance(result, int) for result in results)
        await one.confirm()
        assert len(policies(one)) == 1


async def test_interrupted_change_is_finished_by_running_it_again() -> None:
    async with replicas(1) as (ledger,):
        value = codec.encode(PolicyChanged(generation=1, written_at_ms=wall_clock_ms(), policy=FIRST))
        await ledger.log.append(Partition(0), CONTROL_KEY, value, timeout_s=1.0)
        await ledger.confirm()
        assert len(policies(ledger)) == 2
        assert await ledger.set_policy(FIRST) == 1
        assert policies(ledger) == {(1, FIRST)}


async def test_change_that_is_in_force_already_writes_nothing() -> None:
    async with replicas(1) as (ledger,):
        generation = await ledger.set_policy(FIRST)
        end = await ledger.log.end(Partition(0), timeout_s=1.0)
        assert await ledger.set_policy(FIRST) == generation
        assert await ledger.log.end(Partition(0), timeout_s=1.0) == end


@pytest.mark.parametrize("partition", [0, 3])
async def test_partitions_split_between_two_changes_are_joined_by_the_next(partition: int) -> None:
    async with replicas(1) as (ledger,):
        for number in range(PARTITION_COUNT):
            policy = SECOND if number == partition else FIRST
            value = codec.encode(PolicyChanged(generation=1, written_at_ms=wall_clock_ms(), policy=policy))
            await ledger.log.append(Partition(number), CONTROL_KEY, value, timeout_s=1.0)
        assert await ledger.set_policy(FIRST) == 2
        assert policies(ledger) == {(2, FIRST)}
