"""Metrics and logs: what is counted, and that no ID and no content is in either."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from api.logs import _without_values
from ledger.adapters import kafka_content
from ledger.alias import AliasKey
from ledger.composition import open_kafka
from ledger.ledger import Ledger
from ledger.policy import Policy
from ledger.turn import Partition, Position
from tests.adapters.kafka_world import TIMEOUT_S, made_topics
from tests.api.conftest import as_router
from tests.api.faults import LOST, ScriptedFaults
from tests.api.test_turns import native, partition_of, portable

SECRET = "sk-very-secret"
"""Part of every ID and content of these tests."""


async def samples(http: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    text = (await http.get("/metrics")).text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def shown_when(http: httpx.AsyncClient, *key: str, above: float) -> dict[tuple[str, ...], float]:
    """Return the metrics once this one is above a value."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            shown = await samples(http)
            if shown.get(key, above) > above:
                return shown
            await asyncio.sleep(0.02)


async def test_appends_and_lookups_are_counted_by_how_they_ended(http: httpx.AsyncClient) -> None:
    await http.post("/ledger/v1/turns", json=native("r1"))
    await http.post("/ledger/v1/turns", json=native("r1"))
    for opaque_id in ("r1", "r2"):
        await http.get("/ledger/v1/lookup", params={"kind": "response", "id": opaque_id})
    counted = await samples(http)
    assert counted["turnledger_appends_total", "accepted"] == 1
    assert counted["turnledger_appends_total", "response_exists"] == 1
    assert counted["turnledger_lookups_total", "response", "found"] == 1
    assert counted["turnledger_lookups_total", "response", "missing"] == 1
    assert counted["turnledger_records_folded_total", "response_exists"] == 1
    assert counted["turnledger_commit_seconds_count",] == 2
    assert counted["turnledger_barrier_seconds_count",] >= 1


async def test_state_of_the_view_is_shown(http: httpx.AsyncClient, ledger: Ledger) -> None:
    await http.post("/ledger/v1/turns", json=native("r1"))
    shown = await samples(http)
    assert shown["turnledger_position", "0"] == 2
    assert shown["turnledger_lag", "0"] == 0
    assert shown["turnledger_quarantined_total", "0"] == 0
    assert shown["turnledger_ready",] == 1
    assert shown["turnledger_abandonments_waiting",] == 0
    assert shown["turnledger_tail_reopened_total",] == ledger.replica.tail_reopened_count
    assert shown["turnledger_view_rows",] > 0
    assert shown["turnledger_view_bytes",] > 0


async def test_partition_clock_is_compared_with_the_wall_clock(
    http: httpx.AsyncClient, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await http.post("/ledger/v1/turns", json=native("r1"))
    clock_ms = ledger.replica.rows(Partition(0)).meta.clock_ms
    for distance_ms in (90_000, 0, -90_000):
        monkeypatch.setattr(ledger, "now_ms", lambda now_ms=clock_ms + distance_ms: now_ms)
        shown = await samples(http)
        assert shown["turnledger_partition_clock_seconds", "0"] == pytest.approx(clock_ms / 1000)
        assert shown["turnledger_partition_clock_behind_seconds", "0"] == distance_ms / 1000


async def test_waiters_are_counted_while_they_wait(faulty: Ledger, faults: ScriptedFaults) -> None:
    async with as_router(faulty) as http:
        assert (await samples(http))["turnledger_waiters",] == 0
        faults.held_back_at = Position(0)
        named = native("r1", principal="ann")
        waiting = asyncio.create_task(http.post("/ledger/v1/turns", json=named))
        assert (await shown_when(http, "turnledger_waiters", above=0))["turnledger_waiters",] >= 1
        assert (await waiting).status_code == 504
        assert (await samples(http))["turnledger_waiters",] == 0


async def test_copy_of_the_contents_and_replaced_producers_are_shown_on_kafka_only(
    http: httpx.AsyncClient, kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_kafka = {
        "turnledger_content_position",
        "turnledger_content_lag",
        "turnledger_content_followed",
        "turnledger_content_rebuilt_total",
        "turnledger_producers_retired_total",
    }
    assert on_kafka & {name for name, *_ in await samples(http)} == set()
    monkeypatch.setattr(kafka_content, "CHECK_INTERVAL_S", 0.1)
    kafka = await made_topics(kafka_bootstrap)
    opening = open_kafka(kafka, tmp_path / "replica", AliasKey(b"k" * 32), format_policy=Policy())
    async with await opening as replica, as_router(replica) as router:
        turn = portable("r1", "text", principal="ann", event_id="event-1")
        assert (await router.post("/ledger/v1/turns", json=turn)).status_code == 200
        partition = str(partition_of("ann", replica))
        await shown_when(router, "turnledger_content_position", partition, above=0)
        shown = await shown_when(router, "turnledger_content_lag", partition, above=-1)
    assert on_kafka <= {name for name, *_ in shown}
    assert shown["turnledger_content_followed",] == 1
    assert shown["turnledger_content_rebuilt_total",] == 0
    assert shown["turnledger_producers_retired_total",] == 0


async def test_readiness_and_its_reason_follow_the_ledger(faulty: Ledger) -> None:
    async with as_router(faulty) as http:
        assert (await http.get("/health/ready")).json() == {"ready": True}
        await faulty.close()
        answer = await http.get("/health/ready")
        assert (answer.status_code, answer.json()["ready"]) == (503, False)
        assert answer.json()["reason"]
        assert (await http.get("/health/live")).status_code == 200
        assert (await samples(http))["turnledger_ready",] == 0


async def test_no_id_and_no_content_is_in_metrics_or_logs(
    faulty: Ledger, faults: ScriptedFaults, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    named = {"principal": SECRET, "event_id": f"{SECRET}-event", "idempotency_key": SECRET, "request_digest": "ab"}
    with structlog.testing.capture_logs() as logged:
        async with as_router(faulty) as http:
            await http.post("/ledger/v1/turns", json=portable(f"{SECRET}-1", SECRET, **named))
            faults.fates[partition_of(SECRET, faulty)] = [LOST]
            lost = native(f"{SECRET}-2", principal=SECRET, event_id=f"{SECRET}-lost")
            assert (await http.post("/ledger/v1/turns", json=lost)).status_code == 504
            await http.post("/ledger/v1/turns", json={SECRET: SECRET})
            for kind in ("response", "conversation", "item"):
                await http.get("/ledger/v1/lookup", params={"kind": kind, "id": SECRET, "principal": SECRET})
            await http.get(f"/ledger/v1/{SECRET}")
            text = (await http.get("/metrics")).text
    assert any(line["event"] == "request_failed" for line in logged)
    output = capfd.readouterr()
    for place in (text, str(logged), output.out, output.err, caplog.text):
        assert SECRET not in place


def test_exception_is_logged_by_type_and_place_only() -> None:
    try:
        int(SECRET)
    except ValueError:
        event = _without_values(None, "error", {"event": "failed", "exc_info": True})
    assert event["error"] == "ValueError"
    assert event["at"][0].endswith("test_exception_is_logged_by_type_and_place_only")
    assert SECRET not in str(event)
