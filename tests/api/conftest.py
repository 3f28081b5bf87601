"""A service over a real embedded ledger, asked in process."""

from __future__ import annotations

import hashlib
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from api.app import create_app
from api.auth import Access, Caller, Role
from api.metrics import Metrics
from ledger.adapters.http import LedgerClient
from ledger.composition import open_embedded
from ledger.ledger import Ledger
from ledger.turn import Partition
from tests.api.faults import ScriptedFaults, faulty_ledger

LOOPBACK = "http://127.0.0.1"
TOKENS: dict[str, dict[str, object]] = {
    "router-a": {"namespace": "a", "principals": "*", "routes": ["default"], "roles": ["router"]},
    "router-b": {"namespace": "b", "principals": "*", "routes": ["default"], "roles": ["router"]},
    "alice": {"namespace": "a", "principals": ["alice"], "routes": ["default", "other"], "roles": ["router"]},
    "reader": {"namespace": "a", "principals": ["alice", "bob"], "routes": ["default"], "roles": ["reader"]},
    "auditor": {"namespace": "a", "principals": "*", "routes": "*", "roles": ["auditor"]},
    "alice-auditor": {"namespace": "a", "principals": ["alice"], "routes": ["default"], "roles": ["auditor"]},
    "admin": {"namespace": "a", "principals": "*", "routes": "*", "roles": ["admin"]},
}
"""Tokens of the auth file, by their own text."""


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def ledger(tmp_path: Path, metrics: Metrics) -> AsyncIterator[Ledger]:
    async with await open_embedded(tmp_path / "ledger", on_outcome=metrics.folded) as opened:
        yield opened


@pytest.fixture
def auth_file(tmp_path: Path) -> Path:
    entries = [{"sha256": hashlib.sha256(token.encode()).hexdigest(), **rest} for token, rest in TOKENS.items()]
    path = tmp_path / "auth.yaml"
    path.write_text(yaml.safe_dump({"tokens": entries}))
    return path


@pytest.fixture
async def http(ledger: Ledger, metrics: Metrics) -> AsyncIterator[httpx.AsyncClient]:
    """The service without an auth file."""
    app = create_app(ledger, Access.local(), metrics=metrics)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=LOOPBACK) as client:
        yield client


@pytest.fixture
async def client(ledger: Ledger, metrics: Metrics) -> AsyncIterator[LedgerClient]:
    """The same through the project's own client."""
    app = create_app(ledger, Access.local(), metrics=metrics)
    async with LedgerClient(transport=httpx.ASGITransport(app)) as opened:
        yield opened


AsCaller = Callable[[str], httpx.AsyncClient]


@pytest.fixture
def as_caller(ledger: Ledger, auth_file: Path) -> AsCaller:
    """Ask the service with an auth file as the caller who has this token."""
    transport = httpx.ASGITransport(create_app(ledger, Access.from_file(auth_file)))
    return lambda token: httpx.AsyncClient(
        transport=transport, base_url=LOOPBACK, headers={"authorization": f"Bearer {token}"}
    )


@pytest.fixture
def faults() -> ScriptedFaults:
    return ScriptedFaults()


@pytest.fixture
async def faulty(faults: ScriptedFaults) -> AsyncIterator[Ledger]:
    async with faulty_ledger(faults, partition_count=2) as opened:
        yield opened


def as_router(ledger: Ledger) -> httpx.AsyncClient:
    """Ask a service over ``ledger`` that lets its one caller name any principal."""
    caller = Caller(namespace="a", principals=None, routes=("default",), roles=frozenset(Role))
    access = Access({hashlib.sha256(b"router").digest(): caller})
    transport = httpx.ASGITransport(create_app(ledger, access))
    return httpx.AsyncClient(transport=transport, base_url=LOOPBACK, headers={"authorization": "Bearer router"})


def log_end(ledger: Ledger) -> int:
    """Return the end of the embedded log."""
    return ledger.replica.rows(Partition(0)).position


@pytest.fixture
def two_addresses(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a name that has two addresses: what is replaced is the name server."""
    if sys.platform != "linux":
        pytest.skip("elsewhere loopback has one address")
    known = socket.getaddrinfo

    def resolve(host: str, port: int, *rest: Any, **options: Any) -> list[Any]:
        if host != "holders.test":
            return list(known(host, port, *rest, **options))
        kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(*kind, (address, port)) for address in ("127.0.0.2", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return "holders.test"
