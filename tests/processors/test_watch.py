"""Checkpoints: signed, decoded strictly, and compared; the first difference is an alarm."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
from msgspec.structs import replace

from ledger.adapters.memory import MemoryLog, MemoryTopic
from ledger.checkpoint import BadSignature, Signer, decode_checkpoint
from ledger.errors import InvalidInput, UndecodableRecord
from ledger.tables import Marker
from ledger.turn import Partition
from processors.composition import signer_in
from processors.watch import REMEMBERED_MAX, Watcher

SIGNER = Signer(b"s" * 32)
P0, P1 = Partition(0), Partition(1)
MARKER = Marker(
    ledger_id=b"ledger of tests!",
    log_id="log",
    position=7,
    clock_ms=100,
    chain=b"c" * 32,
    chain_before=b"b" * 32,
    anchor_offset=6,
    rows_digest=b"d" * 32,
    rows_count=3,
)


def test_checkpoint_says_what_was_signed() -> None:
    checkpoint = decode_checkpoint(SIGNER.sign(1, MARKER, 5))
    assert (checkpoint.partition, checkpoint.marker, checkpoint.written_at_ms) == (1, MARKER, 5)
    assert checkpoint.public_key == SIGNER.public_key


def test_changed_checkpoint_is_refused_at_every_byte() -> None:
    value = SIGNER.sign(1, MARKER, 5)
    for index in range(len(value)):
        changed = bytearray(value)
        changed[index] ^= 1
        with pytest.raises((UndecodableRecord, BadSignature)):
            decode_checkpoint(bytes(changed))
    for wrong in (None, b"", value[:64], value[:-1]):
        with pytest.raises((UndecodableRecord, BadSignature)):
            decode_checkpoint(wrong)


def test_key_is_made_once_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "checkpoint.key"
    first = signer_in(path).public_key
    assert signer_in(path).public_key == first
    assert path.stat().st_mode & 0o777 == 0o600
    for damaged in ("", "zz", "00" * 31):
        path.write_text(damaged)
        with pytest.raises(InvalidInput, match="checkpoint_key_file"):
            signer_in(path)


def watcher_of(reports: MemoryTopic | None = None, *, now_ms: int = 0) -> Watcher:
    log = MemoryLog(reports or MemoryTopic(2, log_id="reports"), now_ms=lambda: 0)
    return Watcher(SIGNER.public_key, log, now_ms=lambda: now_ms)


def alarms_of(*checkpoints: tuple[Partition, bytes | None]) -> list[str]:
    watcher = watcher_of()
    with structlog.testing.capture_logs() as logs:
        for partition, value in checkpoints:
            watcher.take(partition, value)
    assert watcher.checkpoints_count == len(checkpoints)
    said = [log["message"] for log in logs if log["event"] == "checkpoints_differ"]
    assert watcher.alarms_count == len(said)
    return said


def test_checkpoints_that_agree_are_no_alarm() -> None:
    later = replace(MARKER, position=9, anchor_offset=8, clock_ms=200, chain=b"e" * 32, rows_digest=b"f" * 32)
    signed = [SIGNER.sign(0, MARKER, 1), SIGNER.sign(0, later, 2), SIGNER.sign(0, MARKER, 3)]
    assert alarms_of(*((P0, value) for value in signed)) == []
    other = replace(MARKER, chain=b"x" * 32)
    assert alarms_of((P0, signed[0]), (P1, SIGNER.sign(1, other, 1))) == []


@pytest.mark.parametrize(
    ("value", "alarm"),
    [
        (SIGNER.sign(0, replace(MARKER, chain=b"x" * 32), 1), "different records"),
        (SIGNER.sign(0, replace(MARKER, rows_digest=b"x" * 32), 1), "different rows"),
        (SIGNER.sign(0, replace(MARKER, rows_count=4), 1), "different rows"),
        (SIGNER.sign(0, replace(MARKER, log_id="another", position=9), 1), "different logs"),
        (SIGNER.sign(0, replace(MARKER, position=5, clock_ms=101), 1), "later clock"),
        (SIGNER.sign(1, replace(MARKER, position=9), 1), "of partition 1"),
        (Signer(b"x" * 32).sign(0, replace(MARKER, position=9), 1), "another key"),
        (b"garbage", "cannot be trusted"),
        (None, "cannot be trusted"),
    ],
)
def test_first_difference_is_an_alarm(value: bytes | None, alarm: str) -> None:
    (said,) = alarms_of((P0, SIGNER.sign(0, MARKER, 1)), (P0, value))
    assert alarm in said


def test_bounded_number_of_checkpoints_is_remembered() -> None:
    watcher = watcher_of()
    for number in range(REMEMBERED_MAX + 1):
        watcher.take(P0, SIGNER.sign(0, replace(MARKER, position=number, anchor_offset=number - 1, clock_ms=number), 1))
    last = watcher.last(P0)
    assert last is not None
    assert last.marker.position == REMEMBERED_MAX
    changed = b"x" * 32
    watcher.take(P0, SIGNER.sign(0, replace(MARKER, position=1, anchor_offset=-1, clock_ms=1, chain=changed), 1))
    assert watcher.alarms_count == 1
    watcher.take(P0, SIGNER.sign(0, replace(MARKER, position=0, anchor_offset=-1, clock_ms=0, chain=changed), 1))
    assert watcher.alarms_count == 1, "what was forgotten is not compared"
