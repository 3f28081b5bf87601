"""How answers are shown: a table for people, JSON where a program reads it."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cli.failures import ExitCode, exit_code_of_verdict, report
from ledger.answer import Verdict
from ledger.wire import verdict_body

WIDTH_ELSEWHERE = 120
"""Columns of what goes to a file or a pipe, which have no width of their own."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
EventId = Annotated[
    str | None, typer.Option("--event-id", help="Name of this change, kept over retries. Default: a new one.")
]


def console() -> Console:
    """Return the console for answers, as wide as the terminal is."""
    width = None if sys.stdout.isatty() else WIDTH_ELSEWHERE
    return Console(highlight=False, markup=False, width=width)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def fields_table() -> Table:
    """Return a table of names and values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    return table


def moment(at_ms: int) -> str:
    """Return a time in UTC, to the second."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def progress() -> Progress:
    """Return a progress bar on stderr, which only a terminal shows."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def finish_change(verdict: Verdict, event_id: str, *, as_json: bool) -> None:
    """Print the verdict of a change and leave with its exit code."""
    code = exit_code_of_verdict(verdict)
    if as_json:
        print_json(verdict_body(verdict, event_id))
    elif code is ExitCode.OK:
        console().print(f"{verdict.code.word}  at {verdict.token}")
    else:
        reason = f" ({verdict.reason})" if verdict.reason else ""
        report(f"refused: {verdict.code.word}{reason}, by the record at {verdict.token}")
    raise typer.Exit(code)
