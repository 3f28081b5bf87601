"""Whom a request that is sent on is asked of next: the URLs of a range, and the addresses of their names."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from structlog.testing import capture_logs

import api.connections as connections_module
import api.forwarding as forwarding_module
from api.connections import Connections
from api.errors import NOT_SERVED, STARTING, UNAVAILABLE
from api.metrics import Metrics
from tests.api.entry import (
    IMPATIENT_S,
    METHODS,
    PATIENCE_S,
    app_of,
    breaking,
    dead,
    entry,
    outcomes,
    stranger_of,
)
from tests.gateway.serving import listening


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
            # The second time on a connection that is there already.
            for _ in range(2):
                asked.clear()
                answer = await http.post(front, content=b"{}")
                assert (answer.status_code, answer.content) == (503, b"its own reason")
                assert len(asked) == 2


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("is_named", [True, False], ids=["addresses of a name", "URLs"])
async def test_nobody_else_is_asked_when_the_ledger_took_its_time_to_say_that_it_cannot_answer(
    is_named: bool, method: str, two_addresses: str
) -> None:
    asked: list[str] = []
    margin_s = 0.2

    async def other(request: Request) -> Response:
        asked.append(request.method)
        await asyncio.sleep(1.5 * margin_s)
        return Response(b"its own reason", 503, headers={NOT_SERVED: UNAVAILABLE})

    async with listening(app_of(other), host="127.0.0.2") as url:
        port = int(url.rpartition(":")[2])
        urls = [url.replace("127.0.0.2", two_addresses)] if is_named else [url, f"http://127.0.0.1:{port}"]
        async with (
            listening(app_of(other), port=port),
            entry(*urls, margin_s=margin_s) as front,
            httpx.AsyncClient(timeout=PATIENCE_S) as http,
        ):
            answer = await http.request(method, front, content=b"{}")
            assert (answer.status_code, answer.content) == (503, b"its own reason")
            assert asked == [method]


async def test_all_holders_together_have_one_deadline() -> None:
    asked: list[str] = []

    async def holder(request: Request) -> Response:
        asked.append(request.method)
        return Response(b"here")

    async with (
        breaking(is_silent=True) as (first, _),
        breaking(is_silent=True) as (second, _),
        listening(app_of(holder)) as url,
        entry(first, second, url, answers_within_s=IMPATIENT_S, margin_s=2.0) as front,
        httpx.AsyncClient(timeout=PATIENCE_S) as http,
    ):
        answer = await http.get(front)
        assert answer.status_code == 503
        assert "one did not answer in time, there was no time to ask the others" in answer.json()["error"]["message"]
        assert asked == []


async def test_silent_address_of_a_name_is_followed_by_the_next_url_and_not_by_its_other_addresses(
    two_addresses: str,
) -> None:
    async def beside(_: Request) -> Response:
        return Response(b"beside")

    async def after(_: Request) -> Response:
        return Response(b"after")

    async with breaking(is_silent=True, host="127.0.0.2") as (silent, taken):
        port = int(silent.rpartition(":")[2])
        name = silent.replace("127.0.0.2", two_addresses)
        async with (
            listening(app_of(beside), port=port),
            listening(app_of(after)) as url,
            entry(name, url, answers_within_s=IMPATIENT_S, margin_s=4.0) as front,
            httpx.AsyncClient(timeout=PATIENCE_S) as http,
        ):
            assert (await http.get(front)).content == b"after"
            assert len(taken) == 1, "the name server gives this address first"


async def test_change_is_waited_for_until_the_deadline_though_others_are_left() -> None:
    async with (
        breaking(is_silent=True) as (silent, taken),
        entry(silent, dead(), answers_within_s=IMPATIENT_S, margin_s=1.0) as front,
        httpx.AsyncClient(timeout=PATIENCE_S) as http,
    ):
        began_s = time.monotonic()
        answer = await http.post(front, content=b"{}")
        assert (answer.status_code, len(taken)) == (504, 1)
        assert time.monotonic() - began_s >= IMPATIENT_S + 1.0


async def test_nobody_reachable_is_503_with_the_range_and_no_url() -> None:
    url, metrics = dead(), Metrics()
    async with entry(url, metrics=metrics) as front, httpx.AsyncClient(timeout=PATIENCE_S) as http:
        answer = await http.post(front, content=b"{}")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        error = answer.json()["error"]
        assert (error["code"], error["reason"]) == ("unavailable", "holder")
        assert "partitions 0 could answer: one could not be reached; nothing was changed" in error["message"]
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


@pytest.mark.parametrize("is_answered", [True, False], ids=["a name server", "one that is silent"])
async def test_name_server_is_asked_once_for_many_requests_that_are_passed_over(
    is_answered: bool, two_addresses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, go_on, questions = socket.getaddrinfo, threading.Event(), list[str]()

    def resolve(host: str, port: int, *rest: Any, **options: Any) -> list[Any]:
        if host == two_addresses:
            questions.append(host)
            # The first one is the driver's, for its connection.
            if len(questions) > 1 and not is_answered:
                go_on.wait(30)
        return list(known(host, port, *rest, **options))

    async def other(_: Request) -> Response:
        return Response(b"", 503, headers={NOT_SERVED: STARTING})

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    # However slow this machine is, all is asked within it.
    monkeypatch.setattr(connections_module, "RESOLVED_S", 3_600.0)
    async with (
        listening(app_of(other)) as url,
        entry(url.replace("127.0.0.1", two_addresses)) as front,
        httpx.AsyncClient(timeout=PATIENCE_S) as http,
    ):
        try:
            for _ in range(2):
                answers = await asyncio.gather(*(http.post(front, content=b"{}") for _ in range(3)))
                assert [answer.status_code for answer in answers] == [503] * 3
            assert len(questions) == 2
        finally:
            go_on.set()


async def test_addresses_of_a_name_are_forgotten(two_addresses: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known, answers = socket.getaddrinfo, list[list[Any]]()

    def resolve(host: str, port: int, *rest: Any, **options: Any) -> list[Any]:
        answers.append(list(known(host, port, *rest, **options)))
        # A name whose addresses change between two questions, and that is not known in between.
        if len(answers) == 2:
            raise socket.gaierror("nobody knows")
        return answers[-1][::-1] if len(answers) == 3 else answers[-1]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(connections_module, "RESOLVED_S", 0.0)
    connections = Connections()
    seen = []
    for _ in range(3):
        found = await connections.addresses(f"http://{two_addresses}:1", timeout_s=PATIENCE_S)
        seen.append([str(one) for one in found])
        # A timer of no time is called in the next turn of the loop.
        await asyncio.sleep(0.01)
    await connections.close()
    assert seen == [["127.0.0.2", "127.0.0.1"], [], ["127.0.0.1", "127.0.0.2"]]


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
                error = answer.json()["error"]
                assert error["code"] == (not_served if status == 421 else "unavailable")
                if not_served == STARTING:
                    assert "could answer: one is starting; nothing was changed" in error["message"]
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
