"""A batch, some of whose turns another replica holds: how long it may take, and what is believed of its answer."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from api.app import create_app
from api.auth import Access, Caller, Role
from api.forwarding import Forwarding
from api.holders import Holders
from api.ledger_name import LEDGER
from api.metrics import Metrics
from ledger.adapters.memory import MemoryContentStore, MemoryLog, MemoryViewStore
from ledger.ledger import Ledger, wall_clock_ms
from ledger.settings import LedgerSettings
from ledger.turn import Partition
from tests.api.entry import app_of, breaking, stranger_of
from tests.gateway.serving import listening
from tests.test_holding import KEY, formatted, scope_in

COMMIT_TIMEOUT_S = 0.25
HERE, THERE = scope_in(0).principal, scope_in(3).principal
Answer = Callable[[Request], Awaitable[Response]]


@asynccontextmanager
async def replica(holder_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run a replica of partition 0 that takes ``holder_url`` for the holder of the others."""
    caller = Caller(namespace="n", principals=None, routes=("r",), roles=frozenset(Role))
    access = Access({hashlib.sha256(b"token").digest(): caller})
    async with formatted() as world:
        ledger = Ledger(
            MemoryLog(world.topic, now_ms=wall_clock_ms),
            MemoryContentStore(world.contents, now_ms=wall_clock_ms),
            MemoryViewStore(),
            KEY,
            partitions=frozenset({Partition(0)}),
            settings=LedgerSettings(commit_timeout_s=COMMIT_TIMEOUT_S),
        )
        async with ledger:
            await ledger.start()
            holders = Holders.parse(f"1-3={holder_url}")
            forwarding = Forwarding(holders, ledger.ledger_id, Metrics(), answer_margin_s=0.0)
            await forwarding.start()
            transport = httpx.ASGITransport(create_app(ledger, access, forwarding=forwarding))
            headers = {"authorization": "Bearer token"}
            try:
                async with httpx.AsyncClient(transport=transport, base_url="http://replica", headers=headers) as http:
                    yield http
            finally:
                await forwarding.close()


def turn(name: str, principal: str = THERE, **rest: Any) -> dict[str, Any]:
    owner, content = {"native": False, "target": "c"}, {"input": [{"n": 1}]}
    return {"response_id": name, "principal": principal, "owner": owner, "content": content, **rest}


def accepted(index: int) -> dict[str, Any]:
    return {"index": index, "status": 200}


async def publish(http: httpx.AsyncClient, turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    answer = await http.post("/ledger/v1/turns/batch", json=turns)
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["results"]
    assert [one["index"] for one in results] == list(range(len(turns)))
    return results


async def test_batch_may_take_the_deadline_of_a_commit_for_each_turn_of_a_principal() -> None:
    async def holder(request: Request) -> Response:
        turns = await request.json()
        await asyncio.sleep(2 * COMMIT_TIMEOUT_S)
        return JSONResponse({"results": [accepted(index) for index in range(len(turns))]})

    async with listening(app_of(holder)) as url, replica(url) as http:
        results = await publish(http, [turn(f"r{number}") for number in range(20)])
        assert {one["status"] for one in results} == {200}


@pytest.mark.parametrize("how", ["breaks", "is not the ledger", "cannot be understood"])
async def test_parts_of_unknown_outcome_have_their_own_event_ids(how: str) -> None:
    sent: list[dict[str, Any]] = []

    async def other(request: Request) -> Response:
        sent.extend(await request.json())
        return Response(b"<html>", 502)

    parts = [turn("r1", event_id="e1"), turn("r2"), turn("r3", event_id=None), turn("r4", HERE)]
    async with (
        breaking() as (broken, _),
        listening(stranger_of(other) if how == "is not the ledger" else app_of(other)) as url,
        replica(broken if how == "breaks" else url) as http,
    ):
        results = await publish(http, parts)
    assert [one["status"] for one in results] == [504, 504, 504, 200]
    named = [one["error"]["event_id"] for one in results[:3]]
    assert named[0] == "e1"
    assert len(set(named)) == 3
    if sent:
        assert [part["event_id"] for part in sent] == named, "what the holder was told is what the caller may ask with"
        kept = [{name: value for name, value in part.items() if name != "event_id"} for part in sent]
        assert kept == [turn(f"r{number}") for number in (1, 2, 3)]


async def test_part_that_is_sent_on_is_a_turn_to_its_holder() -> None:
    bodies: list[bytes] = []

    async def holder(request: Request) -> Response:
        bodies.append(await request.body())
        return JSONResponse({"results": [accepted(0)]})

    async with listening(app_of(holder)) as url, replica(url) as http:
        raw = msgspec.json.encode(turn("r1", event_id=None)).replace(b'"n":1', b'"n": 1.50e3')
        answer = await http.post(
            "/ledger/v1/turns/batch", content=raw + b" \r\n", headers={"content-type": "application/x-ndjson"}
        )
        assert answer.json()["results"] == [accepted(0)]
        assert b'"n": 1.50e3' in bodies[0], "its numbers are as they came"
        # Another replica reads it as it reads any.
        moved = bodies[0].replace(THERE.encode(), HERE.encode())
        again = await http.post("/ledger/v1/turns/batch", content=moved, headers={"content-type": "application/json"})
        (result,) = again.json()["results"]
        assert result["status"] == 200
        assert result["verdict"]["event_id"] is not None


@pytest.mark.parametrize("indexes", [[0], [0, 0], [0, 2], [-1, 0], [0, 1, 2], []], ids=str)
async def test_answer_about_other_parts_than_were_asked_is_no_answer(indexes: list[int]) -> None:
    async def holder(_: Request) -> Response:
        return JSONResponse({"results": [accepted(index) for index in indexes]})

    async with listening(app_of(holder)) as url, replica(url) as http:
        results = await publish(http, [turn("r1"), turn("r2", HERE), turn("r3")])
        assert [one["status"] for one in results] == [504, 200, 504]
        selectors = [{"kind": "response", "id": "r1", "principal": principal} for principal in (THERE, HERE, THERE)]
        looked_up = await http.post("/ledger/v1/lookups", json={"selectors": selectors})
        assert looked_up.status_code == 200
        assert [one["status"] for one in looked_up.json()["results"]] == [503, 404, 503]


@pytest.mark.parametrize("other_ledger", [None, "ab" * 16], ids=["a stranger", "another ledger"])
async def test_parts_that_a_stranger_has_answered_are_not_believed(other_ledger: str | None) -> None:
    async def stranger(request: Request) -> Response:
        named = {} if other_ledger is None else {LEDGER: other_ledger}
        parts = await request.json()
        if isinstance(parts, list):
            return JSONResponse({"results": [accepted(index) for index in range(len(parts))]}, headers=named)
        missing = {"code": "missing", "message": "it never existed"}
        results = [{"index": index, "status": 404, "error": missing} for index in range(len(parts["selectors"]))]
        return JSONResponse({"results": results}, headers=named)

    async with listening(stranger_of(stranger)) as url, replica(url) as http:
        results = await publish(http, [turn("r1", event_id="e1"), turn("r2", HERE)])
        # Another ledger's answer is about another ledger; whose the other one is, nobody knows.
        status, code = (504, "unknown") if other_ledger is None else (503, "unavailable")
        assert [(one["status"], one.get("error", {}).get("code")) for one in results] == [(status, code), (200, None)]
        assert results[0]["error"].get("event_id") == ("e1" if other_ledger is None else None)
        selectors = [{"kind": "response", "id": "r9", "principal": principal} for principal in (THERE, HERE)]
        looked_up = await http.post("/ledger/v1/lookups", json={"selectors": selectors})
        assert [one["status"] for one in looked_up.json()["results"]] == [503, 404]


async def test_next_address_of_a_name_is_asked_when_a_read_broke_off(two_addresses: str) -> None:
    async def holder(_: Request) -> Response:
        return JSONResponse({"results": [{"index": 0, "status": 404, "error": {"code": "missing", "message": "no"}}]})

    async with breaking(host="127.0.0.2") as (url, taken):
        port = int(url.rpartition(":")[2])
        async with (
            listening(app_of(holder), port=port),
            replica(url.replace("127.0.0.2", two_addresses)) as http,
        ):
            selectors = [{"kind": "response", "id": "r1", "principal": THERE}]
            looked_up = await http.post("/ledger/v1/lookups", json={"selectors": selectors})
            assert [one["status"] for one in looked_up.json()["results"]] == [404]
            assert taken, "the name server gives this address first"
