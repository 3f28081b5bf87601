"""Bad input: a 4xx that names the field, and nothing written."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from api.requests import BODY_BYTES_MAX, CONTENT_BODY_BYTES_MAX, QUERY_BYTES_MAX
from ledger.ledger import Ledger
from ledger.turn import ID_BYTES_MAX, ITEMS_MAX, RECORD_BYTES_MAX, SCOPE_BYTES_MAX, Partition
from tests.api.conftest import log_end
from tests.api.faults import ScriptedFaults, faulty_ledger
from tests.api.test_turns import native, portable

TURNS = "/ledger/v1/turns"
_P0 = Partition(0)
JSON = {"content-type": "application/json"}

BAD_TURNS: list[tuple[dict[str, Any], int, str]] = [
    ({"response_id": 7}, 400, "response_id"),
    ({"response_id": None}, 400, "response_id"),
    ({"response_id": ""}, 400, "response_id"),
    ({"response_id": "a\0b"}, 400, "response_id"),
    ({"response_id": "\ud800"}, 400, "response_id"),
    ({"response_id": "x" * (ID_BYTES_MAX + 1)}, 413, "response_id"),
    ({"response_id": "x" * 10_000}, 413, "response_id"),
    ({"event_id": ""}, 400, "event_id"),
    ({"event_id": "x" * 10_000}, 413, "event_id"),
    ({"conversation_id": "\ud800"}, 400, "conversation_id"),
    ({"conversation_id": "c", "previous_response_id": "r"}, 400, "previous_response_id"),
    ({"previous_response_id": ["r"]}, 400, "previous_response_id"),
    ({"owner": None}, 400, "owner"),
    ({"owner": {"native": 1, "target": "x"}}, 400, "owner.native"),
    ({"owner": {"native": True}}, 400, "owner.target"),
    ({"owner": {"native": True, "target": ""}}, 400, "owner.target"),
    ({"owner": {"native": True, "target": "x", "url": "y"}}, 400, "owner.url"),
    ({"owner": {"native": True, "target": "x", "digest": "zz"}}, 400, "owner.digest"),
    ({"owner": {"native": True, "target": "x", "digest": "AB"}}, 400, "owner.digest"),
    ({"owner": {"native": True, "target": "x", "digest": "ab" * 33}}, 413, "owner.digest"),
    ({"record": "0"}, 400, "record"),
    ({"record": "00" * (RECORD_BYTES_MAX + 1)}, 413, "record"),
    ({"record": "00" * RECORD_BYTES_MAX, "response_id": "x" * ID_BYTES_MAX}, 413, "response_id and conversation_id"),
    ({"status": "done"}, 400, "status"),
    ({"status": "queued"}, 400, "status"),
    ({"item_ids": "abc"}, 400, "item_ids"),
    ({"item_ids": ["a", 1]}, 400, "item_ids[1]"),
    ({"item_ids": ["a", ""]}, 400, "item_ids[1]"),
    ({"item_ids": ["a", "a"]}, 400, "item_ids"),
    ({"item_ids": [f"i{number}" for number in range(ITEMS_MAX + 1)]}, 413, "item_ids"),
    ({"begun_at_ms": -1}, 400, "begun_at_ms"),
    ({"begun_at_ms": True}, 400, "begun_at_ms"),
    ({"begun_at_ms": 1.5}, 400, "begun_at_ms"),
    ({"begun_at_ms": "1"}, 400, "begun_at_ms"),
    ({"begun_at_ms": 2**63}, 400, "begun_at_ms"),
    ({"conversation_id": "c", "expected_revision": -1}, 400, "expected_revision"),
    ({"conversation_id": "c", "expected_revision": False}, 400, "expected_revision"),
    ({"expected_revision": 1}, 400, "expected_revision"),
    ({"read_revision": -1}, 400, "read_revision"),
    ({"idempotency_key": "k"}, 400, "request_digest"),
    ({"request_digest": "ab"}, 400, "request_digest"),
    ({"content": {}}, 400, "content"),
    ({"principal": ""}, 400, "principal"),
    ({"principal": "x" * (SCOPE_BYTES_MAX + 1)}, 413, "principal"),
    ({"namespace": "other"}, 400, "namespace"),
    ({"scope": {}}, 400, "scope"),
]


@pytest.fixture
async def ledger() -> AsyncIterator[Ledger]:
    """A ledger in memory: hundreds of values are refused before anything could reach a disk."""
    async with faulty_ledger(ScriptedFaults()) as opened:
        yield opened


@pytest.mark.parametrize(("change", "status", "field"), BAD_TURNS)
async def test_bad_turn_is_refused_by_field_and_nothing_is_written(
    http: httpx.AsyncClient, ledger: Ledger, change: dict[str, Any], status: int, field: str
) -> None:
    end = log_end(ledger)
    answer = await http.post(TURNS, content=json.dumps({**native("r1"), **change}), headers=JSON)
    assert (answer.status_code, answer.json()["error"]["field"]) == (status, field)
    assert await ledger.log.end(_P0, timeout_s=5.0) == end


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({"input": {}}, "content.input"),
        ({"input": [], "more": []}, "content.more"),
        ({"metadata": []}, "content.metadata"),
        ({"input": ["\ud800"]}, "content.input[0]"),
        ({"input": [{"text": {"\udc00": 1}}]}, "content.input[0].text"),
        ({"input": [2**70]}, "content"),
    ],
)
async def test_bad_content_is_refused_by_field_and_nothing_is_written(
    http: httpx.AsyncClient, ledger: Ledger, content: dict[str, Any], field: str
) -> None:
    end = log_end(ledger)
    turn = {**portable("r1", "x"), "content": content}
    answer = await http.post(TURNS, content=json.dumps(turn), headers=JSON)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
    assert await ledger.log.end(_P0, timeout_s=5.0) == end


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff",
        b'{"response_id": "\xff"}',
        b"{}{}",
        b"[" * 100_000,
        b'{"x": NaN}',
        b"\x81\xa1",
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "turns"),
        ("POST", "starts"),
        ("POST", "abandonments"),
        ("POST", "lookups"),
        ("POST", "conversations"),
        ("PATCH", "conversations"),
        ("POST", "conversations/items"),
        ("POST", "erasures"),
        ("PATCH", "policy"),
        ("PUT", "policy"),
    ],
)
async def test_body_that_is_not_the_json_asked_for_is_refused(
    http: httpx.AsyncClient, ledger: Ledger, method: str, path: str, body: bytes
) -> None:
    end = log_end(ledger)
    answer = await http.request(method, f"/ledger/v1/{path}", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_input")
    assert log_end(ledger) == end


@pytest.mark.parametrize("given", [None, "text/plain", "application/x-www-form-urlencoded", "application/x-ndjson"])
async def test_body_of_another_media_type_is_refused(
    http: httpx.AsyncClient, ledger: Ledger, given: str | None
) -> None:
    end = log_end(ledger)
    headers = {} if given is None else {"content-type": given}
    answer = await http.post(TURNS, content=json.dumps(native("r1")), headers=headers)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "content-type")
    assert log_end(ledger) == end


@pytest.mark.parametrize(
    ("path", "bytes_max"),
    [("turns", CONTENT_BODY_BYTES_MAX), ("abandonments", BODY_BYTES_MAX), ("policy", BODY_BYTES_MAX)],
)
async def test_body_is_bounded_by_what_it_declares(
    http: httpx.AsyncClient, ledger: Ledger, path: str, bytes_max: int
) -> None:
    end = log_end(ledger)
    method = "PATCH" if path == "policy" else "POST"
    for size, status in ((bytes_max, 400), (bytes_max + 1, 413), (10**30, 413)):
        headers = {**JSON, "content-length": str(size)}
        answer = await http.request(method, f"/ledger/v1/{path}", content=b"{", headers=headers)
        assert (answer.status_code, answer.json()["error"]["field"]) == (status, "body")
    assert log_end(ledger) == end


@pytest.mark.parametrize(("size", "status"), [(BODY_BYTES_MAX, 400), (BODY_BYTES_MAX + 1, 413)])
async def test_body_is_bounded_while_it_is_read(http: httpx.AsyncClient, size: int, status: int) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, size, 65_536):
            yield b" " * min(65_536, size - start)

    answer = await http.post("/ledger/v1/abandonments", content=chunks(), headers=JSON)
    assert (answer.status_code, answer.json()["error"]["field"]) == (status, "body")


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("kind=response", 400, "id"),
        ("id=r1", 400, "kind"),
        ("kind=answer&id=r1", 400, "kind"),
        ("kind=response&id=", 400, "id"),
        ("kind=response&id=a%00b", 400, "id"),
        ("kind=response&id=%ff", 400, "query"),
        ("kind=response&id=%ED%A0%80", 400, "query"),
        ("kind=response&id=r1&id=r2", 400, "id"),
        ("kind=response&id=r1&extra=1", 400, "extra"),
        ("kind=response&id=r1&strong=maybe", 400, "strong"),
        ("kind=response&id=r1&token=0", 400, "token"),
        ("kind=response&id=r1&token=0:-1", 400, "token"),
        (f"kind=response&id={'x' * ID_BYTES_MAX}", 404, None),
        (f"kind=response&id={'x' * (ID_BYTES_MAX + 1)}", 413, "id"),
        (f"kind=response&id={'x' * 10_000}", 413, "id"),
        (f"kind=response&id={'x' * QUERY_BYTES_MAX}", 413, "query"),
        ("kind=response&id=r1&namespace=other", 400, "namespace"),
    ],
)
async def test_bad_query_is_refused_by_parameter(
    http: httpx.AsyncClient, query: str, status: int, field: str | None
) -> None:
    answer = await http.get(f"/ledger/v1/lookup?{query}")
    assert (answer.status_code, answer.json()["error"].get("field")) == (status, field)


@pytest.mark.parametrize(
    ("method", "path", "params", "field"),
    [
        ("DELETE", "responses", {"id": ""}, "id"),
        ("DELETE", "responses", {"id": "r", "cascade": "true"}, "cascade"),
        ("DELETE", "conversations", {"id": "c", "cascade": "perhaps"}, "cascade"),
        ("DELETE", "conversations/items", {"id": "c"}, "item_id"),
        ("DELETE", "conversations/items", {"id": "c", "item_id": ""}, "item_id"),
        ("GET", "replay", {"until_offset": "-1"}, "until_offset"),
        ("GET", "replay", {"id": "r1"}, "kind"),
        ("GET", "replay", {"kind": "item", "id": "r1"}, "kind"),
        ("GET", "replay", {"route": "default"}, "route"),
    ],
)
async def test_bad_parameters_of_other_routes_are_refused(
    http: httpx.AsyncClient, ledger: Ledger, method: str, path: str, params: dict[str, str], field: str
) -> None:
    end = log_end(ledger)
    answer = await http.request(method, f"/ledger/v1/{path}", params=params)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
    assert log_end(ledger) == end


async def test_longest_values_are_accepted(http: httpx.AsyncClient) -> None:
    turn = native("é" * (ID_BYTES_MAX // 2), event_id="x" * ID_BYTES_MAX, item_ids=[str(n) for n in range(ITEMS_MAX)])
    assert (await http.post(TURNS, json=turn)).status_code == 200
    assert (await http.post(TURNS, json=native("r2", record="00" * RECORD_BYTES_MAX))).status_code == 200


async def test_unknown_path_and_method_are_told_apart_from_a_missing_id(http: httpx.AsyncClient) -> None:
    answer = await http.get("/ledger/v1/nothing")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_such_route")
    answer = await http.put("/ledger/v1/turns")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
