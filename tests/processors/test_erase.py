"""Erasure on Kafka is real: what nobody needs becomes null records, and leaves every disk."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ledger import keeper
from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_content import KafkaContentStore
from ledger.adapters.kafka_settings import CONTENT, LIFECYCLE, TABLES, KafkaSettings
from ledger.adapters.memory import MemoryViewStore
from ledger.content import ContentRef, encode_content
from ledger.errors import UndecodableRecord
from ledger.facts import decode_fact, encode_fact
from ledger.ledger import Ledger
from ledger.policy import Policy
from ledger.turn import Partition, Position, Selector, SelectorKind
from ledger.verdict import ContentUnneeded, ErasureOrdered, Fact
from processors import orphans
from processors.erase import Eraser
from processors.orphans import sweep
from processors.upkeep import Upkeep
from tests.adapters.kafka_world import made_topics
from tests.processors.world import (
    PARTITIONS,
    TIMEOUT_S,
    bootstrapped,
    caught_up,
    replica,
    rows_of,
    scope,
    turn,
    until,
    worker,
)

SECRET = "the secret of Mallory"
REF = ContentRef(scope=b"s" * 20, id=b"i" * 16, chunks=2, size_bytes=9, last_offset=3, oldest_at_ms=5)


def test_fact_has_one_encoding_and_anything_else_is_refused() -> None:
    facts: list[tuple[Fact, str]] = [
        (ContentUnneeded(REF), "019201" + "96c414" + "73" * 20 + "c410" + "69" * 16 + "02090305"),
        (ErasureOrdered(b"p" * 20, 7), "019302c414" + "70" * 20 + "07"),
    ]
    for fact, value in facts:
        assert encode_fact(fact).hex() == value
        assert decode_fact(encode_fact(fact)) == fact
    for wrong in (None, b"", b"\x02\x90", b"\x01\x91\x03", encode_fact(ContentUnneeded(REF)) + b"\0"):
        with pytest.raises(UndecodableRecord):
            decode_fact(wrong)


@asynccontextmanager
async def eraser_of(settings: KafkaSettings) -> AsyncIterator[Eraser]:
    store = KafkaContentStore(settings, MemoryViewStore())
    yield Eraser(store)
    await store.close()


async def records_of(settings: KafkaSettings, name: str) -> list[tuple[Partition, bytes | None, bytes | None]]:
    """Return partition, key and value of everything that is in a topic now."""
    log = KafkaLog(settings, name)
    found = []
    for partition in PARTITIONS:
        end = await log.end(partition, timeout_s=TIMEOUT_S)
        position = Position(0)
        tail = await log.tail({partition: position})
        while position < end:
            for batch in await tail.next(1.0):
                position = batch.next_position
                found += [(partition, record.key, record.value) for record in batch.records]
    await log.close()
    return found


async def carry_out(settings: KafkaSettings, eraser: Eraser) -> None:
    """Do what the agent does, over the whole topic."""
    await eraser.take((partition, value) for partition, _, value in await records_of(settings, LIFECYCLE))


async def living_contents(settings: KafkaSettings) -> set[bytes]:
    """Return the keys whose last record is a value."""
    last = {key: value for _, key, value in await records_of(settings, CONTENT)}
    return {key for key, value in last.items() if value is not None and key is not None}


async def test_deleted_content_becomes_a_null_record_and_what_is_needed_stays(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    policy = Policy(commit_grace_ms=0)
    async with (
        replica(kafka_settings, tmp_path / "replica", policy=policy) as ledger,
        worker(kafka_settings, tmp_path / "worker") as service,
        eraser_of(kafka_settings) as eraser,
    ):
        for name, previous in [("kept", None), ("child", "resp_kept"), ("gone", None)]:
            await ledger.committer.commit(turn(name, text=name, previous=previous))
        assert len(await living_contents(kafka_settings)) == 3
        for name in ("kept", "gone"):
            selector = Selector(scope=scope(), kind=SelectorKind.RESPONSE, id=f"resp_{name}")
            await ledger.conversations.delete_response(selector, event_id=f"delete-{name}")
        await until(lambda: no_node_is_due(ledger) and caught_up(service, ledger))
        for _ in range(2):
            # The second time changes nothing: facts are carried out at least once.
            await carry_out(kafka_settings, eraser)
            assert len(await living_contents(kafka_settings)) == 2


def no_node_is_due(ledger: Ledger) -> bool:
    return all(state.rows.meta.queue_due_ms > ledger.now_ms() for state in ledger.replica.states().values())


async def test_content_without_an_event_is_erased_when_no_event_can_name_it_any_more(
    kafka_settings: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The shortest grace is a minute: here it is a second.
    monkeypatch.setattr(orphans, "GRACE_FACTOR", 1 / 60)
    async with (
        replica(kafka_settings, tmp_path / "replica", policy=Policy(content_grace_ms=60_000)) as ledger,
        worker(kafka_settings, tmp_path / "worker") as service,
        eraser_of(kafka_settings) as eraser,
    ):
        await ledger.committer.commit(turn("kept", text="kept"))
        partition = ledger.committer.partition(scope())
        chunks, _ = encode_content({"input": "nobody's"})
        await ledger.contents.put(partition, b"s" * 20, b"o" * 16, chunks, timeout_s=TIMEOUT_S)
        await until(lambda: caught_up(service, ledger))
        contents = KafkaLog(kafka_settings, CONTENT)
        assert await sweep(service.lanes()[partition], contents) == 0, "it is not old enough"
        await asyncio.sleep(2.1)
        await ledger.committer.commit(turn("later"))
        await until(lambda: caught_up(service, ledger))
        assert await sweep(service.lanes()[partition], contents) == 1
        assert await sweep(service.lanes()[partition], contents) == 0, "it is looked for once"
        await contents.close()
        await carry_out(kafka_settings, eraser)
        assert {key[20:36] for key in await living_contents(kafka_settings)}.isdisjoint({b"o" * 16})
        assert len(await living_contents(kafka_settings)) == 1


async def test_erased_principal_leaves_every_disk(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = {"segment.ms": "1000", "min.compaction.lag.ms": "0", "max.compaction.lag.ms": "1000"}
    fast |= {"delete.retention.ms": "1000", "min.cleanable.dirty.ratio": "0.01"}
    kafka_settings = await made_topics(kafka_bootstrap, overrides={CONTENT: fast, TABLES: fast})
    monkeypatch.setattr(keeper, "ORDERED_PURGE_INTERVAL_S", 2.0)
    async with (
        replica(kafka_settings, tmp_path / "replica") as ledger,
        worker(kafka_settings, tmp_path / "worker") as service,
        eraser_of(kafka_settings) as eraser,
    ):
        for number in range(5):
            previous = f"resp_m{number - 1}" if number else None
            text = f"{number} {SECRET} {secrets.token_hex(300)}"
            await ledger.committer.commit(turn(f"m{number}", principal="mallory", text=text, previous=previous))
        # Contents are compressed, so what is looked for on disk are the bytes that were stored.
        needles = [value[8:40] for _, _, value in await records_of(kafka_settings, CONTENT) if value is not None]
        assert len(needles) == 5
        await ledger.committer.commit(turn("a", text="kept"))
        await until(lambda: all(holding(tmp_path, needle) for needle in needles))
        await ledger.conversations.erase_principal(scope("mallory"), event_id="erase")
        await until(lambda: no_node_is_due(ledger) and caught_up(service, ledger))
        await carry_out(kafka_settings, eraser)
        assert len(await living_contents(kafka_settings)) == 1
        contents, tables = KafkaLog(kafka_settings, CONTENT), KafkaLog(kafka_settings, TABLES)
        upkeep = Upkeep(service.lanes, eraser, contents=contents, tables=tables, roll_interval_s=1.5)
        keeping = asyncio.create_task(upkeep.run())

        async def is_compacted() -> bool:
            records = await records_of(kafka_settings, CONTENT)
            return sum(value is not None for _, _, value in records) == 1

        # The broker's cleaner looks every 15 s.
        await until(is_compacted, timeout_s=100)
        keeping.cancel()
        await contents.close()
        await tables.close()
        copies = ledger.contents
        assert isinstance(copies, KafkaContentStore)
        await until(lambda: copies_hold(copies) == 1)
        await until(lambda: not any(holding(tmp_path, needle) for needle in needles))
        assert upkeep.rolled_count > 0
        rows = rows_of(ledger.store)
        store, results = await bootstrapped(kafka_settings)
        assert [result.refused for result in results] == ["", ""], "the hash chain and the rows still verify"
        assert rows_of(store) == rows
    assert [holding(tmp_path, needle) for needle in needles] == [[]] * 5
    for name in (CONTENT, TABLES, LIFECYCLE):
        stored = b"".join(value for _, _, value in await records_of(kafka_settings, name) if value is not None)
        assert not any(needle in stored for needle in needles)


def holding(directory: Path, text: bytes) -> list[str]:
    """Return the files that hold a text."""
    return [str(path) for path in directory.rglob("*") if path.is_file() and text in path.read_bytes()]
