"""``turnledger demo``: what a newcomer sees, and that it can be left alone."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import READY, Run, process


def test_demo_shows_every_rule_once_and_ends(home: Path) -> None:
    with process("demo", "--once") as child:
        out, err = child.communicate()
    assert (child.returncode, err) == (0, "")
    for fact in (
        "300 accepted, 248 of them continue another",
        "300 found, 0 not",
        "owner_conflict",
        "revision_conflict",
        "duplicate",
        "gone  expired",
        "gone  deleted",
        "never existed here",
        "ConversationCreated",
        "0 differ",
    ):
        assert fact in out
    assert out.count("43 turns, 41,892 characters, oldest first, nothing left out") == 3
    assert not home.exists()


def test_demo_leaves_a_service_whose_curl_line_works(home: Path, tmp_path: Path) -> None:
    with process("demo", "--directory", str(tmp_path / "kept")) as child:
        assert child.stdout is not None
        lines: list[str] = []
        while not (lines and lines[-1].startswith(READY)):
            lines.append(child.stdout.readline())
            assert lines[-1], child.communicate()
        (curl,) = [shlex.split(line) for line in lines if line.strip().startswith("curl")]
        if shutil.which("curl"):
            answer = subprocess.run(curl, capture_output=True, check=True, text=True).stdout
        else:
            answer = httpx.get(curl[-1]).text
        assert '"owner"' in answer
        child.send_signal(signal.SIGINT)
        assert child.wait() == 0
    assert (tmp_path / "kept" / "log").is_dir()


def test_demo_refuses_a_directory_that_holds_a_ledger(published: Run, home: Path) -> None:
    ran = published("demo", "--once", "--directory", str(home))
    assert ran.code == 2
    assert ran.err.startswith(f"turnledger: directory: {home} holds a ledger already")


@pytest.mark.timeout(240)  # It starts services six times; each waits for its brokers.
def test_demo_on_kafka_kills_each_replica_and_loses_nothing(home: Path, kafka_bootstrap: str) -> None:
    with process("demo", "--kafka", "--once", "--bootstrap", kafka_bootstrap) as child:
        out, err = child.communicate()
    assert (child.returncode, err) == (0, "")
    assert "300 found, 0 not" in out
    assert out.count(", 0 lost") == 4
    assert out.count("started again") == 2
    assert "0 differ" in out
