"""A service process: its one line, its answers, its end, and the addresses it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from api.serve import STOP_TIMEOUT_DEFAULT_S, ServiceSettings, run
from ledger.adapters.http import LedgerClient
from ledger.answer import Found
from ledger.errors import InvalidInput
from ledger.ledger import wall_clock_ms
from ledger.turn import Owner, Scope, Selector, SelectorKind, Turn

PROGRAM = "from api.serve import ServiceSettings, run; run(ServiceSettings())"
SCOPE = Scope(namespace="default", route="default", principal="local")
TIMEOUT_S = 30.0
"""Far above what a process needs: no test passes or fails by it."""


class Service:
    """One service process."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    async def stop(self, number: signal.Signals) -> tuple[int, str, str]:
        """Send a signal; return the exit code and what else was written to stdout and stderr."""
        self.process.send_signal(number)
        stdout, stderr = await asyncio.to_thread(self.process.communicate, timeout=TIMEOUT_S)
        return self.process.returncode, stdout, stderr


def start(directory: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a process that is configured by its environment."""
    given = {f"TURNLEDGER_{name.upper()}": value for name, value in environment.items()}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TURNLEDGER_PORT": "0", "TURNLEDGER_DIRECTORY": str(directory), **given},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@asynccontextmanager
async def serving(directory: Path, **environment: str) -> AsyncIterator[Service]:
    """Run a service until it is ready, and kill it in the end if the test has not."""
    with start(directory, **environment) as process:
        try:
            assert process.stdout is not None
            async with asyncio.timeout(TIMEOUT_S):
                line = await asyncio.to_thread(process.stdout.readline)
            prefix = "turnledger serving on "
            assert line.startswith(f"{prefix}http://"), line
            yield Service(process, line.removeprefix(prefix).strip())
        finally:
            process.kill()


def turn(response_id: str) -> Turn:
    return Turn(
        scope=SCOPE,
        event_id=f"event-of-{response_id}",
        response_id=response_id,
        owner=Owner(native=True, target="a"),
        begun_at_ms=wall_clock_ms(),
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_the_process_after_the_requests_under_way(tmp_path: Path, number: signal.Signals) -> None:
    body = b'{"response_id":"r1","event_id":"event-of-r1","owner":{"native":true,"target":"a"}}'
    async with serving(tmp_path) as service:
        host, port = service.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        headers = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nexpect: 100-continue"
        writer.write(f"POST /ledger/v1/turns HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        stopping = asyncio.create_task(service.stop(number))
        async with asyncio.timeout(TIMEOUT_S):
            await until_refused(host, int(port))
        writer.write(body)
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert b'"verdict":"accepted"' in answer
        code, stdout, stderr = await stopping
        assert (code, stdout) == (0, "")
        assert "event-of-" not in stderr


async def test_request_that_does_not_end_is_cut_after_the_stop_timeout(tmp_path: Path) -> None:
    async with serving(tmp_path, stop_timeout_s="1") as service:
        host, port = service.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        headers = f"host: {host}\r\ncontent-type: application/json\r\ncontent-length: 9"
        writer.write(f"POST /ledger/v1/turns HTTP/1.1\r\n{headers}\r\n\r\n".encode())
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{service.url}/health/live")).status_code == 200
        async with asyncio.timeout(STOP_TIMEOUT_DEFAULT_S - 5):
            code, _, _ = await service.stop(signal.SIGTERM)
        writer.close()
        assert code == 0
        assert b"200" not in (await reader.read())[:20]


@pytest.mark.parametrize(("seconds", "allowed"), [(0, False), (1, True), (7_200, True), (7_201, False)])
def test_stop_timeout_has_bounds(tmp_path: Path, seconds: int, allowed: bool) -> None:
    with contextlib.nullcontext() if allowed else pytest.raises(ValidationError, match="stop_timeout_s"):
        assert ServiceSettings(directory=tmp_path, stop_timeout_s=seconds).stop_timeout_s == seconds


async def until_refused(host: str, port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except ConnectionRefusedError:
            return
        writer.close()
        await asyncio.sleep(0.02)


async def test_what_was_acknowledged_is_found_after_a_kill_and_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as service, LedgerClient(service.url) as client:
        verdict = await client.publish(turn("r1"))
        assert verdict.accepted
        await service.stop(signal.SIGKILL)
    async with serving(tmp_path) as service, LedgerClient(service.url) as client:
        found = await client.load(Selector(scope=SCOPE, kind=SelectorKind.RESPONSE, id="r1"))
        assert isinstance(found, Found)
        assert found.node == verdict.token.offset


async def test_second_process_on_the_same_directory_ends_with_the_reason(tmp_path: Path) -> None:
    async with serving(tmp_path):
        second = start(tmp_path)
        stdout, stderr = await asyncio.to_thread(second.communicate, timeout=TIMEOUT_S)
        assert (second.returncode, stdout) == (1, "")
        assert "StateDirectoryLocked" in stderr


async def test_probes_are_answered_while_the_ledger_cannot_be_opened_yet(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent_broker, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        broker = f"127.0.0.1:{silent_broker.getsockname()[1]}"
        environment = {"kafka_bootstrap": broker, "alias_key": "ab" * 32, "port": str(port)}
        with start(tmp_path, **environment) as process:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
                async with asyncio.timeout(TIMEOUT_S):
                    while True:
                        with contextlib.suppress(httpx.ConnectError):
                            answer = await http.get("/health/ready")
                            break
                        await asyncio.sleep(0.05)
                assert (answer.status_code, answer.json()["ready"]) == (503, False)
                assert "starting" in answer.json()["reason"]
                assert (await http.get("/health/live")).status_code == 200
                commit = await http.post("/ledger/v1/turns")
                assert (commit.status_code, commit.json()["error"]["code"]) == (503, "unavailable")
            code, stdout, _ = await Service(process, "").stop(signal.SIGTERM)
            assert (code, stdout) == (0, "")


async def test_request_for_another_host_name_is_refused_without_an_auth_file(tmp_path: Path, auth_file: Path) -> None:
    environments: list[tuple[dict[str, str], int]] = [({}, 400), ({"auth_file": str(auth_file)}, 200)]
    for environment, status in environments:
        async with serving(tmp_path / str(status), **environment) as service, httpx.AsyncClient() as http:
            answer = await http.get(f"{service.url}/health/live", headers={"host": "rebound.example"})
            assert answer.status_code == status
            answer = await http.get(f"{service.url}/health/live", headers={"host": "localhost:1"})
            assert answer.status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "no-such-host.invalid"])  # noqa: S104  # refused, not bound
def test_address_that_others_can_reach_is_refused_without_an_auth_file(tmp_path: Path, host: str) -> None:
    with pytest.raises(InvalidInput, match="auth_file: is required to listen on"):
        run(ServiceSettings(host=host, directory=tmp_path, port=0))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_needs_no_auth_file(host: str) -> None:
    assert ServiceSettings(host=host).access().is_local


def test_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"port: {port} on 127.0.0.1 cannot be had"):
            run(ServiceSettings(directory=tmp_path, port=port))


def test_kafka_needs_the_alias_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServiceSettings(kafka_bootstrap="127.0.0.1:1")
    with pytest.raises(InvalidInput, match="alias_key_file: is required with Kafka"):
        settings.kafka_alias_key()
    (tmp_path / "key").write_text("ab" * 32 + "\n")
    monkeypatch.setenv("TURNLEDGER_ALIAS_KEY", "ab" * 32)
    from_environment = ServiceSettings(kafka_bootstrap="127.0.0.1:1").kafka_alias_key()
    from_file = ServiceSettings(kafka_bootstrap="x", alias_key_file=tmp_path / "key").kafka_alias_key()
    assert from_file.check_value() == from_environment.check_value()
    (tmp_path / "key").write_text("xyz")
    with pytest.raises(InvalidInput, match="must be hexadecimal digits"):
        ServiceSettings(alias_key_file=tmp_path / "key").kafka_alias_key()
