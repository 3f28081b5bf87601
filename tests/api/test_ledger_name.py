"""Whose answer it is: real services of two ledgers with the same tokens, and maps that lead to the wrong place."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
from structlog.testing import capture_logs

from api.app import create_app
from api.auth import Access, Caller, Role
from api.errors import NOT_SERVED
from api.forwarding import Forwarding
from api.health import health_app
from api.holders import Holders
from api.ledger_name import ASKED_LEDGER, FORWARDED, LEDGER, OTHER_LEDGER
from api.metrics import Metrics
from ledger.adapters.http import LedgerClient
from ledger.answer import Found, Missing
from ledger.errors import NotAuthenticated, Unavailable
from ledger.ledger import Ledger
from ledger.turn import Partition, Selector, SelectorKind
from tests.gateway.serving import listening
from tests.test_holding import World, formatted, scope_in, turn

SCOPE = scope_in(3)
RESPONSE = Selector(scope=SCOPE, kind=SelectorKind.RESPONSE, id="r1")
TOKEN = "anybody"  # the token of a test
LOOKUP = {"kind": "response", "id": "r1", "principal": SCOPE.principal}


def access_of(token: str) -> Access:
    """Return whom a service lets in: one token for everything, and one that may only read."""
    may = {token: frozenset(Role), f"{token}-reads": frozenset({Role.READER})}
    return Access(
        {
            hashlib.sha256(name.encode()).digest(): Caller(namespace="n", principals=None, routes=("r",), roles=roles)
            for name, roles in may.items()
        }
    )


@dataclass(slots=True, kw_only=True)
class Replica:
    """One replica's service."""

    ledger: Ledger
    url: str
    client: LedgerClient


@asynccontextmanager
async def replica(world: World, *holders: str, token: str = TOKEN) -> AsyncIterator[Replica]:
    """Run a replica of everything, or of partition 0 with ``holders`` for the others."""
    async with AsyncExitStack() as stack:
        ledger = await stack.enter_async_context(world.ledger(frozenset({Partition(0)}) if holders else None))
        await ledger.start()
        forwarding = None
        if holders:
            forwarding = Forwarding(Holders.parse(f"1-3={'|'.join(holders)}"), ledger.ledger_id, Metrics())
            await forwarding.start()
            stack.push_async_callback(forwarding.close)
        app = create_app(ledger, access_of(token), forwarding=forwarding)
        url = await stack.enter_async_context(listening(app))
        client = await stack.enter_async_context(LedgerClient(url, token=token))
        yield Replica(ledger=ledger, url=url, client=client)


async def test_replica_of_another_ledger_is_not_believed_and_changes_nothing() -> None:
    async with (
        formatted() as ours,
        formatted() as theirs,
        replica(theirs) as other,
        replica(ours, other.url) as front,
    ):
        before = await theirs.written(), await ours.written()
        with capture_logs() as logged:
            for asking in (front.client.load(RESPONSE), front.client.publish(turn(SCOPE))):
                with pytest.raises(Unavailable) as refused:
                    await asking
                assert refused.value.reason == "holder"
            (looked_up,) = await front.client.load_many([RESPONSE])
            (published,) = await front.client.publish_batch([turn(SCOPE)])
            assert [isinstance(one, Unavailable) for one in (looked_up, published)] == [True, True]
        assert (await theirs.written(), await ours.written()) == before
        warned = [line for line in logged if line["event"] == "holder_misdirected"]
        assert [line["ledger"] for line in warned] == [other.ledger.ledger_id.hex()] * 4
        async with replica(ours) as holder, replica(ours, other.url, holder.url) as second:
            assert (await second.client.publish(turn(SCOPE))).accepted
            assert isinstance(await second.client.load(RESPONSE), Found)
            missing = Selector(scope=SCOPE, kind=SelectorKind.RESPONSE, id="never")
            assert isinstance(await second.client.load(missing), Missing)


async def test_process_of_the_ledger_that_does_not_serve_it_is_not_believed() -> None:
    async with formatted() as world, replica(world) as holder:
        async with listening(health_app(holder.ledger, Metrics())) as probes, replica(world, probes) as front:
            with pytest.raises(Unavailable):
                await front.client.load(RESPONSE)
        async with replica(world, f"{holder.url}/elsewhere") as front:
            with pytest.raises(Unavailable):
                await front.client.load(RESPONSE)


async def test_refusal_by_a_holder_with_other_tokens_is_the_ledgers_and_is_passed_on() -> None:
    async with (
        formatted() as world,
        replica(world, token="another") as holder,  # the token of a test
        replica(world, holder.url) as front,
    ):
        with pytest.raises(NotAuthenticated):
            await front.client.load(RESPONSE)


@pytest.mark.parametrize(
    ("method", "token", "status"),
    [("GET", TOKEN, 404), ("GET", "nobody", 401), ("POST", f"{TOKEN}-reads", 403), ("POST", TOKEN, 400)],
)
async def test_answer_of_a_route_names_the_ledger_when_the_request_was_forwarded(
    method: str, token: str, status: int
) -> None:
    async with formatted() as world, replica(world) as holder, httpx.AsyncClient(base_url=holder.url) as http:
        path, name = ("/ledger/v1/lookup" if method == "GET" else "/ledger/v1/turns"), holder.ledger.ledger_id.hex()
        sent = {"authorization": f"Bearer {token}"}
        for forwarded in ({FORWARDED: "1"}, {FORWARDED: "1", ASKED_LEDGER: name}):
            answer = await http.request(method, path, params=LOOKUP, headers=sent | forwarded)
            assert (answer.status_code, answer.headers.get(LEDGER)) == (status, name)
        for own in ({}, {ASKED_LEDGER: "00" * 16}):
            answer = await http.request(method, path, params=LOOKUP, headers=sent | own)
            assert (answer.status_code, answer.headers.get(LEDGER)) == (status, None)


async def test_request_about_another_ledger_is_refused_before_it_is_read() -> None:
    async with formatted() as world, replica(world) as holder, httpx.AsyncClient(base_url=holder.url) as http:
        # Not even a token is asked for.
        answer = await http.post("/ledger/v1/turns", headers={FORWARDED: "1", ASKED_LEDGER: "00" * 16})
        assert (answer.status_code, answer.json()["error"]["code"]) == (421, OTHER_LEDGER)
        assert answer.headers[LEDGER] == holder.ledger.ledger_id.hex()
        assert answer.headers[NOT_SERVED] == OTHER_LEDGER


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/none", 404), ("PUT", "/ledger/v1/turns", 405)])
async def test_what_has_no_route_names_no_ledger(method: str, path: str, status: int) -> None:
    async with formatted() as world, replica(world) as holder, httpx.AsyncClient(base_url=holder.url) as http:
        answer = await http.request(method, path, headers={FORWARDED: "1"})
        assert (answer.status_code, answer.headers.get(LEDGER)) == (status, None)


async def test_defect_of_a_route_names_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    async with formatted() as world, replica(world) as holder, httpx.AsyncClient(base_url=holder.url) as http:
        monkeypatch.setattr(holder.ledger.reader, "load", None)
        sent = {"authorization": f"Bearer {TOKEN}", FORWARDED: "1"}
        answer = await http.get("/ledger/v1/lookup", params=LOOKUP, headers=sent)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "defect")
        assert answer.headers[LEDGER] == holder.ledger.ledger_id.hex()
