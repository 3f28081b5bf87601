"""Erasure on Kafka is real: what nobody needs becomes null records, and leaves every disk."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import json

from broker.launcher import Cluster
from ledger import keeper, reporter
from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_content import KafkaContentStore
from ledger.adapters.kafka_settings import CHECKPOINTS, CONTENT, LIFECYCLE, REPORTS, TABLES, KafkaSettings
from ledger.adapters.memory import MemoryViewStore
from ledger.answer import Found, Gone, Verdict
from ledger.audit import Filter, replay
from ledger.checkpoint import decode_checkpoint
from ledger.content import ContentRef, encode_content
from ledger.errors import UndecodableRecord
from ledger.facts import decode_fact, encode_fact
from ledger.ledger import Ledger
from ledger.policy import Policy
from ledger.settings import LedgerSettings
from ledger.table import Rows
from ledger.tables import Marker, digest_of
from ledger.turn import Partition, Position, Selector, SelectorKind
from ledger.verdict import ContentUnneeded, ErasureOrdered, Fact
from processors import checkpoints, orphans
from processors.erase import Eraser
from processors.erasure import Stage, Topics, wait_until_erased
from processors.orphans import sweep
from tests.adapters.kafka_world import made_topics
from tests.processors.world import (
    PARTITIONS,
    SIGNER,
    TIMEOUT_S,
    bootstrapped,
    caught_up,
    replica,
    reported,
    rows_of,
    scope,
    turn,
    until,
    whole_worker,
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


@pytest.mark.timeout(300)
async def test_erased_principal_leaves_every_disk_when_the_wait_for_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = {"segment.ms": "1000", "min.compaction.lag.ms": "0", "max.compaction.lag.ms": "1000"}
    fast |= {"delete.retention.ms": "120000", "min.cleanable.dirty.ratio": "0.01", "file.delete.delay.ms": "1000"}
    monkeypatch.setattr(keeper, "ORDERED_PURGE_INTERVAL_S", 2.0)
    monkeypatch.setattr(checkpoints, "CHECKPOINT_INTERVAL_S", 1.0)
    monkeypatch.setattr(reporter, "PAUSE_S", 1.0)
    limits = LedgerSettings(report_interval_s=2.0, digest_interval_s=5.0)
    disks = {name: tmp_path / name for name in ("one", "two", "worker")}
    with Cluster() as cluster:
        if cluster.directory is not None:
            disks["broker"] = cluster.directory
        settings = await made_topics(cluster.bootstrap, overrides={CONTENT: fast, TABLES: fast})
        async with (
            replica(settings, disks["one"], limits=limits) as ledger,
            replica(settings, disks["two"], limits=limits) as other,
            whole_worker(settings, disks["worker"], report_interval_s=2.0) as worker,
        ):
            for name in ("mallory", "alice"):
                for number in range(5):
                    previous = f"resp_{name}-{number - 1}" if number else None
                    text = f"{number} {SECRET if name == 'mallory' else 'kept'} {secrets.token_hex(300)}"
                    await ledger.committer.commit(
                        turn(f"{name}-{number}", principal=name, text=text, previous=previous)
                    )
            # Contents are compressed, so what is looked for on disk are the bytes that were stored.
            scopes = {name: ledger.alias_key.scope(scope(name)) for name in ("mallory", "alice")}
            stored = [(key or b"", value) for _, key, value in await records_of(settings, CONTENT) if value is not None]
            needles = {
                name: [value[8:40] for key, value in stored if key[:20] == digest] for name, digest in scopes.items()
            }
            assert {name: len(found) for name, found in needles.items()} == {"mallory": 5, "alice": 5}
            texts = [disk for name, disk in disks.items() if name != "worker"]
            secret_ids = [b"resp_mallory-%d" % number for number in range(5)]
            views = [disks["one"] / "view", disks["two"] / "view", disks["worker"]]
            # What is looked for afterwards is found before.
            await until(lambda: all(holding(disk, needle) for disk in texts for needle in needles["mallory"]))
            await until(lambda: all(holding(view, secret) for view in views for secret in secret_ids))

            verdict = await ledger.conversations.erase_principal(scope("mallory"), event_id="erase")
            stages = await wait_for(settings, verdict)
            found = {(str(disk), n) for disk in disks.values() for n in needles["mallory"] if holding(disk, n)}
            assert found == set()
            assert not any(holding(view, secret) for view in views for secret in secret_ids)
            assert stages == list(Stage)

            for one in (ledger, other):
                for number in range(5):
                    selector = Selector(scope=scope("alice"), kind=SelectorKind.RESPONSE, id=f"resp_alice-{number}")
                    answer = await one.reader.load(selector, history=True)
                    assert isinstance(answer, Found)
                    assert answer.history is not None
                    assert len(answer.history.entries) == number + 1
                gone = Selector(scope=scope("mallory"), kind=SelectorKind.RESPONSE, id="resp_mallory-4")
                assert isinstance(await one.reader.load(gone), Gone)
            assert len(await living_contents(settings)) == 5
            assert worker.upkeep.rolled_count > 0
            await until(lambda: is_checkpointed(settings, ledger))
            await check_chain(settings, ledger)
            assert (worker.watcher.alarms_count, worker.watcher.last_alarm) == (0, "")
            rows = rows_of(ledger.store)
            store, results = await bootstrapped(settings)
            assert [result.refused for result in results] == ["", ""], "the hash chain and the rows still verify"
            assert rows_of(store) == rows
        for name in (CONTENT, TABLES, LIFECYCLE, REPORTS):
            left = b"".join(value for _, _, value in await records_of(settings, name) if value is not None)
            assert not any(needle in left for needle in needles["mallory"])


async def wait_for(settings: KafkaSettings, verdict: Verdict) -> list[Stage]:
    """Wait as ``erase --wait`` does; return the stages that were passed."""
    stages: list[Stage] = []
    logs = [KafkaLog(settings, name) for name in (TABLES, LIFECYCLE, CONTENT, REPORTS)]
    tables, lifecycle, contents, reports = logs
    topics = Topics(tables=tables, lifecycle=lifecycle, contents=contents, reports=reports, file_delete_delay_s=2.0)
    try:
        # The broker's cleaner looks every 15 s.
        async with asyncio.timeout(150):
            token = verdict.token
            await wait_until_erased(topics, token.partition, token.offset, stages.append, lambda _: None)
    finally:
        for log in logs:
            await log.close()
    return stages


async def is_checkpointed(settings: KafkaSettings, ledger: Ledger) -> bool:
    """Return whether the last signed checkpoints are where a replica stands."""
    last = await last_checkpoints(settings)
    return all(
        number in last and last[number].position == state.rows.position
        for number, state in ledger.replica.states().items()
    )


async def last_checkpoints(settings: KafkaSettings) -> dict[Partition, Marker]:
    found = {}
    for partition, _, value in await records_of(settings, CHECKPOINTS):
        checkpoint = decode_checkpoint(value)
        assert checkpoint.public_key == SIGNER.public_key
        found[partition] = checkpoint.marker
    return found


async def check_chain(settings: KafkaSettings, ledger: Ledger) -> None:
    """Fold the whole log again: its chain and rows are those of the last checkpoints and of every report there, and
    nothing that a replay prints has the text."""
    store = MemoryViewStore()
    printed = [json.encode(replayed.described()) async for replayed in replay(ledger.log, store, PARTITIONS, Filter())]
    assert len(printed) >= 10
    assert not any(SECRET.encode() in line for line in printed)
    last = await last_checkpoints(settings)
    found = {one.partition: one for one in await reported(settings)}
    for partition in PARTITIONS:
        meta, marker = Rows(store, partition).meta, last[partition]
        assert (meta.anchor_offset, meta.chain) == (marker.anchor_offset, marker.chain)
        assert digest_of(store, partition) == (marker.rows_digest, marker.rows_count)
        assert found[partition].watch.alarms == []
        heard = found[partition].watch.heard.values()
        assert len(heard) == 3
        assert {one.report.chain for one in heard if one.report.anchor_offset == meta.anchor_offset} <= {meta.chain}


def holding(directory: Path, text: bytes) -> list[str]:
    """Return the files that hold a text."""
    return [str(path) for path in directory.rglob("*") if path.is_file() and text in path.read_bytes()]
