"""The input items of a response, of the ledger and of a target."""

from __future__ import annotations

import httpx
import openai
import pytest

from api.gateway.service import Gateway
from ledger.commit import TurnStart
from ledger.ledger import wall_clock_ms
from ledger.turn import Selector, SelectorKind
from tests.gateway.conversations.app import (
    Upstreams,
    scope_of,
    take_native_turn,
    take_turn,
)


async def test_input_items_are_those_of_the_turn_alone(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    await take_turn(gateway, 1)
    await take_turn(gateway, 2, previous_response_id="resp_1")
    listed = await client.responses.input_items.list("resp_2", limit=1, include=["message.input_image.image_url"])
    assert ([item.id for item in listed.data], listed.has_more) == (["msg_in2"], False)


async def test_input_items_of_a_native_response_are_asked_of_its_owner(
    gateway: Gateway, http: httpx.AsyncClient, upstreams: Upstreams
) -> None:
    await take_native_turn(gateway, None)
    upstreams.body = list_body = {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}
    answer = await http.get("/responses/resp_native/input_items?limit=3&after=msg_1")
    assert answer.json() == list_body
    assert upstreams.calls == [("GET", "/v1/responses/resp_native/input_items?limit=3&after=msg_1", b"")]


async def test_response_that_has_not_ended_has_no_input_items_yet(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    start = TurnStart(
        scope=scope_of(gateway),
        event_id="start",
        turn_id="turn",
        begun_at_ms=wall_clock_ms(),
        lease_ms=60_000,
        response_id="resp_1",
    )
    assert (await gateway.state().committer.begin(start)).accepted
    assert (await client.responses.input_items.list("resp_1")).data == []


async def test_input_items_of_a_deleted_response_are_gone(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    await take_turn(gateway, 1)
    selector = Selector(scope=scope_of(gateway), kind=SelectorKind.RESPONSE, id="resp_1")
    assert (await gateway.state().conversations.delete_response(selector, event_id="delete")).accepted
    with pytest.raises(openai.NotFoundError) as refused:
        await client.responses.input_items.list("resp_1")
    assert (refused.value.code, refused.value.param) == ("response_not_found", "response_id")
    assert refused.value.body["reason"] == "deleted"  # type: ignore[index]
