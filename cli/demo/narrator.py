"""How the demo speaks: a numbered title, a line or two why, then what the ledger really answered."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from cli.lookups import described
from cli.output import console, fields_table, moment
from ledger.answer import Answer, Found, Gone, Verdict

INDENT = 3


class Narrator:
    """Prints the steps of one demo."""

    def __init__(self) -> None:
        self.console: Console = console()
        self._step = 0

    def open(self, title: str, text: str) -> None:
        """Say what the demo is."""
        self.console.print()
        self.console.print(Text(title, style="bold"))
        self.console.print(Text(text, style="dim"))

    def step(self, title: str, why: str) -> None:
        """Begin a step."""
        self._step += 1
        self.console.print()
        self.console.print(Text.assemble((f"{self._step:>2} ", "dim"), (title, "bold cyan")))
        self.console.print(Padding(Text(why, style="dim"), (0, 0, 0, INDENT)))

    def progress(self) -> Progress:
        """Return a progress bar for a step; without a terminal only its end is printed."""
        return Progress(
            TextColumn(" " * (INDENT - 1)),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            console=self.console,
        )

    def answered(self, who: str, answer: Answer) -> None:
        """Print what a look-up answered."""
        match answer:
            case Found():
                self._line(who, "found", "green", f"owner {answer.owner.target}, {described(answer)['state']}")
            case Gone():
                self._line(who, "gone", "yellow", f"{answer.reason}, since {moment(answer.at_ms)}")
            case _:
                self._line(who, "missing", "red", "never existed here, as far as anybody remembers")

    def decided(self, who: str, verdict: Verdict) -> None:
        """Print a verdict."""
        first = f", first decided {verdict.first.word} there" if verdict.first is not None else ""
        revision = f", revision {verdict.revision}" if verdict.revision else ""
        style = "green" if verdict.accepted else "red"
        self._line(who, verdict.code.word, style, f"offset {verdict.token.offset}{first}{revision}")

    def said(self, who: str, what: str) -> None:
        """Print a plain fact."""
        self._line(who, what, "", "")

    def facts(self, values: Mapping[str, str]) -> None:
        """Print named values."""
        table = fields_table()
        for name, value in values.items():
            table.add_row(name, value)
        self.table(table)

    def table(self, table: Table) -> None:
        """Print a table."""
        self.console.print(Padding(table, (0, 0, 0, INDENT)))

    def close(self, text: str) -> None:
        """Say what comes after."""
        self.console.print()
        self.console.print(text, soft_wrap=True)

    def _line(self, who: str, what: str, style: str, detail: str) -> None:
        line = Text.assemble((f"{who:<11}", "dim"), (what, style))
        if detail:
            line.append(f"  {detail}")
        self.console.print(Padding(line, (0, 0, 0, INDENT)))
