"""A request for another replica's partition: sent on as it is, once, and its answer passed on as it comes."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message
from structlog.testing import capture_logs

import api.forwarding as forwarding_module
from api.app import create_app
from api.auth import Access, Caller, Role
from api.errors import NOT_SERVED, error_answer, status_and_body
from api.forwarding import LOST_AFTER_S, Forwarding, _Body
from api.holders import Holders
from api.ledger_name import FORWARDED, LEDGER, ledger_named
from api.metrics import Metrics
from ledger.adapters.http import LedgerClient
from ledger.errors import LedgerError, NotHeld
from ledger.turn import Partition
from tests.gateway.serving import listening
from tests.test_holding import formatted, scope_in, turn

BODY_BYTES_MAX = 8 * 1024 * 1024
PATIENT_S, IMPATIENT_S = 60.0, 0.5
"""What a holder may be silent for: where that must not end the call, and where it is to."""
PATIENCE_S = 60.0
"""Far above what any answer takes: no test passes or fails by it."""
METHODS = ["GET", "POST", "DELETE", "PATCH"]
LEDGER_ID, OTHER_LEDGER_ID = b"ledger of tests!", b"another ledger!!"
Handle = Callable[[Request], Awaitable[Response]]


def app_of(handle: Handle) -> Starlette:
    """Return an application that answers as a replica of whatever ledger it is asked for."""

    async def named(request: Request) -> Response:
        answer = await handle(request)
        if FORWARDED in request.headers and LEDGER in request.headers:
            answer.headers[LEDGER] = request.headers[LEDGER]
        return answer

    return stranger_of(named)


def stranger_of(handle: Handle) -> Starlette:
    """Return an application that knows nothing of ledgers."""
    return Starlette(routes=[Route("/{path:path}", handle, methods=METHODS)])


@asynccontextmanager
async def entry(*urls: str, metrics: Metrics | None = None, answers_within_s: float = PATIENT_S) -> AsyncIterator[str]:
    """Run a replica that holds nothing and takes ``urls`` for the holders of everything."""
    counted = metrics or Metrics()
    forwarding = Forwarding(Holders.parse(f"0={'|'.join(urls)}"), LEDGER_ID, counted, answer_margin_s=0.0)

    async def refuse(request: Request) -> Response:
        if request.headers.get("reads-first"):
            await request.body()
        raise NotHeld(0)

    async def answer(request: Request) -> Response:
        try:
            return await forwarding.served(
                refuse, request, body_bytes_max=BODY_BYTES_MAX, answers_within_s=answers_within_s
            )
        except LedgerError as error:
            return error_answer(*status_and_body(error))

    await forwarding.start()
    try:
        async with listening(app_of(answer)) as url:
            yield url
    finally:
        await forwarding.close()


def dead() -> str:
    """Return a URL where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@asynccontextmanager
async def breaking(
    begun: bytes = b"", *, is_silent: bool = False, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Run a server that takes a request, answers what it is given and closes, or is silent until it is left."""
    taken: list[bytes] = []
    ended: list[asyncio.Task[None]] = []

    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        ended.append(task)
        taken.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(begun)
        if is_silent:
            await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(break_off, host, 0)
    async with server:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}", taken
        await asyncio.gather(*ended, return_exceptions=True)


def outcomes(metrics: Metrics) -> dict[str, float]:
    registry: CollectorRegistry = metrics.registry
    return {
        sample.labels["outcome"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "turnledger_forwarded_total"
    }


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
        "turnledger-ledger": "the client's own",
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
        assert (request.headers[FORWARDED], request.headers.getlist(LEDGER)) == ("1", [LEDGER_ID.hex()])
        assert LEDGER not in answer.headers
        for name in ("authorization", "content-type", "user-agent"):
            assert request.headers.getlist(name) == [sent[name]]
        assert dict(request.headers.raw)[b"x-twice"] == "ä".encode()
        assert {"x-mine", "te"}.isdisjoint(request.headers.keys())
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


async def test_holder_that_cannot_be_reached_is_passed_over_for_the_next() -> None:
    async def holder(request: Request) -> Response:
        return Response(await request.body())

    metrics = Metrics()
    async with (
        listening(app_of(holder)) as url,
        entry(dead(), url, metrics=metrics) as front,
        httpx.AsyncClient(timeout=PATIENCE_S) as http,
    ):
        for method in METHODS:
            answer = await http.request(method, front, content=b"body")
            assert (answer.status_code, answer.content) == (200, b"body")
    assert outcomes(metrics) == {"answered": len(METHODS)}


async def test_every_address_of_a_name_is_tried(two_addresses: str) -> None:
    async def holder(_: Request) -> Response:
        return Response(b"here")

    async with (
        listening(app_of(holder)) as url,
        entry(url.replace("127.0.0.1", two_addresses)) as front,
        httpx.AsyncClient(timeout=PATIENCE_S) as http,
    ):
        for _ in range(4):
            assert (await http.post(front, content=b"{}")).content == b"here"


@pytest.mark.parametrize("not_served", ["starting", "unavailable", "not_held"])
@pytest.mark.parametrize("which", ["127.0.0.1", "127.0.0.2"])
async def test_next_address_of_a_name_is_asked_when_one_changed_nothing(
    which: str, not_served: str, two_addresses: str
) -> None:
    bodies: list[tuple[str, bytes]] = []

    async def other(_: Request) -> Response:
        return Response(b"its own reason", 503, headers={NOT_SERVED: not_served})

    async def holder(request: Request) -> Response:
        bodies.append((request.headers["host"], await request.body()))
        return Response(b"here")

    metrics = Metrics()
    beside = "127.0.0.2" if which == "127.0.0.1" else "127.0.0.1"
    async with listening(app_of(other), host=which) as url:
        port = int(url.rpartition(":")[2])
        name = url.replace(which, two_addresses)
        async with (
            listening(app_of(holder), host=beside, port=port),
            entry(name, metrics=metrics) as front,
            httpx.AsyncClient(timeout=PATIENCE_S) as http,
        ):
            # Whichever the driver begins with: it takes turns.
            for _ in range(3):
                assert (await http.post(f"{front}/a%2Fb?q=%2B", content=b"{}")).content == b"here"
        assert bodies == [(f"{two_addresses}:{port}", b"{}")] * 3
        assert outcomes(metrics) == {"answered": 3}
        # With nobody else under the name, the next URL.
        async with (
            listening(app_of(holder)) as second,
            entry(name, second) as front,
            httpx.AsyncClient(timeout=PATIENCE_S) as http,
        ):
            assert (await http.post(front, content=b"{}")).content == b"here"


async def test_addresses_of_a_name_are_not_asked_for_a_change_that_may_have_been_made(two_addresses: str) -> None:
    async def holder(request: Request) -> Response:
        asked.append(request.method)
        return Response(b"here")

    async def stranger(request: Request) -> Response:
        asked.append(f"{request.method} of a stranger")
        return Response(b"an error page", 502)

    asked: list[str] = []
    async with listening(stranger_of(stranger), host="127.0.0.2") as url:
        port = int(url.rpartition(":")[2])
        name = url.replace("127.0.0.2", two_addresses)
        for method, status in (("GET", 200), ("POST", 504)):
            asked.clear()
            async with (
                listening(app_of(holder), port=port),
                entry(name) as front,
                httpx.AsyncClient(timeout=PATIENCE_S) as http,
            ):
                answers = [await http.request(method, front, content=b"{}") for _ in range(2)]
            assert status in [answer.status_code for answer in answers]
            if method == "GET":
                assert [answer.content for answer in answers] == [b"here", b"here"]
            else:
                assert len(asked) == len(answers), "each was sent once"


async def test_addresses_of_a_name_that_all_refuse_are_asked_once_each(two_addresses: str) -> None:
    asked: list[str] = []

    async def other(request: Request) -> Response:
        asked.append(request.method)
        return Response(b"its own reason", 503, headers={NOT_SERVED: "unavailable"})

    async with listening(app_of(other), host="127.0.0.2") as url:
        port = int(url.rpartition(":")[2])
        async with (
            listening(app_of(other), port=port),
            entry(url.replace("127.0.0.2", two_addresses)) as front,
            httpx.AsyncClient(timeout=PATIENCE_S) as http,
        ):
            answer = await http.post(front, content=b"{}")
            assert (answer.status_code, answer.content) == (503, b"its own reason")
            # Once under the name, then each address.
            assert len(asked) == 3


async def test_nobody_reachable_is_503_with_the_range_and_no_url() -> None:
    url, metrics = dead(), Metrics()
    async with entry(url, metrics=metrics) as front, httpx.AsyncClient(timeout=PATIENCE_S) as http:
        answer = await http.post(front, content=b"{}")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        error = answer.json()["error"]
        assert (error["code"], error["reason"]) == ("unavailable", "holder")
        assert "partitions 0 can be reached" in error["message"]
        assert url.rsplit(":", 1)[1] not in answer.text
    assert outcomes(metrics) == {"unreachable": 1}


async def test_machine_that_does_not_answer_at_all_costs_its_timeout_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose backlog is full answers nothing to who wants to connect, like a machine that is gone."""

    async def holder(_: Request) -> Response:
        return Response(b"here")

    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        full_url = f"http://127.0.0.1:{full.getsockname()[1]}"
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        # However slow this machine is, all is asked within it.
        monkeypatch.setattr(forwarding_module, "REST_S", 3_600.0)
        with capture_logs() as logged:
            async with (
                listening(app_of(holder)) as url,
                entry(full_url, url) as front,
                httpx.AsyncClient(timeout=PATIENCE_S) as http,
            ):
                for _ in range(3):
                    assert (await http.post(front, content=b"{}", timeout=30)).content == b"here"
        for filler in fillers:
            filler.close()
    assert [(line["event"], line["url"], line["reason"]) for line in logged] == [("holder_failed", full_url, "timeout")]


async def test_name_that_is_not_resolved_in_time_was_not_sent_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async def holder(_: Request) -> Response:
        return Response(b"here")

    known, go_on = socket.getaddrinfo, threading.Event()

    def resolve(host: str, port: int, *rest: Any, **options: Any) -> list[Any]:
        """Stand for a name server that does not answer."""
        if host == "holders.test":
            go_on.wait(30)
            raise socket.gaierror("nobody knows")
        return list(known(host, port, *rest, **options))

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with capture_logs() as logged:
        async with (
            listening(app_of(holder)) as url,
            entry("http://holders.test:1", url) as front,
            httpx.AsyncClient(timeout=15) as http,
        ):
            try:
                # A change: it goes to the next only because it was not sent.
                assert (await http.post(front, content=b"{}")).content == b"here"
            finally:
                go_on.set()
    assert [(line["event"], line["reason"]) for line in logged] == [("holder_failed", "timeout")]


@pytest.mark.parametrize(("not_served", "status"), [("starting", 503), ("not_held", 421), ("unavailable", 503)])
async def test_holder_that_changed_nothing_is_passed_over(not_served: str, status: int) -> None:
    async def other(_: Request) -> Response:
        return Response(b"its own reason", status, headers={NOT_SERVED: not_served})

    async def holder(_: Request) -> Response:
        return Response(b"here")

    async with (
        listening(app_of(other)) as first,
        listening(app_of(holder)) as second,
        httpx.AsyncClient(timeout=PATIENCE_S) as http,
    ):
        async with entry(first, second) as front:
            assert (await http.post(front, content=b"{}")).content == b"here"
        async with entry(first) as front:
            answer = await http.post(front, content=b"{}")
            assert answer.status_code == status
            if not_served == "unavailable":
                assert answer.content == b"its own reason"
            else:
                assert answer.json()["error"]["code"] == (not_served if status == 421 else "unavailable")
        # Whoever is away may hold it: to ask again is worth it.
        async with entry(first, dead()) as front:
            assert (await http.post(front, content=b"{}")).status_code == 503


async def test_refusal_of_a_holder_is_its_answer_and_nobody_else_is_asked() -> None:
    async def refusing(_: Request) -> Response:
        return Response(b"mine", 503)

    async with (
        listening(app_of(refusing)) as url,
        entry(url, dead()) as front,
        httpx.AsyncClient(timeout=PATIENCE_S) as http,
    ):
        answer = await http.post(front, content=b"{}")
        assert (answer.status_code, answer.content) == (503, b"mine")


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
            assert outcomes(alone_metrics) == {"misdirected": 1, "broken": 1}


@pytest.mark.parametrize("how", ["closes", "is silent"])
@pytest.mark.parametrize("method", METHODS)
async def test_request_that_was_sent_is_sent_again_only_when_it_reads(method: str, how: str) -> None:
    async def holder(_: Request) -> Response:
        return Response(b"here")

    metrics = Metrics()
    body = b"" if method == "GET" else b'{"event_id": "e1"}'
    async with (
        breaking(is_silent=how == "is silent") as (broken, taken),
        listening(app_of(holder)) as url,
        entry(broken, url, metrics=metrics, answers_within_s=IMPATIENT_S) as front,
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
