"""Replay over HTTP: whose events, how many, and what happens in the middle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import MutableMapping
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect

from api.app import create_app
from api.auth import Access, Caller, Role
from api.service import REPLAYS_MAX
from ledger.adapters.http import LedgerClient
from ledger.errors import Unavailable
from ledger.ledger import Ledger
from ledger.turn import Partition, Position
from tests.api.conftest import LOOPBACK, AsCaller, as_router
from tests.api.faults import ScriptedFaults
from tests.api.test_turns import native, partition_of, portable

REPLAY = "/ledger/v1/replay"
TOKEN_DIGEST = hashlib.sha256(b"auditor").digest()
AUDITOR = Caller(namespace="a", principals=None, routes=None, roles=frozenset({Role.AUDITOR}))


async def replayed(http: httpx.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    answer = await http.get(REPLAY, params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


async def ids(http: httpx.AsyncClient, **params: Any) -> list[str]:
    return [event["response_id"] for event in await replayed(http, **params)]


async def test_replay_shows_the_events_of_the_tokens_namespace_with_their_verdicts(as_caller: AsCaller) -> None:
    async with as_caller("router-a") as a, as_caller("router-b") as b, as_caller("auditor") as auditor:
        await a.post("/ledger/v1/turns", json=native("a1", principal="p"))
        await a.post("/ledger/v1/turns", json=native("a1", principal="p"))
        await b.post("/ledger/v1/turns", json=native("b1", principal="p"))
        events = await replayed(auditor)
        assert [(event["response_id"], event["verdict"]) for event in events] == [
            ("a1", "accepted"),
            ("a1", "response_exists"),
        ]
        assert (await auditor.get(REPLAY, params={"namespace": "b"})).status_code == 403
        assert await replayed(auditor, namespace="a") == events


async def test_replay_shows_only_the_principals_of_the_token(as_caller: AsCaller) -> None:
    async with as_caller("router-a") as router, as_caller("auditor") as auditor, as_caller("alice-auditor") as alice:
        for name in ("alice", "bob"):
            await router.post("/ledger/v1/turns", json=native(f"of-{name}", principal=name))
        assert await ids(auditor) == ["of-alice", "of-bob"]
        assert await ids(auditor, principal="bob") == ["of-bob"]
        assert await ids(alice) == ["of-alice"]
        assert (await alice.get(REPLAY, params={"principal": "bob"})).status_code == 403


async def test_replay_of_an_id_shows_its_lineage_up_to_an_offset_or_a_time(http: httpx.AsyncClient) -> None:
    await http.post("/ledger/v1/turns", json=portable("r1", "x", conversation_id="c"))
    await http.post("/ledger/v1/turns", json=native("other"))
    await http.post("/ledger/v1/turns", json=portable("r2", "y", conversation_id="c"))
    events = await replayed(http, kind="conversation", id="c")
    assert [event["response_id"] for event in events] == ["r1", "r2"]
    assert await ids(http, until_offset=events[0]["offset"]) == ["r1"]
    assert await ids(http, until_ms=events[0]["appended_at_ms"] - 1) == []
    assert len(await ids(http, until_ms=events[-1]["appended_at_ms"])) == 3


async def test_replay_of_a_trimmed_log_is_refused_before_the_first_line(
    http: httpx.AsyncClient, ledger: Ledger
) -> None:
    for number in range(3):
        await http.post("/ledger/v1/turns", json=native(f"r{number}"))
    await ledger.log.trim(Position(2), timeout_s=5.0)  # type: ignore[attr-defined]  # the embedded log trims itself
    answer = await http.get(REPLAY)
    assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "log_gap")


async def test_replays_whose_clients_went_away_make_room_for_others(http: httpx.AsyncClient, ledger: Ledger) -> None:
    await http.post("/ledger/v1/turns", json=native("r1"))
    app = create_app(ledger, Access.local())
    for _ in range(REPLAYS_MAX + 1):
        with pytest.raises(ClientDisconnect):
            await app(SCOPE, receive_request, send_to_nobody)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=LOOPBACK) as others:
        assert await ids(others) == ["r1"]


async def test_replay_that_fails_in_the_middle_is_not_taken_for_a_whole_one(
    faulty: Ledger, faults: ScriptedFaults
) -> None:
    names = ("p", next(name for name in "abcdefgh" if partition_of(name, faulty) != partition_of("p", faulty)))
    async with as_router(faulty) as http:
        for name in names:
            await http.post("/ledger/v1/turns", json=native("r1", principal=name))
    assert faults.topic is not None
    faults.topic.trim(Partition(1), Position(1))
    app = create_app(faulty, Access({TOKEN_DIGEST: AUDITOR}))
    async with LedgerClient(token="auditor", transport=httpx.ASGITransport(app)) as client:
        events = client.replay()
        assert (await anext(events))["partition"] == 0
        with pytest.raises(Unavailable, match="log_gap"):
            await anext(events)


SCOPE: dict[str, Any] = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.4"},
    "http_version": "1.1",
    "method": "GET",
    "path": REPLAY,
    "raw_path": REPLAY.encode(),
    "root_path": "",
    "query_string": b"",
    "headers": [],
    "scheme": "http",
}


async def receive_request() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def send_to_nobody(message: MutableMapping[str, Any]) -> None:
    if message["type"] == "http.response.body":
        raise OSError("the client went away")
