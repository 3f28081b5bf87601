"""What checkpoints and reports say of one partition, compared: who differs is named once, with the anchor."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from msgspec.structs import replace

from ledger.adapters.memory import MemoryLog, MemoryTopic
from ledger.checkpoint import Checkpoint
from ledger.errors import Unavailable
from ledger.report import Report, ReporterKind, RowsStatement, encode_report
from ledger.tables import MARKER_KEY, Marker, encode_marker
from ledger.turn import Offset, Partition
from processors.comparison import ANCHORS_MAX, SILENT_INTERVALS, PartitionWatch
from processors.erasure import Stage, Topics, wait_until_erased
from processors.reporters import Reporters, partition_reporters
from processors.watch import Watcher

P0, P1 = Partition(0), Partition(1)
A, B = b"a" * 16, b"b" * 16
ROWS = RowsStatement(b"d" * 32, 3)
REPORT = Report(
    kind=ReporterKind.REPLICA,
    name="one",
    partition=0,
    ledger_id=b"ledger of tests!",
    log_id="log",
    position=7,
    anchor_offset=6,
    chain=b"c" * 32,
    clock_ms=100,
    rows=ROWS,
    purged_position=7,
    purged_content_position=0,
    interval_ms=1_000,
    written_at_ms=5,
)
TWO = replace(REPORT, name="two")
CHECKPOINT = Checkpoint(
    partition=0,
    marker=Marker(
        ledger_id=REPORT.ledger_id,
        log_id="log",
        position=7,
        clock_ms=100,
        chain=REPORT.chain,
        chain_before=b"b" * 32,
        anchor_offset=6,
        rows_digest=ROWS.digest,
        rows_count=ROWS.count,
    ),
    written_at_ms=5,
    public_key=b"k" * 32,
)


def test_what_agrees_is_no_alarm_and_a_digest_counts_as_compared_when_somebody_else_has_it() -> None:
    watch = PartitionWatch()
    assert watch.take_report(A, REPORT, 10) == []
    assert watch.heard[A].digest_at_ms is None, "nobody else has said anything"
    assert watch.take_checkpoint(CHECKPOINT) == []
    assert watch.take_report(B, TWO, 11) == []
    assert watch.heard[B].digest_at_ms == 11
    later = replace(TWO, position=9, anchor_offset=8, chain=b"x" * 32, rows=None)
    assert watch.take_report(B, later, 12) == []
    assert watch.heard[B].digest_at_ms == 11, "it stays known"


def test_worker_that_agrees_with_the_checkpoint_of_its_own_marker_has_compared_nothing() -> None:
    watch = PartitionWatch()
    watch.take_checkpoint(CHECKPOINT)
    working = replace(REPORT, kind=ReporterKind.WORKER)
    assert watch.take_report(A, working, 10) == []
    assert watch.heard[A].digest_at_ms is None
    watch.take_report(B, TWO, 11)
    assert watch.heard[B].digest_at_ms == 11, "a replica has digested its rows"
    watch.take_report(A, working, 12)
    assert watch.heard[A].digest_at_ms == 12, "a replica says so too"
    (alarm,) = watch.take_report(A, replace(working, rows=RowsStatement(b"x" * 32, 3)), 13)[:1]
    assert alarm.difference == "have different rows"


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (replace(TWO, chain=b"x" * 32), "have folded different records"),
        (replace(TWO, rows=RowsStatement(b"x" * 32, 3)), "have different rows"),
        (replace(TWO, rows=RowsStatement(ROWS.digest, 4)), "have different rows"),
        (replace(TWO, log_id="another"), "are of different logs"),
        (replace(TWO, ledger_id=b"another"), "are of different logs"),
    ],
)
def test_first_difference_is_an_alarm_that_names_both_and_the_anchor(changed: Report, difference: str) -> None:
    watch = PartitionWatch()
    watch.take_checkpoint(CHECKPOINT)
    (alarm,) = watch.take_report(B, changed, 10)
    assert str(alarm) == f"at offset 6 replica two (62626262) and the checkpoint {difference}"
    assert watch.take_report(B, changed, 11) == [], "it is said once"
    other = PartitionWatch()
    other.take_report(B, changed, 10)
    (alarm,) = other.take_checkpoint(CHECKPOINT)
    assert str(alarm) == f"at offset 6 the checkpoint and replica two (62626262) {difference}"
    (alarm,) = other.take_report(A, REPORT, 11)
    assert "replica one (61616161) and replica two (62626262)" in str(alarm)


@pytest.mark.parametrize(
    "elsewhere",
    [
        replace(TWO, anchor_offset=8, position=9, chain=b"x" * 32),
        # The rows hold the position, and control records are no records.
        replace(TWO, position=8, rows=RowsStatement(b"x" * 32, 3)),
        replace(TWO, rows=None),
    ],
)
def test_other_places_are_not_compared(elsewhere: Report) -> None:
    watch = PartitionWatch()
    watch.take_checkpoint(CHECKPOINT)
    assert watch.take_report(B, elsewhere, 10) == []
    nothing = replace(REPORT, anchor_offset=-1, position=0)
    assert watch.take_report(A, nothing, 11) == []
    assert watch.take_report(B, replace(nothing, name="two", chain=b"x" * 32), 12) == []


def test_bounded_number_of_anchors_is_remembered() -> None:
    watch = PartitionWatch()
    for number in range(ANCHORS_MAX + 1):
        watch.take_report(A, replace(REPORT, anchor_offset=number, position=number + 1), 10)
    changed = replace(TWO, chain=b"x" * 32)
    assert watch.take_report(B, replace(changed, anchor_offset=0, position=1), 11) == [], "forgotten"
    assert len(watch.take_report(B, replace(changed, anchor_offset=ANCHORS_MAX, position=ANCHORS_MAX + 1), 11)) == 1


def test_reporter_is_silent_after_three_of_its_intervals_and_not_once_it_has_withdrawn() -> None:
    watch = PartitionWatch()
    watch.take_report(A, REPORT, 10)
    bound_ms = 10 + SILENT_INTERVALS * REPORT.interval_ms
    assert watch.silent(bound_ms) == []
    assert [heard.who for heard in watch.silent(bound_ms + 1)] == ["replica one (61616161)"]
    watch.withdraw(A)
    assert watch.silent(bound_ms + 1) == []


def topic_of(*values: tuple[bytes, bytes]) -> MemoryTopic:
    topic = MemoryTopic(2, log_id="reports")
    for key, value in values:
        topic.land(P0, key, value, 10)
    return topic


async def test_watcher_reads_what_was_said_before_a_partition_came_to_it_and_forgets_it_when_it_goes() -> None:
    first = encode_report(REPORT)
    log = MemoryLog(topic_of((A, first)), now_ms=lambda: 0)
    watcher = Watcher(b"k" * 32, log, now_ms=lambda: 10_000)
    with structlog.testing.capture_logs() as logs:
        await watcher.take_report(P0, Offset(1), B, encode_report(replace(TWO, chain=b"x" * 32)), 11)
    assert [(log["event"], log["anchor_offset"]) for log in logs] == [("report_differs", 6)]
    assert (watcher.reports_count, watcher.alarms_count) == (2, 1)
    assert {heard.report.name for heard in watcher.silent()} == {"one", "two"}
    watcher.assigned([P1])
    assert watcher.silent() == [], "another worker tells"


async def test_report_of_another_partition_is_an_alarm_and_one_of_a_later_release_is_not() -> None:
    watcher = Watcher(b"k" * 32, MemoryLog(topic_of(), now_ms=lambda: 0), now_ms=lambda: 0)
    await watcher.take_report(P0, Offset(0), A, b"\x02" + encode_report(REPORT)[1:], 10)
    assert watcher.alarms_count == 0
    await watcher.take_report(P0, Offset(1), A, encode_report(replace(REPORT, partition=1)), 10)
    assert "is of partition 1" in watcher.last_alarm


def test_reporters_are_read_on_from_where_they_were_read_to() -> None:
    async def scenario() -> None:
        topic = topic_of((A, encode_report(REPORT)), (B, encode_report(TWO)), (B, b"\x01garbage"))
        reporters = Reporters(MemoryLog(topic, now_ms=lambda: 0), P0)
        await reporters.read_on()
        assert set(reporters.watch.heard) == {A, B}
        topic.land(P0, A, encode_report(replace(REPORT, position=9, anchor_offset=8)), 12)
        await reporters.read_on()
        assert reporters.watch.heard[A].report.position == 9
        assert reporters.later_format == set()

    asyncio.run(scenario())


LATER = b"\x02of a later release"


async def test_report_of_a_later_release_hides_only_its_own_reporter_and_only_while_it_is_the_last_word() -> None:
    topic = topic_of((A, encode_report(REPORT)), (B, encode_report(TWO)), (B, LATER), (A, encode_report(REPORT)))
    log = MemoryLog(topic, now_ms=lambda: 0)
    reading_on = Reporters(log, P0)

    async def read() -> set[tuple[frozenset[bytes], frozenset[bytes]]]:
        """Return who was heard and who was not understood: by one who reads on, and by one who begins."""
        found = set()
        for reporters in (reading_on, Reporters(log, P0)):
            await reporters.read_on()
            found.add((frozenset(reporters.watch.heard), frozenset(reporters.later_format)))
        return found

    assert await read() == {(frozenset({A}), frozenset({B}))}
    topic.land(P0, B, None, 12)
    assert await read() == {(frozenset({A}), frozenset())}
    topic.land(P0, B, LATER, 13)
    assert await read() == {(frozenset({A}), frozenset({B}))}
    topic.land(P0, B, encode_report(TWO), 14)
    assert await read() == {(frozenset({A, B}), frozenset())}


async def test_whoever_waits_for_disks_is_refused_while_somebody_reports_in_a_later_format() -> None:
    def empty() -> MemoryLog:
        return MemoryLog(MemoryTopic(2, log_id="empty"), now_ms=lambda: 0)

    tables, reports = MemoryTopic(2, log_id="tables"), topic_of((A, encode_report(REPORT)), (B, LATER))
    tables.land(P0, MARKER_KEY, encode_marker(CHECKPOINT.marker), 10)
    topics = Topics(
        tables=MemoryLog(tables, now_ms=lambda: 0),
        lifecycle=empty(),
        contents=empty(),
        reports=MemoryLog(reports, now_ms=lambda: 0),
        file_delete_delay_s=0.0,
    )

    async def wait() -> list[Stage]:
        reached: list[Stage] = []
        async with asyncio.timeout(10.0):
            await wait_until_erased(topics, P0, Offset(6), reached.append, lambda _: None)
        return reached

    with pytest.raises(Unavailable, match=f"{B.hex()}.*forget-reporter") as refused:
        await wait()
    assert refused.value.reason == "upgrade"
    for word in (None, encode_report(TWO)):
        reports.land(P0, B, LATER, 11)
        reports.land(P0, B, word, 12)
        assert await wait() == list(Stage)


async def test_what_the_topics_say_names_those_who_report_in_a_later_format() -> None:
    def log() -> MemoryLog:
        return MemoryLog(MemoryTopic(2, log_id="empty"), now_ms=lambda: 0)

    reports = MemoryLog(topic_of((A, encode_report(REPORT)), (B, LATER)), now_ms=lambda: 0)
    zero, one = await partition_reporters(log(), reports, log(), [P0, P1])
    assert (set(zero.watch.heard), set(zero.later_format)) == ({A}, {B})
    assert (len(one.watch.heard), len(one.later_format)) == (0, 0)
