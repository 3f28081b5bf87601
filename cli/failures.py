"""What the command line says when something is wrong: one line on stderr, and an exit code by family."""

from __future__ import annotations

import os
import sys
from enum import IntEnum
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from ledger.answer import Answer, Found, Gone, Missing, Verdict
from ledger.errors import CallerError, FatalError, LedgerError, Unavailable, Unknown


class ExitCode(IntEnum):
    """What a script can branch on; ``EPILOG`` documents it in ``--help``."""

    OK = 0
    CALLER = 2
    """The call is wrong; click uses the same code for its own usage errors."""
    REFUSED = 3
    """The ledger answered, and the answer is no: a refused verdict, a missing or gone ID, a check with problems."""
    UNAVAILABLE = 4
    UNKNOWN = 5
    FATAL = 6


EPILOG = (
    "Exit codes: 0 done; 2 the call is wrong; 3 refused, missing or gone; 4 unavailable, try again; "
    "5 outcome unknown, retry with the same event_id; 6 the ledger must not be served as it is."
)


class ReportingGroup(TyperGroup):
    """The top command: the one place where an error becomes a line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            # Here and not at exit, where a pipe that nobody reads any more could not be answered for.
            sys.stdout.flush()
        except LedgerError as error:
            report(str(error), error.advice)
            raise typer.Exit(exit_code(error)) from None
        except BrokenPipeError:
            # The reader of a pipe has seen enough; Python would complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(ExitCode.OK) from None
        except OSError as error:
            report(str(error))
            raise typer.Exit(ExitCode.FATAL) from None
        return result


def report(message: str, advice: str = "") -> None:
    """Print one line on stderr: what is wrong, and what to do if the message does not say it."""
    line = " ".join(message.split())
    if advice and advice != LedgerError.advice and advice not in line:
        line = f"{line}; {advice}"
    Console(stderr=True).print(f"turnledger: {line}", markup=False, highlight=False, soft_wrap=True)


def exit_code(error: LedgerError) -> ExitCode:
    """Return the exit code of an error's family."""
    match error:
        case CallerError():
            return ExitCode.CALLER
        case Unknown():
            return ExitCode.UNKNOWN
        case Unavailable():
            return ExitCode.UNAVAILABLE
        case FatalError():
            return ExitCode.FATAL
        case _:
            return ExitCode.FATAL


def exit_code_of_verdict(verdict: Verdict) -> ExitCode:
    """Return 0 when the event has its effect, also as the duplicate of an accepted one."""
    return ExitCode.OK if verdict.accepted else ExitCode.REFUSED


def exit_code_of_answer(answer: Answer) -> ExitCode:
    """Return 0 for ``Found`` only."""
    match answer:
        case Found():
            return ExitCode.OK
        case Missing() | Gone():
            return ExitCode.REFUSED
