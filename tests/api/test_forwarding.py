"""A request for another replica's partition: sent on as it is, once, and its answer passed on as it comes."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message
from structlog.testing import capture_logs

from api.app import create_app
from api.auth import Access, Caller, Role
from api.errors import NOT_SERVED, STARTING
from api.forwarding import LOST_AFTER_S, _Body
from api.ledger_name import ASKED_LEDGER, FORWARDED, LEDGER, ledger_named
from api.metrics import Metrics
from ledger.adapters.http import LedgerClient
from ledger.errors import NotHeld
from ledger.turn import Partition
from tests.api.entry import (
    BODY_BYTES_MAX,
    IMPATIENT_S,
    LEDGER_ID,
    METHODS,
    OTHER_LEDGER_ID,
    PATIENCE_S,
    PATIENT_S,
    app_of,
    breaking,
    dead,
    entry,
    outcomes,
    stranger_of,
)
from tests.gateway.serving import listening
from tests.test_holding import formatted, scope_in, turn


@pytest.mark.parametrize("reads_first", ["", "yes"])
async def test_request_arrives_as_it_was_sent_without_what_is_of_one_connection(reads_first: str) -> None:
    arrived: list[Request] = []
    bodies: list[bytes] = []

    async def holder(request: Request) -> Response:
        arrived.append(request)
        bodies.append(await request.body())
        return Response(b"done", 207, headers={"x-of-the-holder": "1", "connection": "x-hop", "x-hop": "1"})

    body = bytes(range(256)) * 4 * 1024
    sent: dict[str, Any] = {
        "authorization": "Bearer secret",
        "content-type": "application/x-something",
        "connection": "keep-alive, x-mine",
        "x-mine": "1",
        "te": "trailers",
        "x-twice": "ä".encode(),
        "user-agent": "somebody/1",
        ASKED_LEDGER: "the client's own",
        LEDGER: LEDGER_ID.hex(),
        NOT_SERVED: STARTING,
        "reads-first": reads_first,
    }
    async with listening(app_of(holder)) as url, entry(url) as front, httpx.AsyncClient(timeout=PATIENCE_S) as http:
        path = "/a%2Fb/%C3%A4?q=a%20b&q=%2B"
        answer = await http.post(f"{front}{path}", content=body, headers=sent)
        assert (answer.status_code, answer.content) == (207, b"done")
        assert (answer.headers["x-of-the-holder"], answer.headers.get("x-hop")) == ("1", None)
        (request,) = arrived
        assert bodies == [body]
        assert (request.method, request.scope["raw_path"], request.scope["query_string"]) == (
            "POST",
            b"/a%2Fb/%C3%A4",
            b"q=a%20b&q=%2B",
        )
        assert (request.headers[FORWARDED], request.headers.getlist(ASKED_LEDGER)) == ("1", [LEDGER_ID.hex()])
        assert LEDGER not in answer.headers
        for name in ("authorization", "content-type", "user-agent"):
            assert request.headers.getlist(name) == [sent[name]]
        assert dict(request.headers.raw)[b"x-twice"] == "ä".encode()
        assert {"x-mine", "te", LEDGER, NOT_SERVED}.isdisjoint(request.headers.keys())
        assert request.headers["host"] == url.removeprefix("http://")
        # What the client named and nothing that the driver adds by itself.
        assert [len(request.headers.getlist(name)) for name in ("accept", "accept-encoding")] == [1, 1]


async def test_request_that_was_forwarded_is_not_forwarded_again() -> None:
    async with entry(dead()) as front, httpx.AsyncClient(timeout=PATIENCE_S) as http:
        answer = await http.get(front, headers={FORWARDED: "1"})
        assert (answer.status_code, answer.headers[NOT_SERVED]) == (421, "not_held")
        assert "the maps of the replicas disagree" in answer.json()["error"]["message"]


async def test_only_the_replica_that_sent_a_request_on_warns_of_maps_that_disagree() -> None:
    async with entry(dead()) as other, entry(other) as front, httpx.AsyncClient(timeout=PATIENCE_S) as http:
        with capture_logs() as logged:
            assert (await http.post(other, headers={FORWARDED: "1"})).status_code == 421
        assert [line["log_level"] for line in logged] == ["info"], "any client can send the header"
        with capture_logs() as logged:
            assert (await http.post(front)).status_code == 421
        (warned,) = [line for line in logged if line["log_level"] != "info"]
        assert (warned["event"], warned["log_level"], warned["url"]) == ("maps_disagree", "warning", other)


async def test_body_is_kept_once() -> None:
    chunk_bytes, count = 64 * 1024, 64

    async def receive() -> Message:
        arrived.append(b"")
        return {"type": "http.request", "body": bytes(chunk_bytes), "more_body": len(arrived) < count}

    arrived: list[bytes] = []
    body = _Body(receive)
    tracemalloc.start()
    try:
        content = await body.whole(BODY_BYTES_MAX)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(content) == chunk_bytes * count
    assert kept_bytes < 1.5 * len(content)


async def test_body_above_its_bound_is_refused() -> None:
    async with entry(dead()) as front, httpx.AsyncClient(timeout=PATIENCE_S) as http:
        for size, status in ((BODY_BYTES_MAX + 1, 413), (BODY_BYTES_MAX, 503)):
            assert (await http.post(front, content=b"x" * size)).status_code == status


async def test_answer_is_passed_on_while_it_comes() -> None:
    go_on = asyncio.Event()

    async def holder(_: Request) -> Response:
        async def frames() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"
            await go_on.wait()
            yield b"data: 2\n\n"

        return StreamingResponse(frames(), media_type="text/event-stream")

    async with (
        listening(app_of(holder)) as url,
        entry(url) as front,
        httpx.AsyncClient(timeout=PATIENCE_S) as http,
        http.stream("POST", front, content=b"{}") as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        pieces = answer.aiter_raw()
        assert await anext(pieces) == b"data: 1\n\n"
        go_on.set()
        assert await anext(pieces) == b"data: 2\n\n"


@pytest.mark.parametrize("has_begun", ["before", "within"])
async def test_client_that_leaves_ends_the_call(has_begun: str) -> None:
    called, ended = asyncio.Event(), asyncio.Event()
    metrics = Metrics()

    async def holder(request: Request) -> Response:
        async def frames() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"
            await asyncio.Event().wait()

        called.set()
        if has_begun == "before":
            await request.body()
            while (await request.receive())["type"] != "http.disconnect":
                pass
            ended.set()
            return Response()
        return StreamingResponse(_told(frames(), ended))

    async with listening(app_of(holder)) as url, entry(url, metrics=metrics) as front:
        async with aiohttp.ClientSession() as session:
            asking = asyncio.create_task(_first_bytes(session, front))
            await asyncio.wait_for(called.wait(), 5)
            if has_begun == "within":
                assert await asyncio.wait_for(asking, 5) == b"data: 1\n\n"
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await asyncio.wait_for(ended.wait(), 5)
        assert outcomes(metrics)["left"] == 1


async def _told(frames: AsyncIterator[bytes], ended: asyncio.Event) -> AsyncIterator[bytes]:
    try:
        async for frame in frames:
            yield frame
    finally:
        ended.set()


async def _first_bytes(session: aiohttp.ClientSession, url: str) -> bytes:
    # Closed when the session is: the connection is not read to its end.
    answer = await session.post(url, data=b"{}")
    return await answer.content.readany()


STRANGERS: dict[str, tuple[int, dict[str, str]]] = {
    "another application": (404, {}),
    "one that wants a login": (401, {"www-authenticate": "Basic"}),
    "one that moved": (302, {"location": "/login"}),
    "a proxy": (502, {}),
    "one that agrees to all": (200, {}),
    "one with a word of its own": (404, {LEDGER: "main"}),
    "another ledger": (404, {LEDGER: OTHER_LEDGER_ID.hex()}),
    "another ledger that cannot answer": (503, {LEDGER: OTHER_LEDGER_ID.hex(), NOT_SERVED: "unavailable"}),
    "one that does not hold it in another ledger": (421, {LEDGER: OTHER_LEDGER_ID.hex(), NOT_SERVED: "not_held"}),
}
"""What may be behind a URL that is wrong, and how it answers."""


@pytest.mark.parametrize("who", STRANGERS)
@pytest.mark.parametrize("method", METHODS)
async def test_answer_that_does_not_name_the_ledger_is_not_believed(who: str, method: str) -> None:
    status, named = STRANGERS[who]

    async def stranger(_: Request) -> Response:
        return Response(b"a stranger's", status, headers=named)

    async def holder(_: Request) -> Response:
        return Response(b"here")

    metrics, alone_metrics = Metrics(), Metrics()
    body = b"" if method == "GET" else b'{"event_id": "e1"}'
    goes_on = method == "GET" or named.get(LEDGER) == OTHER_LEDGER_ID.hex()
    async with (
        listening(stranger_of(stranger)) as wrong,
        listening(app_of(holder)) as url,
        entry(wrong, url, metrics=metrics) as front,
        entry(wrong, metrics=alone_metrics) as alone,
        httpx.AsyncClient(timeout=PATIENCE_S) as http,
    ):
        with capture_logs() as logged:
            answer = await http.request(method, front, content=body)
        (warned,) = logged
        assert (warned["event"], warned["log_level"], warned["url"]) == ("holder_misdirected", "warning", wrong)
        assert (warned["status"], warned["ledger"]) == (status, ledger_named(named.get(LEDGER)))
        # It is asked after the others for a while, so that the next request does not go there.
        again = await http.request(method, front, content=body)
        assert (again.status_code, again.content) == (200, b"here")
        refused = await http.request(method, alone, content=body)
        assert "a stranger's" not in refused.text
        error = refused.json()["error"]
        if goes_on:
            assert (answer.status_code, answer.content) == (200, b"here")
            assert outcomes(metrics) == {"misdirected": 1, "answered": 2}
            assert (refused.status_code, error["code"], error["reason"]) == (503, "unavailable", "holder")
            assert "something else answers where --holders says" in error["message"]
            assert outcomes(alone_metrics) == {"misdirected": 1, "unreachable": 1}
        else:
            assert (answer.status_code, answer.json()["error"]["event_id"]) == (504, "e1")
            assert outcomes(metrics) == {"misdirected": 1, "broken": 1, "answered": 1}
            assert (refused.status_code, error["code"], error["event_id"]) == (504, "unknown", "e1")
            assert f"what --holders names for partitions 0 answered HTTP {status}" in error["message"]
            assert "failed" not in error["message"]
            assert outcomes(alone_metrics) == {"misdirected": 1, "broken": 1}


@pytest.mark.parametrize("method", METHODS)
async def test_what_repeats_the_headers_of_a_request_is_no_ledger(method: str) -> None:
    async def echo(request: Request) -> Response:
        repeated = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
        return Response(b"an echo", headers=repeated)

    metrics = Metrics()
    # Nor can a client make it one.
    sent = {LEDGER: LEDGER_ID.hex(), NOT_SERVED: STARTING}
    async with (
        listening(stranger_of(echo)) as url,
        entry(url, metrics=metrics) as front,
        httpx.AsyncClient(timeout=PATIENCE_S) as http,
    ):
        answer = await http.request(method, front, content=b"{}", headers=sent)
    assert answer.status_code == (503 if method == "GET" else 504)
    assert outcomes(metrics)["misdirected"] == 1


@pytest.mark.parametrize("how", ["closes", "is silent"])
@pytest.mark.parametrize("method", METHODS)
async def test_request_that_was_sent_is_sent_again_only_when_it_reads(method: str, how: str) -> None:
    async def holder(_: Request) -> Response:
        return Response(b"here")

    metrics = Metrics()
    body = b"" if method == "GET" else b'{"event_id": "e1"}'
    # Half of the margin is for the next, if somebody else may be asked.
    within_s, margin_s = (IMPATIENT_S, 4.0 if method == "GET" else 0.5) if how == "is silent" else (PATIENT_S, 0.0)
    async with (
        breaking(is_silent=how == "is silent") as (broken, taken),
        listening(app_of(holder)) as url,
        entry(broken, url, metrics=metrics, answers_within_s=within_s, margin_s=margin_s) as front,
        httpx.AsyncClient(timeout=20) as http,
    ):
        answer = await http.request(method, front, content=body)
    if method == "GET":
        assert (answer.status_code, answer.content) == (200, b"here")
        assert outcomes(metrics) == {"answered": 1}
    else:
        assert len(taken) == 1
        assert answer.status_code == 504
        error = answer.json()["error"]
        assert (error["code"], error["event_id"]) == ("unknown", "e1")
        assert outcomes(metrics) == {"broken": 1}


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's list of connections")
async def test_machine_of_a_silent_holder_is_asked_whether_it_is_there() -> None:
    timers: list[tuple[int, int]] = []

    async def holder(request: Request) -> Response:
        port = request.url.port
        for line in (await asyncio.to_thread(Path("/proc/net/tcp").read_text)).splitlines()[1:]:
            fields = line.split()
            if int(fields[2].partition(":")[2], 16) == port:
                kind, _, when = fields[5].partition(":")
                timers.append((int(kind), int(when, 16)))
        return Response()

    async with listening(app_of(holder)) as url, entry(url) as front, httpx.AsyncClient(timeout=PATIENCE_S) as http:
        assert (await http.post(front, content=b"{}")).status_code == 200
    # proc_net_tcp(5): 2 is the timer of keepalive, and the time until it fires is in hundredths of a second.
    assert any(kind == 2 and when <= 100 * LOST_AFTER_S for kind, when in timers), timers


async def test_answer_that_breaks_off_is_not_taken_for_whole() -> None:
    metrics = Metrics()
    named = f"{LEDGER}: {LEDGER_ID.hex()}\r\n".encode()
    begun = b"HTTP/1.1 200 OK\r\n" + named + b"transfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n"
    async with (
        breaking(begun) as (broken, _),
        entry(broken, metrics=metrics) as front,
        httpx.AsyncClient(timeout=PATIENCE_S) as http,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get(front)
    assert outcomes(metrics) == {"answered": 1, "broken": 1}


async def test_replica_without_a_map_refuses_what_it_does_not_hold() -> None:
    caller = Caller(namespace="n", principals=None, routes=("r",), roles=frozenset(Role))
    access = Access({hashlib.sha256(b"token").digest(): caller})
    async with formatted() as world, world.ledger(frozenset({Partition(0)})) as ledger:
        await ledger.start()
        transport = httpx.ASGITransport(create_app(ledger, access))
        async with LedgerClient(token="token", transport=transport) as client:  # the token of a test
            before = await world.written()
            with pytest.raises(NotHeld) as refused:
                await client.publish(turn(scope_in(3)))
            assert refused.value.partition == 3
            (result,) = await client.publish_batch([turn(scope_in(3))])
            assert isinstance(result, NotHeld)
            assert await world.written() == before
            assert (await client.publish(turn(scope_in(0)))).accepted
            assert await client.readiness() == ("", "0")
