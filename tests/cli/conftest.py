"""The command line, run in this process or as a process of its own, always on a real ledger."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

from cli.main import app

READY = "turnledger serving on "


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one JSON value that was printed."""
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        """The JSON values that were printed, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ran]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give this test a user of its own: no settings, and an embedded ledger that does not exist yet."""
    for name in [name for name in os.environ if name.startswith("TURNLEDGER_") or name == "KAFKA_BOOTSTRAP"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "turnledger"


@pytest.fixture
def run(home: Path) -> Iterator[Run]:
    """Run a command in this process."""
    handlers, level = logging.root.handlers[:], logging.root.level

    def invoke(*arguments: str, stdin: str | None = None) -> Ran:
        result = CliRunner().invoke(app, arguments, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(code=result.exit_code, out=result.stdout, err=result.stderr)

    yield invoke
    # The command sends logs to the stderr that it was given, which is closed by now.
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture
def published(run: Run) -> Run:
    """The same, with a native turn, a portable one and its continuation in the embedded ledger."""
    assert run("publish", "-", stdin=ndjson(NATIVE, PORTABLE, CONTINUED)).code == 0
    return run


def ndjson(*turns: dict[str, Any]) -> str:
    """Return turns, one a line."""
    return "".join(json.dumps(turn) + "\n" for turn in turns)


NATIVE: dict[str, Any] = {
    "event_id": "event_native",
    "response_id": "resp_native",
    "owner": {"native": True, "target": "alpha"},
}
PORTABLE: dict[str, Any] = {
    "event_id": "event_portable",
    "response_id": "resp_portable",
    "owner": {"native": False, "target": "beta"},
    "content": {
        "input": [{"type": "message", "role": "user", "content": "What is a ledger?"}],
        "output": [{"type": "message", "role": "assistant", "content": "A book that is only added to."}],
    },
}
CONTINUED: dict[str, Any] = {
    "event_id": "event_continued",
    "response_id": "resp_continued",
    "previous_response_id": "resp_portable",
    "owner": {"native": False, "target": "beta"},
    "item_ids": ["msg_1"],
    "content": {"input": [{"id": "msg_1", "role": "user", "content": "And then?"}]},
}


def turn_in(conversation_id: str, name: str) -> dict[str, Any]:
    """Return a portable turn of a conversation, whose one item can be named."""
    return {
        "event_id": f"event_{name}",
        "response_id": f"resp_{name}",
        "conversation_id": conversation_id,
        "owner": {"native": False, "target": "beta"},
        "item_ids": [f"msg_{name}"],
        "content": {"input": [{"id": f"msg_{name}", "role": "user", "content": name}]},
    }


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command as a process of its own, which is killed if it does not end by itself."""
    command = [sys.executable, "-m", "cli", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """Serve on a free port; give the URL, and check that SIGTERM ends it in order."""
    with process("serve", "--port", "0", "--log-level", "error", *arguments) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        assert line.startswith(READY), child.communicate()
        yield line.removeprefix(READY).strip()
        child.send_signal(signal.SIGTERM)
        assert child.wait() == 0, child.communicate()
