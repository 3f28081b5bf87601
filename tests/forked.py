"""``turnledger`` as processes of their own that are forked from one where everything is imported already.

A start is imports for nine tenths, and the tests start services more than a hundred times. What a test kills, stops or
reads from is a process like any other, with nothing in common with the test's; that the command starts by itself is
what ``tests/cli`` and ``tests/docs`` see.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TextIO

_context = multiprocessing.get_context("forkserver")
# The commands, and what they import only once they run.
_context.set_forkserver_preload(
    [
        "cli.main",
        "api.serve",
        "processors.app",
        "faust.transport.drivers.aiokafka",
        "uvicorn.lifespan.off",
        "uvicorn.protocols.http.httptools_impl",
        "uvicorn.protocols.websockets.auto",
    ]
)
# Whoever asks for an exit code, or starts a process, has multiprocessing read what all the others have ended with, and
# each of these can be read once.
_lock = threading.Lock()


def unconfigured() -> dict[str, str]:
    """Return this process's environment without what configures a turnledger."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TURNLEDGER_")}


class Forked:
    """One command that runs, or has ended."""

    def __init__(self, *words: str, environ: Mapping[str, str], log: Path | None = None) -> None:
        """Start it. ``environ`` is its whole environment; ``log``: what it prints is added to this file, and is
        otherwise read from ``output``."""
        reader, writer = _context.Pipe(duplex=False)
        # Daemonic: what a test leaves behind by a failure ends with the tests.
        self._process = _context.Process(target=_run, args=(words, dict(environ), writer, log), daemon=True)
        with _lock:
            self._process.start()
        writer.close()
        self.output: TextIO = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
        reader.close()

    @property
    def code(self) -> int | None:
        """The exit code, minus the signal that ended it; None while it runs."""
        with _lock:
            return self._process.exitcode

    def send(self, number: signal.Signals) -> None:
        """Send a signal to a process that may have ended."""
        if self.code is None:
            assert self._process.pid is not None
            os.kill(self._process.pid, number)

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code; raises ``TimeoutError``."""
        wait([self._process.sentinel], timeout_s)
        if (code := self.code) is None:
            raise TimeoutError
        return code

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal that ends it, wait for that and return the exit code."""
        self.send(number)
        try:
            return self.wait()
        finally:
            self.output.close()


def _run(words: tuple[str, ...], environ: dict[str, str], output: Connection, log: Path | None) -> None:
    if log is None:
        os.dup2(output.fileno(), sys.stdout.fileno())
    else:
        with log.open("ab") as file:
            os.dup2(file.fileno(), sys.stdout.fileno())
            os.dup2(file.fileno(), sys.stderr.fileno())
    output.close()
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = ["turnledger", *words]
    from cli.main import main

    main()
