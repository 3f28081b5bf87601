"""A change that a gateway sent on and got no answer for: no client sends it a second time by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from openai import APIStatusError, AsyncOpenAI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from api.forwarding import Forwarding
from api.gateway.app import answers_within_s
from api.gateway.config import GatewayConfig
from api.gateway.operations import OPERATIONS
from api.holders import Holders
from api.ledger_name import ASKED_LEDGER, FORWARDED, LEDGER, OTHER_LEDGER
from api.metrics import Metrics
from ledger.alias import partition_of
from ledger.settings import LedgerSettings
from ledger.turn import Partition, Scope
from tests.api.entry import breaking, stranger_of
from tests.gateway.serving import listening
from tests.gateway.world import base_config, config_from, gateway_over, key_of
from tests.test_holding import KEY, PARTITION_COUNT, formatted

PRINCIPAL = "tenant-0"
Ask = Callable[[AsyncOpenAI], Awaitable[object]]


@asynccontextmanager
async def gateway_beside(holder_url: str, directory: Path) -> AsyncIterator[AsyncOpenAI]:
    """Run a gateway that does not hold the principal, and give a client that retries as it does by default."""
    read = base_config({"p1": 1, "p2": 2, "c": 3}, prefers="p1", principals=[PRINCIPAL])
    config = GatewayConfig.from_file(config_from(read, directory, "beside"), {})
    scope = Scope(namespace=config.namespace, route=config.route, principal=PRINCIPAL)
    partition = partition_of(KEY.principal(scope), PARTITION_COUNT)
    held = frozenset(map(Partition, range(PARTITION_COUNT))) - {partition}
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(formatted())
        ledger = await stack.enter_async_context(world.ledger(held))
        await ledger.start()
        forwarding = Forwarding(Holders.parse(f"{partition}={holder_url}"), ledger.ledger_id, Metrics())
        await forwarding.start()
        stack.push_async_callback(forwarding.close)
        gateway = await stack.enter_async_context(gateway_over(ledger, config, forwarding=forwarding))
        yield await stack.enter_async_context(AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key_of(PRINCIPAL)))


CHANGES: dict[str, Ask] = {
    "items": lambda client: client.conversations.items.create(
        "conv_1",
        items=[{"type": "message", "role": "user", "content": "once"}],
        # It means something for a new response only.
        extra_headers={"Idempotency-Key": "k"},
    ),
    "conversation": lambda client: client.conversations.create(),
    "deletion": lambda client: client.responses.delete("resp_1"),
    "response": lambda client: client.responses.create(model="chat", input="once"),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_change_whose_holder_broke_is_sent_once_by_the_sdk(name: str, tmp_path: Path) -> None:
    async with breaking() as (holder, taken), gateway_beside(holder, tmp_path) as client:
        with pytest.raises(APIStatusError) as refused:
            await CHANGES[name](client)
        assert len(taken) == 1
        assert (refused.value.status_code, refused.value.code) == (504, "outcome_unknown")
        assert refused.value.response.headers["x-should-retry"] == "false"
        assert "may have been carried out" in refused.value.message


async def test_response_with_an_idempotency_key_is_asked_for_again_by_the_sdk(tmp_path: Path) -> None:
    async with breaking() as (holder, taken), gateway_beside(holder, tmp_path) as client:
        with pytest.raises(APIStatusError) as refused:
            await client.responses.create(model="chat", input="once", extra_headers={"Idempotency-Key": "k"})
        assert len(taken) == client.max_retries + 1
        assert refused.value.status_code == 504
        assert "same Idempotency-Key" in refused.value.message


async def test_stranger_behind_the_url_of_a_holder_is_not_believed(tmp_path: Path) -> None:
    taken: list[str] = []

    async def stranger(request: Request) -> Response:
        taken.append(request.method)
        return JSONResponse({"error": {"message": "No such response.", "code": "response_not_found"}}, 404)

    async with listening(stranger_of(stranger)) as url, gateway_beside(url, tmp_path) as client:
        with pytest.raises(APIStatusError) as refused:
            await client.with_options(max_retries=0).responses.retrieve("resp_1")
        assert (refused.value.status_code, refused.value.code) == (503, "ledger_unavailable")
        with pytest.raises(APIStatusError) as refused:
            await client.responses.delete("resp_1")
        assert (refused.value.status_code, refused.value.code) == (504, "outcome_unknown")
        assert taken == ["GET", "DELETE"]


async def test_gateway_names_its_ledger_to_who_sends_a_request_on(tmp_path: Path) -> None:
    async with gateway_beside("http://127.0.0.1:1", tmp_path) as client, httpx.AsyncClient() as http:
        sent = {FORWARDED: "1", "authorization": f"Bearer {key_of(PRINCIPAL)}"}
        for path, status in (("models", 200), ("responses/resp_1", 421)):
            answer = await http.get(f"{client.base_url}{path}", headers=sent)
            assert (answer.status_code, len(answer.headers.get(LEDGER, ""))) == (status, 32)
            answer = await http.get(f"{client.base_url}{path}", headers=sent | {ASKED_LEDGER: "00" * 16})
            assert (answer.status_code, answer.json()["error"]["code"]) == (421, OTHER_LEDGER)
        answer = await http.get(f"{client.base_url}none", headers=sent)
        assert (answer.status_code, answer.headers.get(LEDGER)) == (404, None)


def test_operation_may_be_silent_only_for_whom_it_may_call(tmp_path: Path) -> None:
    settings = LedgerSettings()
    bounds: dict[str, dict[str, float]] = {}
    for native in ("responses", "chat_completions"):
        read = base_config({"p1": 1, "p2": 2, "c": 3}, prefers="p1", principals=[PRINCIPAL])
        for target in read["targets"]:
            target["format"] = native
        config = GatewayConfig.from_file(config_from(read, tmp_path, native), {})
        bounds[native] = {one.name: answers_within_s(config, settings, one.asks) for one in OPERATIONS}
    ledger_s = 3 * settings.commit_timeout_s + 2 * settings.read_timeout_s
    assert bounds["responses"].pop("responses.create") == ledger_s + 3 * 5 + 600 + 20
    assert bounds["chat_completions"].pop("responses.create") == ledger_s + 3 * 5 + 600 + 20
    assert set(bounds["chat_completions"].values()) == {ledger_s}, "no target has anything that could be asked for"
    short = {name for name, bound_s in bounds["responses"].items() if bound_s == ledger_s}
    assert short == {"conversations.create_conversation", "models.list_models", "models.retrieve_model"}
    assert {bound_s for name, bound_s in bounds["responses"].items() if name not in short} == {ledger_s + 605}
