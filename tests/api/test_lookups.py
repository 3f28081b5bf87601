"""Reads over HTTP: found, missing, gone, unavailable; histories."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from ledger.bodies import LOOKUPS_MAX
from ledger.ledger import Ledger
from ledger.turn import Partition
from tests.api.conftest import AsCaller, as_router
from tests.api.faults import ScriptedFaults
from tests.api.test_turns import native, partition_of, portable

LOOKUP = "/ledger/v1/lookup"


def response(opaque_id: str, **rest: str) -> dict[str, str]:
    return {"kind": "response", "id": opaque_id, **rest}


async def test_unknown_id_answers_404(http: httpx.AsyncClient) -> None:
    answer = await http.get(LOOKUP, params=response("nope"))
    assert answer.status_code == 404
    assert answer.json()["error"] == {
        "code": "missing",
        "message": "no such response is known here",
        "kind": "response",
    }


async def test_deleted_id_answers_410_with_reason_and_time(http: httpx.AsyncClient, ledger: Ledger) -> None:
    await http.post("/ledger/v1/turns", json=native("r1"))
    assert (await http.delete("/ledger/v1/responses", params={"id": "r1"})).status_code == 200
    error = (answer := await http.get(LOOKUP, params=response("r1"))).json()["error"]
    assert answer.status_code == 410
    assert (error["code"], error["reason"]) == ("gone", "deleted")
    assert error["at_ms"] == ledger.replica.rows(Partition(0)).meta.clock_ms


async def test_expired_id_answers_410_with_its_reason(http: httpx.AsyncClient) -> None:
    await http.patch("/ledger/v1/policy", json={"active_ttl_ms": 1000})
    await http.post("/ledger/v1/turns", json=native("r1"))
    await asyncio.sleep(1.1)
    answer = await http.get(LOOKUP, params=response("r1"))
    assert (answer.status_code, answer.json()["error"]["reason"]) == (410, "expired")


async def test_foreign_id_answers_exactly_as_a_random_one(as_caller: AsCaller) -> None:
    async with as_caller("router-a") as a, as_caller("router-b") as b:
        await a.post("/ledger/v1/turns", json=native("r1", principal="p"))
        assert (await a.get(LOOKUP, params=response("r1", principal="p"))).status_code == 200
        foreign = await b.get(LOOKUP, params=response("r1", principal="p"))
        unknown = await b.get(LOOKUP, params=response("r2", principal="p"))
        other_principal = await a.get(LOOKUP, params=response("r1", principal="q"))
    assert foreign.status_code == 404
    for answer in (unknown, other_principal):
        assert (answer.status_code, answer.content, answer.headers) == (404, foreign.content, foreign.headers)


async def test_view_that_lags_answers_503_and_never_404(faulty: Ledger, faults: ScriptedFaults) -> None:
    partition = partition_of("p", faulty)
    async with as_router(faulty) as http:
        faults.held_back_at = faulty.replica.rows(partition).position
        await http.post("/ledger/v1/turns", json=native("r1", principal="p"))
        answer = await http.get(LOOKUP, params=response("r1", principal="p"))
        assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "lagging")
        assert answer.headers["retry-after"] == "1"
        faults.held_back_at = None
        assert (await http.get(LOOKUP, params=response("r1", principal="p"))).status_code == 200


async def test_leader_that_does_not_answer_makes_a_read_unavailable(faulty: Ledger, faults: ScriptedFaults) -> None:
    faults.leaderless = {partition_of("p", faulty)}
    async with as_router(faulty) as http:
        answer = await http.get(LOOKUP, params=response("r1", principal="p"))
    assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "leader")


async def test_many_selectors_are_answered_by_their_index(http: httpx.AsyncClient) -> None:
    await http.post("/ledger/v1/turns", json=native("r1"))
    selectors = [
        response("r1"),
        response("r2"),
        response(""),
        {"kind": "answer", "id": "r1"},
        response("r1", token="x"),
    ]
    answer = await http.post("/ledger/v1/lookups", json={"selectors": selectors})
    results = answer.json()["results"]
    assert [(result["index"], result["status"]) for result in results] == [
        (0, 200),
        (1, 404),
        (2, 400),
        (3, 400),
        (4, 400),
    ]
    assert results[0]["found"]["response_id"] == "r1"
    fields = [result["error"]["field"] for result in results[2:]]
    assert fields == ["selectors[2].id", "selectors[3].kind", "selectors[4].token"]


@pytest.mark.parametrize(("count", "status"), [(LOOKUPS_MAX, 200), (LOOKUPS_MAX + 1, 413)])
async def test_selectors_are_bounded(http: httpx.AsyncClient, count: int, status: int) -> None:
    selectors = [response(f"r{number}") for number in range(count)]
    answer = await http.post("/ledger/v1/lookups", json={"selectors": selectors})
    assert answer.status_code == status


async def test_history_has_every_turn_from_the_first_on(http: httpx.AsyncClient) -> None:
    parent: dict[str, Any] = {}
    for number in range(3):
        await http.post("/ledger/v1/turns", json=portable(f"r{number}", f"t{number}", **parent))
        parent = {"previous_response_id": f"r{number}"}
    found = (await http.get("/ledger/v1/history", params=response("r2"))).json()
    entries = found["history"]["entries"]
    assert [entry["response_id"] for entry in entries] == ["r0", "r1", "r2"]
    assert [entry["input"] + entry["output"] for entry in entries] == [
        [{"text": f"t{number}"}, {"text": f"T{number}"}] for number in range(3)
    ]


async def test_history_of_a_native_turn_answers_409(http: httpx.AsyncClient) -> None:
    await http.post("/ledger/v1/turns", json=native("r1"))
    answer = await http.get("/ledger/v1/history", params=response("r1"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "native_history")


async def test_token_that_no_commit_returned_is_refused_and_leaves_the_view_ready(
    http: httpx.AsyncClient, ledger: Ledger
) -> None:
    answer = await http.get(LOOKUP, params=response("r1", token="0:999999"))
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "token")
    state = ledger.replica.states()[Partition(0)]
    assert state.end_seen <= state.rows.position
