"""The bytes of a report, pinned: golden files only grow. And nothing else is a report."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ledger.errors import UndecodableRecord
from ledger.report import REPORT_FORMAT, Report, ReporterKind, RowsStatement, decode_report, encode_report

FOLDER = Path(__file__).parent / "reports"
REPLICA = Report(
    kind=ReporterKind.REPLICA,
    name="replica-a",
    partition=3,
    ledger_id=b"ledger of tests!",
    log_id="log",
    position=70_001,
    anchor_offset=70_000,
    chain=bytes(range(32)),
    clock_ms=1_700_000_000_000,
    rows=RowsStatement(b"d" * 32, 12_345),
    purged_position=69_000,
    purged_content_position=8_000,
    interval_ms=60_000,
    written_at_ms=1_700_000_000_123,
)
WORKER = replace(REPLICA, kind=ReporterKind.WORKER, name="worker-1", rows=None, purged_content_position=None)
REPORTS = {"replica": REPLICA, "worker": WORKER}


@pytest.mark.parametrize("name", REPORTS)
def test_report_is_encoded_as_its_golden_file_says(name: str, pytestconfig: pytest.Config) -> None:
    path = FOLDER / f"{name}.{REPORT_FORMAT}.txt"
    digits = encode_report(REPORTS[name]).hex() + "\n"
    if pytestconfig.getoption("--rewrite") and not path.exists():
        path.write_text(digits)
    assert path.read_text() == digits, "a golden file never changes: a new meaning needs a new format"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.name)
def test_every_golden_report_is_readable_for_ever(path: Path) -> None:
    assert decode_report(bytes.fromhex(path.read_text())) in REPORTS.values()


def _with(**changes: object) -> bytes:
    """Return the bytes of a report with fields that no report may have."""
    fields = msgspec.to_builtins(REPLICA, builtin_types=(bytes,))
    names = list(REPLICA.__struct_fields__)
    for field, value in changes.items():
        fields[names.index(field)] = value
    return bytes([REPORT_FORMAT]) + msgspec.msgpack.encode(fields)


def test_a_report_as_it_is_can_be_read() -> None:
    assert decode_report(_with()) == REPLICA


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "empty"),
        (b"", "empty"),
        (b"\x02" + encode_report(REPLICA)[1:], "newer_format"),
        (encode_report(REPLICA)[:-1], "malformed"),
        (encode_report(REPLICA) + b"\0", "malformed"),
        (_with(kind="router"), "malformed"),
        (_with(name=""), "malformed"),
        (_with(name="x" * 65), "malformed"),
        (_with(partition=2**16), "malformed"),
        (_with(position=-1), "malformed"),
        (_with(anchor_offset=-2), "malformed"),
        (_with(chain=b"c" * 31), "malformed"),
        (_with(rows=[b"d" * 32]), "malformed"),
        (_with(interval_ms=0), "malformed"),
        # The same number in a longer form.
        (encode_report(REPLICA).replace(b"\xcd\xea\x60", b"\xce\x00\x00\xea\x60"), "not_canonical"),
    ],
)
def test_anything_else_is_refused(value: bytes | None, reason: str) -> None:
    with pytest.raises(UndecodableRecord) as refused:
        decode_report(value)
    assert refused.value.reason == reason
