"""README.md's examples are run as they are printed, and print what the page says."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PORT = "8420"
TIMEOUT_S = 60
VOLATILE = re.compile(r"lineage|.*_ms")
"""Fields whose values differ from run to run."""


def example(start: str) -> tuple[str, str]:
    """Return the one block that begins with ``start``, and the block after it, which shows the output."""
    found = [number for number, (_, text) in enumerate(BLOCKS) if text.startswith(start)]
    assert len(found) == 1, f"{start} begins {len(found)} blocks"
    return BLOCKS[found[0]][1], BLOCKS[found[0] + 1][1]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A user without settings and without a ledger, who has the command on the path."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TURNLEDGER_") and name != "KAFKA_BOOTSTRAP"
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "XDG_DATA_HOME": str(tmp_path), "PYTHONWARNINGS": "error"}


@pytest.fixture
def port(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """Run the page's service on a free port."""
    command, _ = example("turnledger serve")
    with socket.create_server(("127.0.0.1", 0)) as server:
        chosen = str(server.getsockname()[1])
    words = ["exec", *command.replace(PORT, chosen).split()]
    with subprocess.Popen(
        ["bash", "-c", " ".join(words)], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"turnledger serving on http://127.0.0.1:{chosen}\n"
            yield chosen
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()


def shell(command: str, environment: dict[str, str], directory: Path) -> str:
    ran = subprocess.run(
        ["bash", "-c", command],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def lasting(answer: Any) -> dict[str, Any]:
    assert isinstance(answer, dict)
    return {name: "..." if VOLATILE.fullmatch(name) else value for name, value in answer.items()}


def test_python_example_prints_what_the_page_says(environment: dict[str, str], tmp_path: Path) -> None:
    program, output = example("import asyncio")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**environment, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == output


def test_curl_and_replay_examples_answer_what_the_page_says(
    environment: dict[str, str], port: str, tmp_path: Path
) -> None:
    curls = [(text, BLOCKS[number + 1][1]) for number, (_, text) in enumerate(BLOCKS) if text.startswith("curl")]
    assert [("-d" in command) for command, _ in curls] == [True, False], "a turn is published, then looked up"
    for command, output in curls:
        answered = json.loads(shell(command.replace(PORT, port), environment, tmp_path))
        assert lasting(answered) == lasting(json.loads(output))
    command, output = example("turnledger replay")
    printed = shell(command.replace(PORT, port), environment, tmp_path)
    assert all(word in printed for word in output.split()), printed


def test_demo_prints_what_the_first_screen_says(environment: dict[str, str], tmp_path: Path) -> None:
    (excerpt,) = [text for _, text in BLOCKS if text.startswith("Two replicas")]

    def lasting_words(text: str) -> str:
        """Leave times and offsets out; where a line is broken depends on the terminal."""
        return " ".join(re.sub(r"[\d-]+ [\d:]+Z|(?<=offset )\d+|(?<=revision )\d+", "...", text).split())

    printed = lasting_words(shell("turnledger demo --once", environment, tmp_path))
    assert [line for line in excerpt.splitlines() if lasting_words(line) not in printed] == []


def test_commands_of_the_first_screen_are_targets_of_the_makefile() -> None:
    commands, _ = example("make run")
    named = re.findall(r"^make ([\w-]+)", commands, re.MULTILINE)
    targets = re.findall(r"^([\w-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named == ["run", "test", "run-kafka"]
    assert set(named) <= set(targets)


def test_every_path_and_link_of_the_page_exists() -> None:
    named = re.findall(r"\]\(([^)#:]+)\)", PAGE) + re.findall(r"^\| `([\w./-]+)` \|", PAGE, re.MULTILINE)
    assert [path for path in named if not (ROOT / path).exists()] == []


def free_ports(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [str(server.getsockname()[1]) for server in servers]


def test_replicas_continue_each_other_as_the_page_says(
    environment: dict[str, str], kafka_bootstrap: str, tmp_path: Path
) -> None:
    start, _ = example("export TURNLEDGER_KAFKA_BOOTSTRAP")
    program, output = example("import os, pathlib")
    config = (ROOT / "examples" / "gateway.yaml").read_text()
    named = sorted(set(re.findall(r"\b84[23]\d\b", start + program + config)))
    assert set(named) == set(re.findall(r"\b84[23]\d\b", start)), "the page starts what it asks"
    for port, free in zip(named, free_ports(len(named)), strict=True):
        start, program, config = (text.replace(port, free) for text in (start, program, config))
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "gateway.yaml").write_text(config)
    # Topics of its own, on a broker that other tests use.
    environment |= {
        "KAFKA_BOOTSTRAP": kafka_bootstrap,
        "TURNLEDGER_TOPIC_PREFIX": f"readme-{secrets.token_hex(6)}",
        "TMPDIR": str(tmp_path),
    }
    with (tmp_path / "log").open("wb") as log:
        shell_process = subprocess.Popen(
            ["bash", "-ec", f"{start}\nwait"],
            env=environment,
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        ran = subprocess.run(
            [sys.executable, "-c", f"{WAIT_FOR_PID}\n{program}"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert (ran.returncode, ran.stdout) == (0, output), ran.stderr + (tmp_path / "log").read_text()
    finally:
        os.killpg(shell_process.pid, signal.SIGKILL)
        shell_process.wait(TIMEOUT_S)


WAIT_FOR_PID = """
import pathlib, time
while not pathlib.Path("one.pid").exists() or not pathlib.Path("one.pid").read_text():
    time.sleep(0.1)
"""
"""Whoever pastes the program has seen the command before it end."""


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    checked = ("export TURNLEDGER", "import os", "make run", "import asyncio", "turnledger serve", "turnledger replay")
    unchecked = [text for kind, text in BLOCKS if kind in ("sh", "python") and not text.startswith((*checked, "curl"))]
    assert unchecked == []
