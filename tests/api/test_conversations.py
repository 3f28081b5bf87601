"""Changes outside a turn over HTTP: conversations, items, deletions, erasure, policy."""

from __future__ import annotations

import httpx
import pytest

from ledger.policy import DAY_MS, Policy
from tests.api.conftest import AsCaller
from tests.api.test_turns import native, portable

CONVERSATIONS = "/ledger/v1/conversations"
CREATE = {
    "id": "c/1",
    "metadata": {"topic": "a"},
    "items": [{"id": "m1", "n": 1}, {"id": "m2"}],
    "item_ids": ["m1", "m2"],
}


async def history(http: httpx.AsyncClient) -> list[object]:
    found = await http.get("/ledger/v1/history", params={"kind": "conversation", "id": "c/1"})
    return [item for entry in found.json()["history"]["entries"] for item in entry.get("input", [])]


async def test_conversation_is_created_with_metadata_and_items(http: httpx.AsyncClient) -> None:
    answer = await http.post(CONVERSATIONS, json=CREATE)
    assert answer.status_code == 200
    found = (await http.get(CONVERSATIONS, params={"id": "c/1"})).json()
    assert (found["metadata"], found["revision"]) == ({"topic": "a"}, answer.json()["revision"])
    assert await history(http) == CREATE["items"]


async def test_metadata_is_replaced_at_the_expected_revision_only(http: httpx.AsyncClient) -> None:
    revision = (await http.post(CONVERSATIONS, json=CREATE)).json()["revision"]
    change = {"id": "c/1", "metadata": {"topic": "b"}, "expected_revision": revision}
    assert (await http.patch(CONVERSATIONS, json=change)).status_code == 200
    assert (await http.patch(CONVERSATIONS, json=change)).json()["verdict"] == "revision_conflict"
    assert (await http.get(CONVERSATIONS, params={"id": "c/1"})).json()["metadata"] == {"topic": "b"}


async def test_items_are_appended_and_deleted(http: httpx.AsyncClient) -> None:
    await http.post(CONVERSATIONS, json=CREATE)
    added = {"id": "c/1", "items": [{"id": "m3"}], "item_ids": ["m3"]}
    assert (await http.post(f"{CONVERSATIONS}/items", json=added)).status_code == 200
    for item_id in ("m1", "m3"):
        answer = await http.delete(f"{CONVERSATIONS}/items", params={"id": "c/1", "item_id": item_id})
        assert (answer.status_code, answer.json()["verdict"]) == (200, "accepted")
    assert await history(http) == [{"id": "m2"}]


@pytest.mark.parametrize(("cascade", "status"), [("true", 410), ("false", 200)])
async def test_deleted_conversation_takes_its_responses_along_only_when_told(
    http: httpx.AsyncClient, cascade: str, status: int
) -> None:
    await http.post("/ledger/v1/turns", json=portable("r1", "x", conversation_id="c/1"))
    answer = await http.delete(CONVERSATIONS, params={"id": "c/1", "cascade": cascade})
    assert answer.status_code == 200
    assert (await http.get(CONVERSATIONS, params={"id": "c/1"})).status_code == 410
    found = await http.get("/ledger/v1/lookup", params={"kind": "response", "id": "r1", "strong": "true"})
    assert found.status_code == status


async def test_erasure_takes_one_principal_on_every_route(as_caller: AsCaller) -> None:
    async with as_caller("alice") as alice, as_caller("router-a") as router, as_caller("admin") as admin:
        for route in ("default", "other"):
            await alice.post("/ledger/v1/turns", json=native("r1", route=route))
        await router.post("/ledger/v1/turns", json=native("r1", principal="bob"))
        assert (await admin.post("/ledger/v1/erasures", json={"principal": "alice"})).status_code == 200
        look_up = {"kind": "response", "id": "r1", "strong": "true"}
        for route in ("default", "other"):
            assert (await alice.get("/ledger/v1/lookup", params={**look_up, "route": route})).status_code == 410
        assert (await router.get("/ledger/v1/lookup", params={**look_up, "principal": "bob"})).status_code == 200


async def test_patch_changes_some_fields_of_the_policy_and_put_all(http: httpx.AsyncClient) -> None:
    changed = (await http.patch("/ledger/v1/policy", json={"sliding": True, "active_ttl_ms": DAY_MS})).json()
    assert (changed["policy"]["sliding"], changed["policy"]["active_ttl_ms"]) == (True, DAY_MS)
    assert (await http.get("/ledger/v1/policy")).json() == changed
    replaced = (await http.put("/ledger/v1/policy", json={"sliding": True})).json()
    assert replaced["policy"]["active_ttl_ms"] == Policy().active_ttl_ms
    assert replaced["generation"] == changed["generation"] + 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"active_ttl_ms": 999}, "active_ttl_ms"),
        ({"active_ttl_ms": -1}, "active_ttl_ms"),
        ({"sliding": 1}, "sliding"),
        ({"active_ttl": 1}, "active_ttl"),
        ({"tombstone_ttl_ms": 0}, "tombstone_ttl_ms"),
    ],
)
async def test_policy_that_contradicts_itself_is_refused(
    http: httpx.AsyncClient, changes: dict[str, int], field: str
) -> None:
    before = (await http.get("/ledger/v1/policy")).json()
    answer = await http.patch("/ledger/v1/policy", json=changes)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
    assert (await http.get("/ledger/v1/policy")).json() == before
