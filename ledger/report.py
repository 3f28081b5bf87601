"""Reports: what each process says of the partitions that it holds, on the topic ``reports``, for others to compare.

A report names the head of the hash chain at one record, the *anchor*. Two processes that folded the same records have
the same chain at the same anchor, and at the same position the same rows. Batches of two processes end anywhere, so all
of them stop at *aligned* places, between the records around a multiple of ``ALIGNED_RECORDS``.

A record's key is the reporter's ID, so that compaction keeps the last word of each; a null record says that the
reporter holds the partition no more. No ID of a caller and no content is in a report.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated

import msgspec

from ledger.errors import UndecodableRecord
from ledger.log import Record
from ledger.tables import Digest32, Natural

REPORT_FORMAT = 1
REPORTER_ID_BYTES = 16
ALIGNED_RECORDS = 10_000
"""Offsets between two aligned places: often enough to find a difference soon, seldom enough to cost nothing."""
NAME_CHARACTERS_MAX = 64


class ReporterKind(enum.StrEnum):
    """What a process keeps on its disk."""

    REPLICA = "replica"
    """Rows and a copy of the contents."""
    WORKER = "worker"
    """Rows."""


class RowsStatement(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the rows were at the anchor."""

    digest: Digest32
    count: Natural


class Report(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """One reporter's word on one partition."""

    kind: ReporterKind
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
    """For people; IDs tell reporters apart."""
    partition: Annotated[int, msgspec.Meta(ge=0, lt=2**16)]
    ledger_id: Annotated[bytes, msgspec.Meta(max_length=16)]
    log_id: Annotated[str, msgspec.Meta(max_length=64)]
    position: Natural
    anchor_offset: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
    """Offset of the last folded record; ``chain`` and ``rows`` are as of it."""
    chain: Digest32
    clock_ms: Natural
    """Partition clock."""
    rows: RowsStatement | None
    """A replica reads all its rows for it, so only now and then."""
    purged_position: Natural
    """No row that was erased by a record below it is on this reporter's disk any more."""
    purged_content_position: Natural | None
    """The same for contents, by offset of the topic ``content``; None: the reporter keeps no contents."""
    interval_ms: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    """By then the reporter promises the next report."""
    written_at_ms: Natural
    """Wall clock of the reporter; for people."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Report)


def encode_report(report: Report) -> bytes:
    """Return the record value of a report."""
    return bytes([REPORT_FORMAT]) + _encoder.encode(report)


def decode_report(value: bytes | None) -> Report:
    """Return the report in ``value``; decoded as strictly as an event. Raises ``UndecodableRecord``."""
    if not value:
        raise UndecodableRecord("empty")
    if value[0] != REPORT_FORMAT:
        raise UndecodableRecord("newer_format", f"a report has format {value[0]}")
    try:
        report = _decoder.decode(value[1:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UndecodableRecord("malformed", str(error)) from None
    if _encoder.encode(report) != value[1:]:
        raise UndecodableRecord("not_canonical")
    return report


def is_crossing(before: int, offset: int) -> bool:
    """Return whether an aligned place lies between two records that follow each other."""
    return before >= 0 and before // ALIGNED_RECORDS != offset // ALIGNED_RECORDS


def first_piece(records: Sequence[Record], start: int, size: int) -> Sequence[Record]:
    """Return records from index ``start`` on, at most ``size``, that no aligned place lies within."""
    piece = records[start : start + size]
    if not piece or not is_crossing(piece[0].offset, piece[-1].offset):
        return piece
    return piece[: next(index for index, record in enumerate(piece) if is_crossing(piece[0].offset, record.offset))]
