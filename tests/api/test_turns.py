"""Publishing over HTTP: verdicts, batches, starts and abandonments."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from api.turns import PRINCIPALS_AT_ONCE_MAX
from ledger.audit import Filter, replay
from ledger.bodies import BATCH_TURNS_MAX
from ledger.composition import scratch_view
from ledger.ledger import Ledger
from ledger.turn import Partition, Scope
from tests.api.conftest import AsCaller, as_router, log_end
from tests.api.faults import DELIVERED, LOST, REFUSED, ScriptedFaults

NATIVE = {"native": True, "target": "provider-a", "digest": "ab12"}


def native(response_id: str, **rest: Any) -> dict[str, Any]:
    return {"response_id": response_id, "owner": NATIVE, **rest}


def portable(response_id: str, text: str, **rest: Any) -> dict[str, Any]:
    content = {"input": [{"text": text}], "output": [{"text": text.upper()}]}
    return {"response_id": response_id, "owner": {"native": False, "target": "x"}, "content": content, **rest}


async def test_accepted_turn_answers_200_with_a_token_and_is_found(http: httpx.AsyncClient) -> None:
    answer = await http.post("/ledger/v1/turns", json=native("resp/1 ?&", event_id="e1", record="00ff"))
    assert answer.status_code == 200
    assert answer.json() == {"event_id": "e1", "verdict": "accepted", "token": "0:1", "accepted": True}
    found = await http.get("/ledger/v1/lookup", params={"kind": "response", "id": "resp/1 ?&", "token": "0:1"})
    assert found.status_code == 200
    assert found.json()["owner"] == NATIVE
    assert found.json()["record"] == "00ff"


async def test_service_makes_an_event_id_where_none_is_given(http: httpx.AsyncClient) -> None:
    first = (await http.post("/ledger/v1/turns", json=native("r1"))).json()
    again = await http.post("/ledger/v1/turns", json=native("r1", event_id=first["event_id"]))
    assert again.status_code == 200
    assert (again.json()["verdict"], again.json()["first_verdict"]) == ("duplicate", "accepted")


async def test_refused_turn_answers_409_with_its_verdict(http: httpx.AsyncClient) -> None:
    await http.post("/ledger/v1/turns", json=native("r1"))
    other = {"native": True, "target": "provider-b"}
    answer = await http.post("/ledger/v1/turns", json={**native("r1", event_id="e2"), "owner": other})
    assert answer.status_code == 409
    assert answer.json()["verdict"] == "owner_conflict"


async def test_duplicate_of_a_refused_turn_answers_409_again(http: httpx.AsyncClient) -> None:
    await http.post("/ledger/v1/turns", json=native("r1"))
    for verdict in ("response_exists", "duplicate"):
        answer = await http.post("/ledger/v1/turns", json=native("r1", event_id="e2"))
        assert (answer.status_code, answer.json()["verdict"]) == (409, verdict)


async def test_stale_revision_is_refused_with_the_current_one(http: httpx.AsyncClient) -> None:
    revision = (await http.post("/ledger/v1/turns", json=portable("r1", "a", conversation_id="c"))).json()["revision"]
    stale = portable("r2", "b", conversation_id="c", expected_revision=revision + 1)
    answer = await http.post("/ledger/v1/turns", json=stale)
    assert answer.status_code == 409
    assert (answer.json()["verdict"], answer.json()["revision"]) == ("revision_conflict", revision)


async def test_start_is_seen_and_its_turn_ends_it(http: httpx.AsyncClient) -> None:
    start = {"turn_id": "t1", "lease_ms": 60_000, "response_id": "r1", "queued": True}
    assert (await http.post("/ledger/v1/starts", json=start)).status_code == 200
    found = await http.get("/ledger/v1/lookup", params={"kind": "response", "id": "r1"})
    assert found.json()["status"] == "queued"
    assert (await http.post("/ledger/v1/turns", json=native("r1", turn_id="t1"))).status_code == 200
    found = await http.get("/ledger/v1/lookup", params={"kind": "response", "id": "r1", "strong": "true"})
    assert found.json()["status"] == "completed"


async def test_abandoned_commit_is_undone(http: httpx.AsyncClient) -> None:
    await http.post("/ledger/v1/turns", json=native("r1", event_id="e1"))
    answer = await http.post("/ledger/v1/abandonments", json={"event_id": "e1"})
    assert (answer.status_code, answer.json()["verdict"]) == (200, "accepted")
    found = await http.get("/ledger/v1/lookup", params={"kind": "response", "id": "r1", "strong": "true"})
    assert (found.status_code, found.json()["error"]["reason"]) == (410, "deleted")


async def test_abandonment_that_cannot_be_written_is_accepted_for_later(faulty: Ledger, faults: ScriptedFaults) -> None:
    faults.fates[partition_of("p", faulty)] = [REFUSED]
    async with as_router(faulty) as http:
        answer = await http.post("/ledger/v1/abandonments", json={"event_id": "e1", "principal": "p"})
    assert (answer.status_code, answer.json()) == (202, {"event_id": "e1", "waiting": True})
    assert faulty.committer.abandonments_waiting() == 1


async def test_batch_answers_each_turn_by_its_index(http: httpx.AsyncClient) -> None:
    batch = [native("r1"), native(""), native("r1"), {"owner": NATIVE}, 7]
    answer = await http.post("/ledger/v1/turns/batch", json=batch)
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [(result["index"], result["status"]) for result in results] == [
        (0, 200),
        (1, 400),
        (2, 409),
        (3, 400),
        (4, 400),
    ]
    assert results[1]["error"]["field"] == "turns[1].response_id"
    assert results[3]["error"]["field"] == "turns[3].response_id"


async def test_batch_as_lines_is_the_same_as_a_list(http: httpx.AsyncClient) -> None:
    lines = "\n".join(json.dumps(native(f"r{number}")) for number in range(3)) + "\n"
    answer = await http.post("/ledger/v1/turns/batch", content=lines, headers={"content-type": "application/x-ndjson"})
    assert [result["status"] for result in answer.json()["results"]] == [200, 200, 200]


async def test_batch_keeps_the_order_of_each_principal(as_caller: AsCaller, ledger: Ledger) -> None:
    names = [f"p{number}" for number in range(PRINCIPALS_AT_ONCE_MAX + 1)]
    batch = [
        portable(
            f"{name}-{step}", "x", principal=name, **({"previous_response_id": f"{name}-{step - 1}"} if step else {})
        )
        for step in range(4)
        for name in names
    ]
    async with as_caller("router-a") as http:
        answer = await http.post("/ledger/v1/turns/batch", json=batch)
    assert {result["status"] for result in answer.json()["results"]} == {200}
    seen: dict[str, list[str]] = {}
    with scratch_view() as store:
        async for replayed in replay(ledger.log, store, [Partition(0)], Filter(namespace="a")):
            response_id = replayed.described()["response_id"]
            seen.setdefault(response_id.split("-")[0], []).append(response_id)
    assert seen == {name: [f"{name}-{step}" for step in range(4)] for name in names}


async def test_rest_of_a_principal_is_not_tried_after_a_turn_without_verdict(
    faulty: Ledger, faults: ScriptedFaults
) -> None:
    other = next(name for name in "bcdefgh" if partition_of(name, faulty) != partition_of("a", faulty))
    faults.fates[partition_of("a", faulty)] = [DELIVERED, LOST]
    batch = [native("r0", principal="a"), native("r1", principal="a", event_id="lost"), native("r0", principal=other)]
    batch.append(native("r2", principal="a", previous_response_id="r1"))
    async with as_router(faulty) as http:
        results = (await http.post("/ledger/v1/turns/batch", json=batch)).json()["results"]
    assert [result["status"] for result in results] == [200, 504, 200, 503]
    assert results[1]["error"]["event_id"] == "lost"


@pytest.mark.parametrize(("count", "status"), [(BATCH_TURNS_MAX, 200), (BATCH_TURNS_MAX + 1, 413)])
async def test_batch_is_bounded(http: httpx.AsyncClient, ledger: Ledger, count: int, status: int) -> None:
    end = log_end(ledger)
    answer = await http.post("/ledger/v1/turns/batch", json=[{}] * count)
    assert answer.status_code == status
    assert log_end(ledger) == end


async def test_commit_without_a_verdict_answers_504_with_its_event_id(faulty: Ledger, faults: ScriptedFaults) -> None:
    faults.fates[partition_of("p", faulty)] = [LOST]
    async with as_router(faulty) as http:
        answer = await http.post("/ledger/v1/turns", json=native("r1", event_id="e1", principal="p"))
    assert answer.status_code == 504
    error = answer.json()["error"]
    assert (error["code"], error["event_id"]) == ("unknown", "e1")
    assert error["advice"] == "retry with the same event_id, or abandon it"


async def test_commit_that_was_not_written_answers_503_and_when_to_retry(
    faulty: Ledger, faults: ScriptedFaults
) -> None:
    faults.fates[partition_of("p", faulty)] = [REFUSED]
    async with as_router(faulty) as http:
        answer = await http.post("/ledger/v1/turns", json=native("r1", principal="p"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["reason"] == "broker"


def partition_of(principal: str, ledger: Ledger) -> Partition:
    return ledger.committer.partition(Scope(namespace="a", route="default", principal=principal))
