"""A worker that lives is not silent about rows that it still keeps, whoever has their partition now."""

from __future__ import annotations

from pathlib import Path

from ledger.adapters.kafka_settings import KafkaSettings
from ledger.adapters.memory import MemoryLog, MemoryTopic
from ledger.ledger import wall_clock_ms
from ledger.report import Report, ReporterKind, RowsStatement, encode_report
from ledger.reporter import Holding, Standing
from ledger.rows import MetaRow
from ledger.turn import Partition, Position
from processors.comparison import SILENT_INTERVALS
from processors.last_words import LastWords
from processors.leftovers import rows_directory
from tests.adapters.kafka_world import P0, P1
from tests.processors.world import publish, replica, reported, until, whole_worker

A, B = b"a" * 16, b"b" * 16
META = MetaRow(position=7, anchor_offset=6)
HOLDING = Holding(Standing(META, "log", RowsStatement(b"d" * 32, 3)), Position(5), None)
SAID = Holding(Standing(META, "log", None), Position(5), None)
REPORT = Report(
    kind=ReporterKind.WORKER,
    name="one",
    partition=1,
    ledger_id=META.ledger_id,
    log_id="log",
    position=7,
    anchor_offset=6,
    chain=META.chain,
    clock_ms=0,
    rows=HOLDING.standing.rows,
    purged_position=5,
    purged_content_position=None,
    interval_ms=1_000,
    written_at_ms=5,
)
INTERVAL_S = 1.0


def test_last_word_is_repeated_without_its_digest_until_the_rows_are_gone(tmp_path: Path) -> None:
    held = {P0, P1}
    words = LastWords(tmp_path, lambda: held)
    for number in held:
        rows_directory(tmp_path, number).mkdir()
    assert words.with_lanes({P0: HOLDING, P1: HOLDING}) == {P0: HOLDING, P1: HOLDING}
    held.discard(P1)
    for _ in range(2):
        assert words.with_lanes({P0: HOLDING}) == {P0: HOLDING, P1: SAID}
    rows_directory(tmp_path, P1).rename(tmp_path / "removed")
    assert words.with_lanes({P0: HOLDING}) == {P0: HOLDING}
    (tmp_path / "removed").rename(rows_directory(tmp_path, P1))
    assert words.with_lanes({}) == {}, "these are other rows"


def test_word_on_rows_that_are_being_restored_is_not_repeated(tmp_path: Path) -> None:
    held = {P1}
    words = LastWords(tmp_path, lambda: held)
    rows_directory(tmp_path, P1).mkdir()
    words.with_lanes({P1: HOLDING})
    assert words.with_lanes({}) == {}
    held.clear()
    assert words.with_lanes({}) == {}


async def test_restarted_worker_repeats_what_it_said_before_and_nothing_that_others_said(tmp_path: Path) -> None:
    topic = MemoryTopic(2, log_id="reports")
    topic.land(P0, B, encode_report(REPORT), 10)
    topic.land(P1, A, encode_report(REPORT), 10)
    topic.land(P1, B, encode_report(REPORT), 10)
    for number in (P0, P1):
        rows_directory(tmp_path, number).mkdir()
    words = LastWords(tmp_path, set)
    await words.recall(MemoryLog(topic, now_ms=lambda: 0), A, [P0, P1])
    assert words.with_lanes({}) == {P1: SAID}


async def test_restarted_worker_repeats_its_words_whoever_reports_in_a_later_format(tmp_path: Path) -> None:
    later = b"\x02of a later release"
    topic = MemoryTopic(2, log_id="reports")
    topic.land(P0, A, encode_report(REPORT), 10)
    topic.land(P0, A, later, 10)
    topic.land(P1, A, encode_report(REPORT), 10)
    topic.land(P0, B, later, 10)
    topic.land(P1, B, later, 10)
    for number in (P0, P1):
        rows_directory(tmp_path, number).mkdir()
    words = LastWords(tmp_path, set)
    await words.recall(MemoryLog(topic, now_ms=lambda: 0), A, [P0, P1])
    assert words.with_lanes({}) == {P1: SAID}, "its own that it does not understand stays as it is"


async def test_worker_is_not_silent_about_rows_of_partitions_that_another_one_has_now(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    given = {"report_interval_s": INTERVAL_S, "sweep_interval_s": 1.0}

    async def heard_at_ms(name: str) -> dict[Partition, int]:
        return {
            one.partition: heard.heard_at_ms
            for one in await reported(kafka_settings)
            for heard in one.watch.heard.values()
            if heard.report.name == name
        }

    async def is_heard(name: str, since_ms: int) -> bool:
        found = await heard_at_ms(name)
        return len(found) == 2 and min(found.values()) > since_ms

    async with (
        replica(kafka_settings, tmp_path / "replica") as ledger,
        whole_worker(kafka_settings, tmp_path / "one", reporter_name="one", **given) as one,
    ):
        await publish(ledger, 20)
        await until(lambda: is_heard("one", 0))
        async with whole_worker(kafka_settings, tmp_path / "two", reporter_name="two", **given):
            await until(lambda: len(one.materializer.held()) == 1)
            gone_ms = wall_clock_ms() + int(SILENT_INTERVALS * INTERVAL_S * 1000)
            await until(lambda: is_heard("one", gone_ms))
