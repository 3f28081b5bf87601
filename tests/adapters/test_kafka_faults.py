"""What the Kafka log answers while a broker is paused, killed or deposed, and that it heals without a restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from broker.launcher import Cluster
from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_content import KafkaContentStore
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.adapters.memory import MemoryViewStore
from ledger.content import ContentRef
from ledger.errors import Unavailable
from ledger.log import AppendUncertain
from ledger.turn import Position
from tests.adapters.healing import HEALED_S, topics_on, when_healed
from tests.adapters.kafka_world import P0, TIMEOUT_S, append, read_to


@pytest.fixture
def paused(fragile_cluster: Cluster) -> Iterator[Callable[[], None]]:
    """Pause the broker when called; it runs again after the test."""
    yield lambda: fragile_cluster.pause(0)
    fragile_cluster.resume(0)
    fragile_cluster.wait_until_ready()


async def test_append_to_a_paused_broker_is_uncertain_at_its_deadline_and_lands_once(
    fragile_cluster: Cluster, paused: Callable[[], None]
) -> None:
    log = KafkaLog(await topics_on(fragile_cluster))
    await append(log, 1)
    paused()
    began = time.monotonic()
    with pytest.raises(AppendUncertain):
        await log.append(P0, b"key", b"unanswered", timeout_s=0.5)
    # The first batch is still on its way, so this one never left.
    with pytest.raises(Unavailable) as unsent:
        await log.append(P0, b"key", b"unsent", timeout_s=0.5)
    assert unsent.value.reason == "broker"
    with pytest.raises(Unavailable):
        await log.end(P0, timeout_s=0.5)
    assert 1.5 <= time.monotonic() - began < HEALED_S
    fragile_cluster.resume(0)
    last = await when_healed(lambda: log.append(P0, b"key", b"last", timeout_s=2.0))
    assert await when_healed(lambda: log.end(P0, timeout_s=2.0)) == last.offset + 1
    tail = await log.tail({P0: Position(0)})
    records, _ = await read_to(tail, P0, Position(last.offset + 1))
    values = [record.value for record in records]
    # "last" may be there twice, if its first attempt was uncertain.
    assert (values.count(b"unanswered"), values.count(b"unsent"), values[-1]) == (1, 0, b"last")
    await log.close()


async def test_log_is_closed_in_bounded_time_while_the_broker_is_paused(
    fragile_cluster: Cluster, paused: Callable[[], None]
) -> None:
    log = KafkaLog(await topics_on(fragile_cluster))
    await append(log, 1)
    tail = await log.tail({P0: Position(0)})
    await tail.next(TIMEOUT_S)
    paused()
    waiting = [asyncio.create_task(log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S)) for _ in range(3)]
    await asyncio.sleep(0.1)
    async with asyncio.timeout(HEALED_S):
        await log.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, AppendUncertain | Unavailable) for result in results)


async def test_log_works_again_after_its_broker_was_killed_and_started(fragile_cluster: Cluster) -> None:
    log = KafkaLog(await topics_on(fragile_cluster))
    await append(log, 2)
    tail = await log.tail({P0: Position(0)})
    await read_to(tail, P0, Position(2))
    fragile_cluster.kill(0)
    with pytest.raises((AppendUncertain, Unavailable)):
        await log.append(P0, b"key", b"lost", timeout_s=0.5)
    with pytest.raises(Unavailable):
        await log.end(P0, timeout_s=0.5)
    with pytest.raises(Unavailable):
        await log.manifest(timeout_s=0.5)
    await asyncio.to_thread(fragile_cluster.restart, 0)
    appended = await when_healed(lambda: log.append(P0, b"key", b"after", timeout_s=2.0))
    assert await when_healed(lambda: log.end(P0, timeout_s=2.0)) == appended.offset + 1
    async with asyncio.timeout(HEALED_S):
        records, _ = await read_to(tail, P0, Position(appended.offset + 1))
    assert records[-1].value == b"after"
    await log.close()


async def test_content_copy_goes_on_after_its_broker_was_paused(
    fragile_cluster: Cluster, paused: Callable[[], None]
) -> None:
    settings = await topics_on(fragile_cluster)
    writer, reader = KafkaContentStore(settings, MemoryViewStore()), KafkaContentStore(settings, MemoryViewStore())
    await writer.start()
    await reader.start()

    async def put(content_id: bytes, timeout_s: float) -> ContentRef:
        return await writer.put(P0, b"s" * 20, content_id, [b"chunk"], timeout_s=timeout_s)

    before = await put(b"a" * 16, TIMEOUT_S)
    assert await reader.get(P0, before, timeout_s=TIMEOUT_S) == [b"chunk"]
    paused()
    with pytest.raises(Unavailable):
        await put(b"b" * 16, 0.5)
    # What the copy has is served without the broker.
    assert await reader.get(P0, before, timeout_s=0.5) == [b"chunk"]
    fragile_cluster.resume(0)
    after = await when_healed(lambda: put(b"c" * 16, 2.0))
    assert await reader.get(P0, after, timeout_s=HEALED_S) == [b"chunk"]
    await asyncio.gather(writer.close(), reader.close())


async def test_unreachable_broker_is_unavailable_and_not_uncertain() -> None:
    # Nothing listens at port 1 of the loopback interface.
    log = KafkaLog(KafkaSettings(bootstrap="127.0.0.1:1"))
    with pytest.raises(Unavailable) as unsent:
        await log.append(P0, b"key", b"value", timeout_s=0.3)
    assert unsent.value.reason == "broker"
    with pytest.raises(Unavailable):
        await log.end(P0, timeout_s=0.3)
    with pytest.raises(Unavailable):
        await log.tail({P0: Position(0)})
    await log.close()
