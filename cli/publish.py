"""``turnledger publish``: turns from NDJSON, in the order of the file."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, BinaryIO

import msgspec
import typer
from rich.table import Table

from cli.connection import Connection, connected
from cli.failures import ExitCode, report
from cli.output import AsJson, console, print_json, progress
from ledger.adapters.http import LedgerClient
from ledger.answer import Verdict
from ledger.bodies import TurnBody
from ledger.errors import InvalidInput, LedgerError
from ledger.ledger import wall_clock_ms
from ledger.turn import Turn
from ledger.wire import turn_of

BATCH_TURNS_MAX = 100
"""Turns of one request: few enough that the progress bar moves."""
BATCH_BYTES_MAX = 4 * 1024 * 1024
"""Lines of one request, so that turns with large contents do not make a request that the service refuses."""

_body = msgspec.json.Decoder(TurnBody)


@dataclass(slots=True, kw_only=True)
class Summary:
    """What became of a file."""

    verdicts: Counter[str] = field(default_factory=Counter)
    refused: list[dict[str, Any]] = field(default_factory=list)
    elapsed_s: float = 0.0

    def count(self, line: int, turn: Turn, verdict: Verdict) -> None:
        """Take the verdict of the turn in a line."""
        self.verdicts[verdict.code.word] += 1
        if not verdict.accepted:
            self.refused.append(
                {
                    "line": line,
                    "event_id": turn.event_id,
                    "verdict": verdict.code.word,
                    "token": str(verdict.token),
                    "reason": verdict.reason,
                }
            )

    def show(self, *, as_json: bool) -> None:
        """Print it."""
        turns = self.verdicts.total()
        if as_json:
            counted = {"turns": turns, "verdicts": dict(self.verdicts), "refused": self.refused}
            print_json({**counted, "elapsed_s": round(self.elapsed_s, 3)})
            return
        table = Table("verdict", title=f"{turns} turns in {self.elapsed_s:.1f} s", title_justify="left")
        table.add_column("turns", justify="right")
        for word, count in self.verdicts.most_common():
            table.add_row(word, str(count))
        console().print(table)
        for refusal in self.refused[:10]:
            console().print("line {line}: {verdict} {reason}".format(**refusal).rstrip())
        if len(self.refused) > 10:
            console().print(f"... and {len(self.refused) - 10} more; --json lists all")


@connected
async def publish(
    connection: Connection,
    source: Annotated[
        typer.FileBinaryRead,
        typer.Argument(metavar="FILE", help="A turn a line, as POST /ledger/v1/turns takes it; -: stdin."),
    ],
    as_json: AsJson = False,
) -> None:
    """Publish turns from NDJSON and say what the ledger decided about them.

    Lines that have an event_id can be published again without a second effect. A line that is wrong ends the run; the
    lines before it were published.
    """
    summary = Summary()
    began_s = time.monotonic()
    try:
        async with connection.client(creates=True) as client:
            with progress() as bar:
                task = bar.add_task("publishing", total=_lines_in(source))
                for batch in _batches(connection, source):
                    await _publish(client, batch, summary)
                    bar.advance(task, len(batch))
    finally:
        summary.elapsed_s = time.monotonic() - began_s
        if summary.verdicts:
            summary.show(as_json=as_json)
    if summary.refused:
        report(f"{len(summary.refused)} of {summary.verdicts.total()} turns were refused")
        raise typer.Exit(ExitCode.REFUSED)


async def _publish(client: LedgerClient, batch: list[tuple[int, Turn]], summary: Summary) -> None:
    results = await client.publish_batch([turn for _, turn in batch])
    failed: LedgerError | None = None
    for (line, turn), result in zip(batch, results, strict=True):
        if isinstance(result, Verdict):
            summary.count(line, turn, result)
        else:
            failed = failed or _at_line(line, result)
    if failed is not None:
        raise failed


def _at_line(line: int, error: LedgerError) -> LedgerError:
    if isinstance(error, InvalidInput):
        _, _, name = error.field.rpartition("].")
        return type(error)(f"line {line}: {name}", error.reason)
    error.args = (f"line {line}: {error}",)
    return error


def _batches(connection: Connection, source: BinaryIO) -> Iterator[list[tuple[int, Turn]]]:
    """Yield the turns of a file with their line numbers; what was read before a wrong line is yielded before it
    raises."""
    batch: list[tuple[int, Turn]] = []
    size_bytes = 0
    for number, line in enumerate(source, start=1):
        if not line.strip():
            continue
        try:
            turn = _turn(connection, number, line)
        except InvalidInput:
            if batch:
                yield batch
            raise
        batch.append((number, turn))
        size_bytes += len(line)
        if len(batch) == BATCH_TURNS_MAX or size_bytes >= BATCH_BYTES_MAX:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _turn(connection: Connection, number: int, line: bytes) -> Turn:
    try:
        body = _body.decode(line)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"line {number}", str(error)) from None
    try:
        scope = connection.scope(body.principal, body.route)
        return turn_of(body, scope, body.event_id or secrets.token_hex(16), wall_clock_ms())
    except InvalidInput as error:
        raise type(error)(f"line {number}: {error.field}", error.reason) from None


def _lines_in(source: BinaryIO) -> int | None:
    """Return how many turns a file has, from where it stands; None for a pipe."""
    if not source.seekable():
        return None
    start = source.tell()
    count = sum(1 for line in source if line.strip())
    source.seek(start)
    return count
