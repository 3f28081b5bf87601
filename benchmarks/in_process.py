"""Figures of the library in this process: commits, look-ups, misses, and rebuilding the view from the log."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from benchmarks.measure import Figure, timed
from benchmarks.workload import Load
from ledger import codec
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.adapters.kafka_topics import create_topics
from ledger.alias import AliasKey, record_key
from ledger.answer import Found, Missing
from ledger.commit import turn_event
from ledger.composition import open_embedded, open_kafka
from ledger.ledger import Ledger
from ledger.policy import Policy
from ledger.turn import Selector, SelectorKind, Turn

ALIAS_KEY = AliasKey(b"benchmark-alias-key-of-32-bytes!")


@asynccontextmanager
async def embedded(directory: Path) -> AsyncIterator[Ledger]:
    """Open an embedded ledger."""
    async with await open_embedded(directory) as ledger:
        yield ledger


async def prepare_kafka(bootstrap: str, prefix: str) -> KafkaSettings:
    """Create the topics of one ledger."""
    settings = KafkaSettings(bootstrap=bootstrap, prefix=prefix)
    await create_topics(settings, replication_factor=1)
    return settings


@asynccontextmanager
async def kafka(settings: KafkaSettings, directory: Path) -> AsyncIterator[Ledger]:
    """Open a replica on Kafka."""
    async with await open_kafka(settings, directory, ALIAS_KEY, format_policy=Policy()) as ledger:
        yield ledger


async def commits(ledger: Ledger, where: str, *, count: int) -> list[Figure]:
    """Measure commits: native and portable, one at a time and 64 at once."""
    load = Load(seed=1)
    figures = []
    for name, make in (("commit native", load.native), ("commit portable, 4 kB", load.portable)):
        for concurrency in (1, 64):
            number_of_calls = count // 10 if concurrency == 1 else count
            figures.append(
                await timed(
                    f"{name}, {concurrency} at once",
                    where,
                    _committing(ledger, make),
                    count=number_of_calls,
                    concurrency=concurrency,
                    warm_up=number_of_calls // 10,
                )
            )
    return figures


def _committing(ledger: Ledger, make: Callable[[], Turn]) -> Callable[[int], Awaitable[object]]:
    async def call(_: int) -> None:
        verdict = await ledger.committer.commit(make())
        assert verdict.accepted, verdict

    return call


async def reads(ledger: Ledger, where: str, *, count: int) -> list[Figure]:
    """Measure reads of what ``commits`` has written: a continuation look-up, a strong one, and a strong miss."""
    load = Load(seed=1)
    known = count // 10

    async def continuation(number: int) -> None:
        assert isinstance(await ledger.reader.load(load.selector(number % known)), Found)

    async def strong(number: int) -> None:
        assert isinstance(await ledger.reader.load(load.selector(number % known), strong=True), Found)

    async def miss(number: int) -> None:
        selector = Selector(scope=load.scope(number), kind=SelectorKind.RESPONSE, id=f"resp_unknown_{number}")
        assert isinstance(await ledger.reader.load(selector), Missing)

    return [
        await timed("look-up, continuation", where, continuation, count=count * 2, concurrency=1, warm_up=count // 5),
        await timed("look-up, strong", where, strong, count=count // 10, concurrency=1, warm_up=count // 100),
        await timed("miss, strong", where, miss, count=count // 10, concurrency=1, warm_up=count // 100),
        await timed("miss, strong, 64 at once", where, miss, count=count, concurrency=64, warm_up=count // 100),
    ]


async def fill(ledger: Ledger, *, events: int) -> None:
    """Append turns straight to the log, 256 at once, so that there is something to rebuild from."""
    load = Load(seed=2)
    alias = ledger.alias_key

    async def append(_: int) -> None:
        turn = load.native()
        now_ms = ledger.now_ms()
        event = turn_event(alias, turn, None, now_ms, ledger.committer.not_after_ms(turn.begun_at_ms))
        partition = ledger.committer.partition(turn.scope)
        await ledger.log.append(
            partition, record_key(turn.scope.namespace, event.response), codec.encode(event), timeout_s=30.0
        )

    await timed("fill", "", append, count=events, concurrency=256, warm_up=0)
    await ledger.confirm(timeout_s=120.0)


async def rebuild(
    open_again: Callable[[Path], AbstractAsyncContextManager[Ledger]], directory: Path, where: str
) -> Figure:
    """Measure how fast an empty view in ``directory`` folds the whole log, opening it included."""
    began_s = time.perf_counter()
    async with open_again(directory) as ledger:
        elapsed_s = time.perf_counter() - began_s
        folded = sum(int(state.rows.position) for state in ledger.replica.states().values())
    return Figure(name="rebuild, events", where=where, count=folded, rate_per_s=folded / elapsed_s)
