"""The loopback upstream as a provider: the state it keeps, and what it refuses as providers do."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.conversations import Conversation, ConversationItemList
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter

from cli.loopback.server import Loopback, running_loopback
from tests.gateway.broken import read_broken

RESPONSE = TypeAdapter(Response)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ITEMS = TypeAdapter(ResponseItemList)
CONVERSATION = TypeAdapter(Conversation)
CONVERSATION_ITEMS = TypeAdapter(ConversationItemList)

CALL = {"id": "call_7", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USER = {"role": "user", "content": "alpha"}
UNFINISHED = (400, None, "previous_response_id")
OUTPUT = {"type": "function_call_output", "call_id": "call_7", "output": "42"}


@pytest.fixture
async def p1() -> AsyncIterator[Loopback]:
    async with running_loopback("p1") as loopback:
        yield loopback


@pytest.fixture
async def http(p1: Loopback) -> AsyncIterator[httpx.AsyncClient]:
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    async with httpx.AsyncClient(base_url=p1.url, trust_env=False, verify=verify) as client:
        yield client


async def respond(http: httpx.AsyncClient, value: Any, **more: Any) -> dict[str, Any]:
    """Post a turn that must succeed."""
    answered = await http.post("/v1/responses", json={"model": "m", "input": value, **more})
    assert answered.status_code == 200, answered.text
    body: dict[str, Any] = answered.json()
    return body


async def refused(http: httpx.AsyncClient, path: str, **request: Any) -> tuple[int, str | None, str | None]:
    """Post a request that must fail; return status, code and param."""
    answered = await http.post(path, json={"model": "m", **request})
    assert answered.status_code >= 400, answered.text
    error = answered.json()["error"]
    return answered.status_code, error["code"], error["param"]


def text_of(response: dict[str, Any]) -> str:
    text: str = response["output"][-1]["content"][0]["text"]
    return text


async def test_a_continuation_hears_all_its_ancestors_and_no_other_branch(http: httpx.AsyncClient) -> None:
    a = await respond(http, "alpha", instructions="be brief")
    b1 = await respond(http, "beta", previous_response_id=a["id"])
    b2 = await respond(http, "other", previous_response_id=a["id"])
    c1 = await respond(http, "gamma", previous_response_id=b1["id"])
    assert text_of(c1) == "p1 heard: alpha | beta | gamma"
    assert text_of(b2) == "p1 heard: alpha | other"
    assert b1["instructions"] is None
    assert c1["previous_response_id"] == b1["id"]


async def test_what_is_not_stored_here_cannot_be_continued(http: httpx.AsyncClient) -> None:
    unstored = await respond(http, "alpha", store=False)
    assert unstored["store"] is False
    async with running_loopback("p2") as p2, openai.AsyncOpenAI(base_url=f"{p2.url}/v1", api_key="k") as other:
        foreign = await other.responses.create(model="m", input="alpha")
    for previous in (unstored["id"], foreign.id, "resp_unknown"):
        expected = (400, "previous_response_not_found", "previous_response_id")
        assert await refused(http, "/v1/responses", input="b", previous_response_id=previous) == expected
        assert (await http.get(f"/v1/responses/{previous}")).status_code == 404
        assert (await http.delete(f"/v1/responses/{previous}")).status_code == 404


async def test_a_deleted_response_stays_the_history_of_its_children(http: httpx.AsyncClient) -> None:
    a = await respond(http, "alpha")
    b = await respond(http, "beta", previous_response_id=a["id"])
    deleted = (await http.delete(f"/v1/responses/{a['id']}")).json()
    assert deleted == {"id": a["id"], "object": "response", "deleted": True}
    assert (await http.delete(f"/v1/responses/{a['id']}")).status_code == 404
    c = await respond(http, "gamma", previous_response_id=b["id"])
    assert text_of(c) == "p1 heard: alpha | beta | gamma"


async def test_a_stored_response_can_be_read_and_streamed_again(http: httpx.AsyncClient) -> None:
    streamed = await http.post("/v1/responses", json={"model": "m", "input": "alpha", "stream": True})
    path = "/v1/responses/resp_p1_1"
    again = await http.get(path, params={"stream": "true"})
    assert again.text == streamed.text
    late = await http.get(path, params={"stream": "true", "starting_after": "2"})
    assert late.text == streamed.text[streamed.text.index("event: response.content_part.added") :]
    RESPONSE.validate_json((await http.get(path)).content, strict=True)


async def test_input_items_are_listed_newest_first_in_pages(http: httpx.AsyncClient) -> None:
    called = await respond(http, "!tool(f, {}, call_7)")
    items = [OUTPUT, {"role": "assistant", "content": "so"}, {"role": "user", "content": "and?"}]
    response = await respond(http, items, previous_response_id=called["id"])
    path = f"/v1/responses/{response['id']}/input_items"
    first = await http.get(path, params={"limit": 2})
    page = ITEMS.validate_json(first.content, strict=True)
    assert [item.type for item in page.data] == ["message", "message"]
    assert page.has_more
    rest = ITEMS.validate_json((await http.get(path, params={"after": page.last_id})).content, strict=True)
    assert [item.type for item in rest.data] == ["function_call_output"]
    assert not rest.has_more
    for limit in ("0", "101"):
        assert (await http.get(path, params={"limit": limit})).status_code == 400


async def test_tool_outputs_and_calls_must_match(http: httpx.AsyncClient) -> None:
    assert (await refused(http, "/v1/responses", input=[OUTPUT]))[0] == 400
    called = await respond(http, "!tool(f, {}, call_7)")
    assert (await refused(http, "/v1/responses", input="on", previous_response_id=called["id"]))[0] == 400
    answered = await respond(http, [OUTPUT], previous_response_id=called["id"])
    assert text_of(answered) == "p1 heard: tool(call_7)=42"
    assert (await refused(http, "/v1/responses", input=[OUTPUT], previous_response_id=answered["id"]))[0] == 400


async def test_reasoning_of_another_provider_is_refused(http: httpx.AsyncClient) -> None:
    own = await respond(http, "!reasoning(x) !say(y)", store=False, include=["reasoning.encrypted_content"])
    assert (await respond(http, [USER, *own["output"], USER]))["status"] == "completed"
    foreign = [USER, {**own["output"][0], "encrypted_content": "p2:00"}, *own["output"][1:], USER]
    assert await refused(http, "/v1/responses", input=foreign) == (400, "invalid_encrypted_content", "input")
    bare = [USER, {"id": "rs_x", "type": "reasoning", "summary": []}, *own["output"][1:], USER]
    assert await refused(http, "/v1/responses", input=bare) == (404, None, "input")
    assert (await refused(http, "/v1/responses", input=[own["output"][0], USER]))[0] == 400


async def test_item_references_resolve_to_stored_items(http: httpx.AsyncClient) -> None:
    first = await respond(http, "alpha")
    [listed] = (await http.get(f"/v1/responses/{first['id']}/input_items")).json()["data"]
    reference = {"type": "item_reference", "id": listed["id"]}
    assert text_of(await respond(http, [reference, {"role": "user", "content": "beta"}])) == "p1 heard: alpha | beta"
    unknown = {"type": "item_reference", "id": "msg_unknown"}
    assert await refused(http, "/v1/responses", input=[unknown]) == (404, None, "input")


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        ({"input": "a", "messages": []}, "messages"),
        ({"input": []}, "input"),
        ({"input": "a", "previous_response_id": "resp_x", "conversation": "conv_x"}, "previous_response_id"),
        ({"input": "a", "conversation": 7}, "conversation"),
        ({"input": "a", "background": True, "store": False}, "background"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "assistant", "content": [{"type": "input_text", "text": "a"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{**USER, "id": "resp_1"}]}, "input[0].id"),
    ],
)
async def test_a_malformed_response_request_is_refused(
    http: httpx.AsyncClient, request_: dict[str, Any], param: str
) -> None:
    status, _, named = await refused(http, "/v1/responses", **request_)
    assert (status, named) == (400, param)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "tool", "tool_call_id": "call_7", "content": "42"}],
        [USER, {"role": "assistant", "tool_calls": [CALL]}],
        [USER, {"role": "assistant", "tool_calls": [CALL]}, USER],
        [USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_8", "content": ""}],
        [USER, {"role": "assistant", "tool_calls": []}],
        [USER, {"role": "assistant", "content": None}],
        [USER, {"role": "assistant", "tool_calls": [CALL, CALL]}],
        [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
        [{"role": "critic", "content": "a"}],
        ["a"],
        "a",
    ],
)
async def test_messages_that_do_not_fit_together_are_refused(http: httpx.AsyncClient, messages: Any) -> None:
    assert (await refused(http, "/v1/chat/completions", messages=messages))[0] == 400


async def test_chat_refuses_what_belongs_to_responses(http: httpx.AsyncClient) -> None:
    status, code, param = await refused(http, "/v1/chat/completions", messages=[USER], previous_response_id="resp_1")
    assert (status, code, param) == (400, "unknown_parameter", "previous_response_id")


@pytest.mark.parametrize("stream", [False, True])
async def test_turns_of_a_conversation_hear_each_other(http: httpx.AsyncClient, stream: bool) -> None:
    created = await http.post("/v1/conversations", json={"items": [USER], "metadata": {"a": "b"}})
    conversation = CONVERSATION.validate_json(created.content, strict=True)
    for named in (conversation.id, {"id": conversation.id}):
        request = {"model": "m", "input": "beta", "conversation": named, "stream": stream}
        assert (await http.post("/v1/responses", json=request)).status_code == 200
    unstored = await respond(http, "gamma", conversation=conversation.id, store=False)
    assert text_of(unstored) == "p1 heard: alpha | beta | beta | gamma"
    assert unstored["conversation"] == {"id": conversation.id}
    listed = await http.get(f"/v1/conversations/{conversation.id}/items", params={"order": "asc"})
    items = CONVERSATION_ITEMS.validate_json(listed.content, strict=True)
    assert [getattr(item, "role", None) for item in items.data] == ["user", "user", "assistant", "user", "assistant"]


async def test_the_sdk_keeps_a_conversation(p1: Loopback) -> None:
    async with openai.AsyncOpenAI(base_url=f"{p1.url}/v1", api_key="k", max_retries=0) as sdk:
        conversation = await sdk.conversations.create(metadata={"a": "b"})
        added = await sdk.conversations.items.create(
            conversation.id, items=[{"type": "message", "role": "user", "content": "alpha"}]
        )
        updated = await sdk.conversations.update(conversation.id, metadata={"c": "d"})
        assert updated.metadata == {"c": "d"}
        found = await sdk.conversations.items.retrieve(added.data[0].id or "", conversation_id=conversation.id)
        assert found.type == "message"
        left = await sdk.conversations.items.delete(added.data[0].id or "", conversation_id=conversation.id)
        assert left.id == conversation.id
        assert [item async for item in sdk.conversations.items.list(conversation.id)] == []
        assert (await sdk.conversations.delete(conversation.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await sdk.conversations.retrieve(conversation.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.create(model="m", input="a", conversation=conversation.id)


async def test_a_conversation_takes_one_turn_at_a_time(p1: Loopback, http: httpx.AsyncClient) -> None:
    conversation = (await http.post("/v1/conversations", json={})).json()["id"]
    request = {"model": "m", "input": "!pause(60000) a b", "conversation": conversation, "stream": True}
    async with http.stream("POST", "/v1/responses", json=request) as stream:
        async for _ in stream.aiter_text():
            break
        second = await refused(http, "/v1/responses", input="c", conversation=conversation)
    assert second == (400, "conversation_locked", "conversation")
    await p1.settled()
    assert text_of(await respond(http, "c", conversation=conversation)) == "p1 heard: c"


async def test_a_background_response_is_queued_then_in_progress_then_completed(http: httpx.AsyncClient) -> None:
    begun = await respond(http, "alpha !delay(20) !pause(20)", background=True)
    assert RESPONSE.validate_json(json.dumps(begun), strict=True).status == "queued"
    seen = [begun["status"]]
    while seen[-1] in ("queued", "in_progress"):
        await asyncio.sleep(0.002)
        body = (await http.get(f"/v1/responses/{begun['id']}")).json()
        seen += [body["status"]] if body["status"] != seen[-1] else []
    assert seen == ["queued", "in_progress", "completed"]
    assert text_of(await respond(http, "beta", previous_response_id=begun["id"])) == "p1 heard: alpha | beta"


async def test_a_background_stream_can_be_resumed_after_it_was_cut(http: httpx.AsyncClient) -> None:
    request = {"model": "m", "input": "!cut(1) alpha", "background": True, "stream": True}
    received = await read_broken(http, "/v1/responses", request)
    events = [EVENT.validate_json(line[6:], strict=True) for line in received.splitlines() if line[:5] == "data:"]
    assert [event.type for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    query = {"stream": "true", "starting_after": str(events[-1].sequence_number)}
    rest = await http.get("/v1/responses/resp_p1_1", params=query)
    resumed = [EVENT.validate_json(line[6:], strict=True) for line in rest.text.splitlines() if line[:5] == "data:"]
    assert [event.sequence_number for event in events + resumed] == list(range(len(events) + len(resumed)))
    assert resumed[-1].type == "response.completed"


async def test_only_background_responses_can_be_cancelled(http: httpx.AsyncClient) -> None:
    whole = await respond(http, "alpha")
    assert (await http.post(f"/v1/responses/{whole['id']}/cancel")).status_code == 400
    begun = await respond(http, "!hang", background=True)
    assert await refused(http, "/v1/responses", input="b", previous_response_id=begun["id"]) == UNFINISHED
    for _ in range(2):
        cancelled = await http.post(f"/v1/responses/{begun['id']}/cancel")
        assert RESPONSE.validate_json(cancelled.content, strict=True).status == "cancelled"
    assert await refused(http, "/v1/responses", input="b", previous_response_id=begun["id"]) == UNFINISHED
