"""What the Kafka content store does with its topic and its copy: null records, restarts, copies that are too old."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
import pytest

from ledger.adapters.kafka_content import DELETE_RETENTION_DEFAULT_MS, KafkaContentStore
from ledger.adapters.kafka_copy import ContentCopy
from ledger.adapters.kafka_leader import KafkaLeaders
from ledger.adapters.kafka_settings import CONTENT, KafkaSettings
from ledger.adapters.kafka_tail import KafkaTail
from ledger.adapters.kafka_topics import DELETE_RETENTION_MS
from ledger.adapters.memory import MemoryViewStore
from ledger.content import ContentRef, chunk_key
from ledger.errors import ContentLost, NotHeld, Unavailable
from ledger.ledger import wall_clock_ms
from ledger.turn import Partition, Position
from tests.adapters.kafka_world import P0, P1, TIMEOUT_S, read_to, recreate

SCOPE = b"s" * 20
ID, OTHER_ID = b"i" * 16, b"j" * 16
CHUNKS = [b"first", b"second"]


@asynccontextmanager
async def contents(
    settings: KafkaSettings,
    store: MemoryViewStore,
    now_ms: Callable[[], int] = wall_clock_ms,
    *,
    partitions: frozenset[Partition] | None = None,
) -> AsyncIterator[KafkaContentStore]:
    content = KafkaContentStore(settings, store, partitions=partitions, now_ms=now_ms)
    await content.start()
    try:
        yield content
    finally:
        await content.close()


async def put(content: KafkaContentStore, content_id: bytes = ID, partition: Partition = P0) -> ContentRef:
    return await content.put(partition, SCOPE, content_id, CHUNKS, timeout_s=TIMEOUT_S)


async def get(content: KafkaContentStore, ref: ContentRef, partition: Partition = P0) -> list[bytes]:
    return await content.get(partition, ref, timeout_s=TIMEOUT_S)


async def caught_up(content: KafkaContentStore) -> None:
    """Return when the copy has passed everything that is in partition 0 now."""
    await get(content, await put(content, b"c" * 16))


def row(content_id: bytes, chunk: int, partition: Partition = P0) -> bytes:
    return partition.to_bytes(2, "big") + b"x" + chunk_key(SCOPE, content_id, chunk)


async def test_partition_that_is_not_held_is_neither_copied_nor_written_to(kafka_settings: KafkaSettings) -> None:
    store = MemoryViewStore()
    async with contents(kafka_settings, MemoryViewStore()) as everything:
        ref = await put(everything, ID, P0)
        async with contents(kafka_settings, store, partitions=frozenset({P1})) as half:
            other = await put(half, OTHER_ID, P1)
            assert await get(half, other, P1) == CHUNKS
            for call in (put(half), get(half, ref), half.erase(P0, [ref], timeout_s=TIMEOUT_S)):
                with pytest.raises(NotHeld) as refused:
                    await call
                assert refused.value.partition == P0
            assert list(half.status().positions) == [P1]
        assert await get(everything, ref) == CHUNKS
        assert {key[:2] for key, _ in store.scan(b"", b"\xff" * 3)} == {b"\0\1"}


async def test_content_lies_in_the_partition_of_its_principal(kafka_settings: KafkaSettings) -> None:
    async with contents(kafka_settings, MemoryViewStore()) as content:
        ref = await put(content, partition=P1)
        assert await get(content, ref, P1) == CHUNKS
        with pytest.raises(Unavailable) as lag:
            await content.get(P0, ref, timeout_s=0.1)
        assert lag.value.reason == "content_lag"


async def test_other_replica_reads_what_one_wrote(kafka_settings: KafkaSettings) -> None:
    async with (
        contents(kafka_settings, MemoryViewStore()) as writer,
        contents(kafka_settings, MemoryViewStore()) as reader,
    ):
        ref = await put(writer)
        assert await get(reader, ref) == CHUNKS


async def test_erasure_is_a_null_record_per_chunk(kafka_settings: KafkaSettings) -> None:
    store = MemoryViewStore()
    async with contents(kafka_settings, store) as content:
        ref = await put(content)
        await content.erase(P0, [ref], timeout_s=TIMEOUT_S)
        await caught_up(content)
        with pytest.raises(ContentLost):
            await get(content, ref)
        assert [store.get(row(ID, chunk)) for chunk in (0, 1)] == [None, None]
    topic = kafka_settings.topic(CONTENT)
    leaders = KafkaLeaders(kafka_settings, topic)
    tail = await KafkaTail.start(kafka_settings, topic, {P0: Position(0)}, leaders)
    records, _ = await read_to(tail, P0, Position(6))
    keys = [chunk_key(SCOPE, ID, chunk) for chunk in (0, 1)]
    assert [(record.key, record.value) for record in records[:4]] == [
        *zip(keys, CHUNKS, strict=True),
        *((key, None) for key in keys),
    ]
    await tail.close()
    await leaders.close()


async def test_restart_goes_on_at_the_stored_position(kafka_settings: KafkaSettings) -> None:
    store = MemoryViewStore()
    async with contents(kafka_settings, store) as content:
        first = await put(content)
        await get(content, first)
    # Were the topic read again from its beginning, these rows would come back.
    store.write({row(ID, 0): None, row(ID, 1): None})
    async with contents(kafka_settings, store) as content:
        second = await put(content, OTHER_ID)
        assert await get(content, second) == CHUNKS
        with pytest.raises(ContentLost):
            await get(content, first)
        assert content.status().rebuilt_count == 0
        assert content.status().problem is None


@pytest.mark.parametrize(("off_ms", "rebuilt"), [(DELETE_RETENTION_MS // 2 - 60_000, 0), (DELETE_RETENTION_MS // 2, 1)])
async def test_copy_that_was_off_for_too_long_is_made_again(
    kafka_settings: KafkaSettings, off_ms: int, rebuilt: int
) -> None:
    store = MemoryViewStore()
    now_ms = 1_700_000_000_000
    async with contents(kafka_settings, store, lambda: now_ms) as content:
        kept = await put(content)
        await caught_up(content)
    # The chunk of a content whose erasure was compacted away while this replica was off.
    store.write({row(OTHER_ID, 0): b"erased"})
    async with contents(kafka_settings, store, lambda: now_ms + off_ms) as content:
        assert await get(content, kept) == CHUNKS
        assert content.status().rebuilt_count == rebuilt
        assert (store.get(row(OTHER_ID, 0)) is None) == bool(rebuilt)


async def test_copy_that_falls_too_far_behind_serves_nothing(kafka_settings: KafkaSettings) -> None:
    now_ms = 1_700_000_000_000
    async with contents(kafka_settings, MemoryViewStore(), lambda: now_ms) as content:
        ref = await put(content)
        assert await get(content, ref) == CHUNKS
        now_ms += DELETE_RETENTION_MS
        with pytest.raises(Unavailable) as lag:
            await get(content, ref)
        assert lag.value.reason == "content_lag"
        # The next record finds the copy too old, and it is made again.
        await put(content, OTHER_ID)
        async with asyncio.timeout(TIMEOUT_S):
            while content.status().rebuilt_count == 0:  # noqa: ASYNC110 - the status is what is tested
                await asyncio.sleep(0.01)
        assert await get(content, ref) == CHUNKS


class LostStore(MemoryViewStore):
    """Keeps what a crash leaves behind when the copy of a partition was given up and is not wiped yet."""

    left: MemoryViewStore | None = None

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        super().write(changes)
        is_given_up = changes.get(P0.to_bytes(2, "big") + b"y", b"") is None
        if self.left is None and is_given_up and self.get(row(ID, 0)) is not None:
            self.left = self.copy()


async def test_copy_that_was_given_up_before_a_crash_is_not_purged_until_a_purge_took_its_chunks_off_the_disk(
    kafka_settings: KafkaSettings,
) -> None:
    store, now_ms = LostStore(), 1_700_000_000_000
    async with contents(kafka_settings, store, lambda: now_ms) as content:
        await get(content, await put(content))
        now_ms += DELETE_RETENTION_MS
        await put(content, OTHER_ID)
        async with asyncio.timeout(TIMEOUT_S):
            while content.status().rebuilt_count == 0:  # noqa: ASYNC110 - the status is what is tested
                await asyncio.sleep(0.01)
    left = store.left
    assert left is not None
    # A second crash, after the chunks were wiped, must not make it seem new either.
    wiped = left.copy()
    await ContentCopy(wiped).wipe(P0)
    for found in (left, wiped):
        async with contents(kafka_settings, found) as content:
            await caught_up(content)
            purged, position = content.copies()[P0]
            assert (purged.is_due, purged.at(position)) == (True, 0)
            assert not content.copies()[P1][0].is_due, "there was nothing yet"


async def test_chunks_of_which_nobody_knows_how_far_they_were_copied_are_not_purged(
    kafka_settings: KafkaSettings,
) -> None:
    store = MemoryViewStore()
    store.write({row(OTHER_ID, 0): b"erased"})
    async with contents(kafka_settings, store) as content:
        await caught_up(content)
        purged, position = content.copies()[P0]
        assert (purged.is_due, purged.at(position)) == (True, 0)


async def test_copy_beyond_the_end_of_the_topic_is_made_again(kafka_settings: KafkaSettings) -> None:
    store = MemoryViewStore()
    async with contents(kafka_settings, store) as content:
        first = await put(content)
        await get(content, first)
    # The broker lost records that this copy has, and the keys that others now have at their offsets are not known.
    copy = ContentCopy(store)
    state = copy.load(P0)
    assert state is not None
    copy.save({P0: msgspec.structs.replace(state, position=100)})
    store.write({row(OTHER_ID, 0): b"lost by the broker"})
    async with contents(kafka_settings, store) as content:
        async with asyncio.timeout(TIMEOUT_S):
            while content.status().rebuilt_count == 0:  # noqa: ASYNC110 - the status is what is tested
                await asyncio.sleep(0.01)
        assert await get(content, first) == CHUNKS
        assert store.get(row(OTHER_ID, 0)) is None


async def test_copy_of_a_topic_that_was_recreated_is_thrown_away(kafka_settings: KafkaSettings) -> None:
    store = MemoryViewStore()
    async with contents(kafka_settings, store) as content:
        old = await put(content)
        await get(content, old)
    await recreate(kafka_settings)
    async with contents(kafka_settings, store) as content:
        new = await put(content, OTHER_ID)
        assert await get(content, new) == CHUNKS
        with pytest.raises(ContentLost):
            await get(content, old)
        assert content.status().rebuilt_count == 1


async def test_unreachable_broker_is_a_lag_for_readers_and_unavailable_for_writers() -> None:
    async with contents(KafkaSettings(bootstrap="127.0.0.1:1"), MemoryViewStore()) as content:
        await asyncio.sleep(0)
        assert content.status().problem is not None
        ref = ContentRef(scope=SCOPE, id=ID, chunks=1, size_bytes=0, last_offset=0, oldest_at_ms=0)
        with pytest.raises(Unavailable) as lag:
            await content.get(P0, ref, timeout_s=0.1)
        assert lag.value.reason == "content_lag"
        with pytest.raises(Unavailable) as unsent:
            await content.put(P0, SCOPE, ID, CHUNKS, timeout_s=0.1)
        assert unsent.value.reason == "broker"


def test_default_of_the_broker_is_below_what_is_configured() -> None:
    assert DELETE_RETENTION_DEFAULT_MS < DELETE_RETENTION_MS
