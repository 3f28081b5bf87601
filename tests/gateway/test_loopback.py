"""The loopback upstream: what it answers, in both formats, whole and streamed, as the official SDK reads it."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from cli.loopback.answer import Heard, answer, instance
from cli.loopback.script import ScriptedCall, read_script
from cli.loopback.server import Loopback, running_loopback
from ledger.errors import InvalidInput
from ledger.refusal import Refusal
from tests.gateway.broken import read_broken

RESPONSE = TypeAdapter(Response)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
COMPLETION = TypeAdapter(ChatCompletion)
CHUNK = TypeAdapter(ChatCompletionChunk)

TOOLS = [{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}]
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Spares each client a quarter of a second for certificates that nobody asks for."""
SCRIPTS = (
    "alpha",
    "!say(exactly this) and nothing else",
    "!long(100)",
    "!reasoning(let me (really) think) alpha",
    '!tool(weather, {"city": "Oslo (east)"})',
    "!reasoning(x) !tool(a) !tool(b) !tool(c) !between",
    "!say(calling) !tool(a)",
    "!refuse(no)",
    "!length !say(one two three four)",
    "!filter !say(one two three four)",
    "!half",
    "!json alpha",
)


@pytest.fixture
async def p1() -> AsyncIterator[Loopback]:
    async with running_loopback("p1") as loopback:
        yield loopback


@pytest.fixture
async def http(p1: Loopback) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=p1.url, trust_env=False, verify=NO_TLS) as client:
        yield client


@pytest.fixture
async def sdk(p1: Loopback) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{p1.url}/v1", api_key="sk-secret", max_retries=0) as client:
        yield client


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text} for text in texts], **more}


def turn(heard: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "input": heard, **more}


def data_of(stream: str) -> list[str]:
    return [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize("script", SCRIPTS)
async def test_every_response_is_what_the_sdk_declares(http: httpx.AsyncClient, script: str) -> None:
    request = turn(
        script,
        tools=TOOLS,
        include=["reasoning.encrypted_content"],
        reasoning={"effort": "low", "summary": "auto"},
        metadata={"a": "b"},
        instructions="be brief",
    )
    buffered = await http.post("/v1/responses", json=request)
    RESPONSE.validate_json(buffered.content, strict=True)
    streamed = await http.post("/v1/responses", json={**request, "stream": True})
    events = [json.loads(data) for data in data_of(streamed.text)]
    for event in events:
        EVENT.validate_json(json.dumps(event), strict=True)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert without_names(events[-1]["response"]) == without_names(buffered.json())


@pytest.mark.parametrize("script", SCRIPTS)
async def test_every_chat_completion_is_what_the_sdk_declares(http: httpx.AsyncClient, script: str) -> None:
    completion = await http.post("/v1/chat/completions", json=chat(script))
    COMPLETION.validate_json(completion.content, strict=True)
    streamed = await http.post(
        "/v1/chat/completions", json=chat(script, stream=True, stream_options={"include_usage": True})
    )
    *chunks, done = data_of(streamed.text)
    for chunk in chunks:
        CHUNK.validate_json(chunk, strict=True)
    assert done == "[DONE]"
    assert json.loads(chunks[-1])["choices"] == []
    assert json.loads(chunks[-1])["usage"]["completion_tokens"] == completion.json()["usage"]["completion_tokens"]
    [finish] = [c["finish_reason"] for chunk in chunks for c in json.loads(chunk)["choices"] if c["finish_reason"]]
    assert finish == completion.json()["choices"][0]["finish_reason"]


def without_names(value: Any) -> Any:
    """Return a body without what differs between two equal requests."""
    if isinstance(value, dict):
        varying = ("id", "call_id", "created_at", "completed_at", "input_tokens_details")
        return {name: without_names(inner) for name, inner in value.items() if name not in varying}
    return [without_names(inner) for inner in value] if isinstance(value, list) else value


async def test_the_sdk_streams_a_response(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.responses.stream(model="m", input="alpha beta") as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == "p1 heard: alpha beta"
    assert final.id == "resp_p1_1"
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 4,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_the_sdk_streams_a_chat_completion(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.chat.completions.stream(model="m", messages=[{"role": "user", "content": "alpha"}]) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "p1 heard: alpha"
    assert final.id == "chatcmpl-p1-1"


async def test_a_chat_answer_shows_every_text_of_its_messages(sdk: openai.AsyncOpenAI) -> None:
    completion = await sdk.chat.completions.create(
        model="m",
        messages=[
            {"role": "system", "content": "unheard"},
            {"role": "user", "content": "alpha !tool(f)"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_7", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "call_7", "content": "42"},
            {"role": "user", "content": [{"type": "text", "text": "beta"}, {"type": "text", "text": "gamma"}]},
        ],
    )
    assert completion.choices[0].message.content == "p1 heard: alpha | tool(call_7)=42 | beta gamma"


async def test_parallel_calls_with_reasoning_between_keep_their_order(http: httpx.AsyncClient) -> None:
    script = '!reasoning(why) !tool(a, {"n": 1}) !tool(b, {}, call_7) !tool(c) !between'
    response = (await http.post("/v1/responses", json=turn(script, include=["reasoning.encrypted_content"]))).json()
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["reasoning", "function_call", "function_call", "reasoning", "function_call"]
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    assert [(call["name"], call["arguments"]) for call in calls] == [("a", '{"n": 1}'), ("b", "{}"), ("c", "{}")]
    assert [call["call_id"] for call in calls] == ["call_p1_1", "call_7", "call_p1_2"]
    reasoning = response["output"][0]
    assert reasoning["summary"] == []
    assert reasoning["encrypted_content"].startswith("p1:")
    message = (await http.post("/v1/chat/completions", json=chat(script))).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "why\nwhy"
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["a", "b", "c"]
    assert message["content"] is None


async def test_streamed_calls_add_up_to_the_whole_ones(http: httpx.AsyncClient) -> None:
    script = '!tool(a, {"text": "long enough for pieces"}) !tool(b)'
    streamed = await http.post("/v1/chat/completions", json=chat(script, stream=True))
    arguments: dict[int, str] = {}
    for data in data_of(streamed.text)[:-1]:
        for call in json.loads(data)["choices"][0]["delta"].get("tool_calls", ()):
            arguments[call["index"]] = arguments.get(call["index"], "") + call["function"]["arguments"]
    assert arguments == {0: '{"text": "long enough for pieces"}', 1: "{}"}


async def test_a_half_written_call_ends_by_length(http: httpx.AsyncClient) -> None:
    response = (await http.post("/v1/responses", json=turn('!half !tool(a, {"n": 100})'))).json()
    assert response["status"] == "incomplete"
    assert response["output"][0]["arguments"] == '{"n":'
    completion = (await http.post("/v1/chat/completions", json=chat('!half !tool(a, {"n": 100})'))).json()
    assert completion["choices"][0]["finish_reason"] == "length"


async def test_a_failed_response_says_so_after_its_deltas(http: httpx.AsyncClient) -> None:
    response = (await http.post("/v1/responses", json=turn("!fail alpha"))).json()
    assert RESPONSE.validate_json(json.dumps(response), strict=True).status == "failed"
    streamed = await http.post("/v1/responses", json=turn("!fail alpha", stream=True))
    kinds = [EVENT.validate_json(data, strict=True).type for data in data_of(streamed.text)]
    assert kinds[-2:] == ["response.content_part.done", "response.failed"]
    assert (await http.post("/v1/chat/completions", json=chat("!fail"))).status_code == 500
    streamed = await http.post("/v1/chat/completions", json=chat("!fail", stream=True))
    assert json.loads(data_of(streamed.text)[-1])["error"]["type"] == "server_error"


async def test_a_scripted_status_is_an_error_of_the_api(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.RateLimitError) as limited:
        await sdk.responses.create(model="m", input="!status(429)")
    assert limited.value.code == "rate_limit_exceeded"
    with pytest.raises(openai.InternalServerError):
        await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "!status(500)"}])


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_a_cut_stream_breaks_after_that_many_deltas(http: httpx.AsyncClient, path: str) -> None:
    for cut in (0, 2):
        request = (turn if path == "/v1/responses" else chat)(f"!cut({cut}) !say(a b c d)", stream=True)
        received = await read_broken(http, path, request)
        counted = [data for data in data_of(received) if '"delta":"' in data or '"content":"' in data]
        words = [data for data in counted if any(f'"{word} "' in data for word in "abcd")]
        assert len(words) == cut
        assert "[DONE]" not in received


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_a_cut_buffered_answer_has_no_byte(p1: Loopback, http: httpx.AsyncClient, path: str) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await http.post(path, json=(turn if path == "/v1/responses" else chat)("!cut(1)"))
    assert p1.recorded()[0].status is None
    assert not p1.recorded()[0].left


async def test_a_client_that_leaves_is_noticed(p1: Loopback, http: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.ReadTimeout):
        await http.post("/v1/responses", json=turn("!hang"), timeout=0.1)
    async with http.stream("POST", "/v1/responses", json=turn("!pause(60000) a b", stream=True)) as stream:
        async for _ in stream.aiter_text():
            break
    await p1.settled()
    assert [request.left for request in p1.recorded()] == [True, True]
    assert (await http.get("/v1/responses/resp_p1_1")).status_code == 404


async def test_json_answers_fit_the_schema_of_the_request(http: httpx.AsyncClient) -> None:
    properties = {"city": {"type": "string"}, "degrees": {"type": "integer"}, "tags": {"type": "array"}}
    schema = {"type": "object", "properties": properties}
    text = {"format": {"type": "json_schema", "name": "w", "schema": schema, "strict": True}}
    response = (await http.post("/v1/responses", json=turn("alpha !json", text=text))).json()
    RESPONSE.validate_json(json.dumps(response), strict=True)
    expected = {"city": "alpha", "degrees": 0, "tags": ["alpha"]}
    assert json.loads(response["output"][0]["content"][0]["text"]) == expected
    form: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema}}
    message = (await http.post("/v1/chat/completions", json=chat("alpha !json", response_format=form))).json()
    assert json.loads(message["choices"][0]["message"]["content"]) == expected


async def test_a_repeated_prefix_of_messages_is_cached(sdk: openai.AsyncOpenAI) -> None:
    async def cached(*texts: str) -> tuple[int, int]:
        messages: Any = [{"role": "user", "content": text} for text in texts]
        usage = (await sdk.chat.completions.create(model="m", messages=messages)).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens or 0

    first, hit = await cached("alpha", "beta")
    assert hit == 0
    _, hit = await cached("alpha", "beta", "gamma")
    assert hit == first
    _, hit = await cached("alphA", "beta")
    assert hit == 0


async def test_requests_are_recorded_without_keys(p1: Loopback, http: httpx.AsyncClient) -> None:
    raw = '{"model": "m",  "input": "h\\u00e9"}'
    headers = {"authorization": "Bearer sk-secret", "idempotency-key": "k1", "content-type": "application/json"}
    await http.post("/v1/responses?a=b", content=raw, headers=headers)
    [request] = (await http.get("/recorded")).json()
    assert request == {
        "method": "POST",
        "path": "/v1/responses",
        "query": {"a": "b"},
        "headers": {"authorization": "Bearer", "idempotency-key": "k1", "content-type": "application/json"},
        "body": {"model": "m", "input": "hé"},
        "raw": raw,
        "status": 200,
        "left": False,
        "ended": True,
    }
    await http.get("/v1/nothing")
    assert [(request.path, request.status) for request in p1.recorded()][1:] == [("/v1/nothing", 404)]
    await http.delete("/recorded")
    assert p1.recorded() == []


async def test_an_upstream_that_is_down_answers_503(http: httpx.AsyncClient) -> None:
    assert (await http.post("/control", json={"down": True, "delay_ms": 1})).json() == {"down": True, "delay_ms": 1}
    assert (await http.post("/v1/responses", json=turn("a"))).status_code == 503
    await http.post("/control", json={"down": False})
    assert (await http.post("/v1/responses", json=turn("a"))).status_code == 200
    assert (await http.post("/control", json={"dwon": True})).status_code == 400


async def test_a_stopped_upstream_comes_back_on_its_port_with_its_state(p1: Loopback, http: httpx.AsyncClient) -> None:
    first = (await http.post("/v1/responses", json=turn("alpha"))).json()["id"]
    await p1.stop()
    with pytest.raises(httpx.TransportError):
        await http.post("/v1/responses", json=turn("beta"))
    await p1.start()
    assert (await http.get(f"/v1/responses/{first}")).json()["id"] == first


async def test_only_the_key_that_was_set_is_let_in() -> None:
    async with running_loopback("p1", api_key="right") as p1:
        for key, status in (("right", 200), ("wrong", 401)):
            async with httpx.AsyncClient(base_url=p1.url, trust_env=False, verify=NO_TLS) as client:
                headers = {"authorization": f"Bearer {key}"}
                assert (await client.post("/v1/responses", json=turn("a"), headers=headers)).status_code == status


def test_directives_are_read_wherever_they_stand_and_cut_out() -> None:
    script, rest = read_script('hi! !tool(f, {"a": "(!say(x))"}, call_1) there !pause(5) !tool(g, call_2)!')
    assert script.calls == (
        ScriptedCall(name="f", arguments='{"a": "(!say(x))"}', call_id="call_1"),
        ScriptedCall(name="g", arguments="{}", call_id="call_2"),
    )
    assert script.pause_ms == 5
    assert rest == "hi! there !"


@pytest.mark.parametrize("text", ["!say(", "!tool(f, {)", "!tool()", "!tool(f, {} x)", "!long(x)", "!status(200)"])
def test_a_malformed_directive_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        read_script(text)
    assert refused.value.code == "invalid_directive"


def test_only_the_last_text_is_the_script() -> None:
    heard = Heard.nothing()
    heard.user("alpha !tool(f)")
    heard.tool("call_1", "42")
    [message] = answer("p1", heard, lambda: "call_2").parts
    assert getattr(message, "text", None) == "p1 heard: alpha | tool(call_1)=42"


def test_an_instance_of_a_schema_takes_the_first_choice() -> None:
    assert instance({"anyOf": [{"enum": ["b", "a"]}, {"type": "null"}]}, "x") == "b"
    assert instance({"type": ["boolean", "null"]}, "x") is True


def test_a_name_that_would_spoil_ids_is_refused() -> None:
    with pytest.raises(InvalidInput):
        Loopback("p_1")


def test_a_process_says_where_it_listens_and_ends_in_order() -> None:
    code = "import typer; from cli.loopback.command import loopback; typer.run(loopback)"
    command = [sys.executable, "-c", code, "--port", "0", "--name", "p9", "--format", "chat_completions"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            assert line.startswith("turnledger loopback p9 on http://127.0.0.1:"), child.communicate()
            url = line.split()[-1]
            assert httpx.post(f"{url}/v1/responses", json=turn("a"), trust_env=False, verify=NO_TLS).status_code == 404
            answered = httpx.post(f"{url}/v1/chat/completions", json=chat("a"), trust_env=False, verify=NO_TLS).json()
            assert answered["choices"][0]["message"]["content"] == "p9 heard: a"
            child.send_signal(signal.SIGTERM)
            assert child.wait() == 0, child.communicate()
        finally:
            child.kill()
