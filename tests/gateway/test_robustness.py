"""What a hostile client, a hostile target or a bad moment must not do: hang, leak a lock, end twice, or be a defect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.gateway.request import REFERENCES_MAX
from api.gateway.sse import FrameCutter
from ledger.ledger import Ledger
from tests.api.faults import LOST, REFUSED
from tests.gateway.asking import TERMINALS, ask, checked_stream, eventually, send_raw
from tests.gateway.serving import listening
from tests.gateway.test_case_concurrency import one_at_a_time
from tests.gateway.test_case_durability import FailingLog, ledger, log, replica, stage
from tests.gateway.world import Config, Replica, World, embedded_only, gateway_over

__all__ = ["ledger", "log", "replica", "stage"]

MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}],
}


def response(**fields: Any) -> dict[str, Any]:
    """Return a target's response object."""
    return {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": [MESSAGE], **fields}


def events(*given: Any) -> bytes:
    """Return frames; bytes are sent as they are."""
    frames = [
        each
        if isinstance(each, bytes)
        else b"event: %s\ndata: %s\n\n" % (each["type"].encode(), msgspec.json.encode(each))
        for each in given
    ]
    return b"".join(frames)


def created(**fields: Any) -> dict[str, Any]:
    return {
        "type": "response.created",
        "sequence_number": 0,
        "response": response(status="in_progress", output=[], **fields),
    }


def completed(**fields: Any) -> dict[str, Any]:
    return {"type": "response.completed", "sequence_number": 1, "response": response(**fields)}


@dataclass(slots=True)
class Hostile:
    """A target that answers every request with the same bytes."""

    body: bytes = b""
    media_type: str = "application/json"
    headers: dict[bytes, bytes] = field(default_factory=dict)
    calls: int = 0
    hangs: bool = False

    async def answer(self, request: Request) -> Response:
        await request.body()
        self.calls += 1
        if self.hangs:
            await asyncio.sleep(60)
        answer = Response(self.body, media_type=self.media_type)
        answer.raw_headers.extend(self.headers.items())
        return answer

    def says(self, answer: Any, *, streamed: bool) -> None:
        """Answer so: a body, or with ``streamed`` a stream of created and what is given."""
        self.media_type = "text/event-stream" if streamed else "application/json"
        self.body = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)


@asynccontextmanager
async def hostile_target(
    world: World, *changes: Callable[[Config], None]
) -> AsyncIterator[tuple[Hostile, AsyncOpenAI]]:
    """Run a replica whose model ``h`` is served by a hostile target; portable turns name a conversation."""
    hostile = Hostile()
    app = Starlette(routes=[Route("/v1/{path:path}", hostile.answer, methods=["GET", "POST", "DELETE"])])

    async with listening(app) as url:

        def add(config: Config) -> None:
            config["targets"].append({"name": "h", "base_url": f"{url}/v1", "format": "responses"})
            config["models"].append({"name": "h", "targets": [{"target": "h", "model": "m"}]})

        async with world.another(add, *changes) as replica:
            yield hostile, replica.client(world.alice)


async def stream(client: AsyncOpenAI, **request: Any) -> tuple[int, list[dict[str, Any]]]:
    """Return the status and the events of a stream, however strange they are."""
    async with asyncio.timeout(10):
        status, raw = await send_raw(client, "POST", "/responses", {"model": "h", "stream": True, **request})
    if status != 200:
        return status, []
    return status, [
        json.loads(frame.data) for frame in FrameCutter().feed(raw) if frame.data and frame.data[:1] == b"{"
    ]


def terminals(seen: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in seen if event["type"] in TERMINALS]


# Clients


STRANGE_INPUTS = {
    "id that is a list": {"type": "reasoning", "summary": [], "encrypted_content": "x", "id": []},
    "call_id that is a list": {"type": "function_call_output", "call_id": [], "output": "x"},
    "call_id that is an object": {"type": "function_call", "call_id": {}, "name": "f", "arguments": "{}"},
}


@embedded_only
@pytest.mark.parametrize("item", STRANGE_INPUTS.values(), ids=STRANGE_INPUTS.keys())
async def test_id_that_is_no_string_is_no_defect(world: World, streamed: bool, item: dict[str, Any]) -> None:
    for model in ("auto", "chat"):
        status, _ = await send_raw(
            world.client(1), "POST", "/responses", {"model": model, "input": [item], "stream": streamed}
        )
        assert status < 500


@embedded_only
@pytest.mark.parametrize("value", [10**40, json.loads("[" * 300 + "]" * 300)], ids=["huge", "deep"])
async def test_what_cannot_be_stored_is_refused_before_the_model_runs(world: World, streamed: bool, value: Any) -> None:
    for body in (
        {"input": [{"role": "user", "content": "alpha", "extra": value}]},
        {"input": "alpha", "tools": [{"type": "function", "name": "f", "parameters": {"x": value}}]},
    ):
        status, raw = await send_raw(
            world.client(1), "POST", "/responses", {"model": "chat", "stream": streamed, **body}
        )
        assert (status, json.loads(raw)["error"]["param"]) == (400, "input")
    assert world.called()["c"] == 0


@embedded_only
async def test_more_references_than_a_turn_can_have_are_refused(world: World) -> None:
    named = [{"type": "item_reference", "id": f"msg_{number}"} for number in range(REFERENCES_MAX + 1)]
    assert (await ask(world.client(1), streamed=False, model="chat", input=named)).status == 413
    assert (await ask(world.client(1), streamed=False, model="chat", input=named[1:])).status == 404


# Targets


BROKEN = {
    "item that is a number": response(output=[5]),
    "item without a type": response(output=[{}]),
    "ID without a hash": response(output=[{**MESSAGE, "id": []}]),
    "part that is a number": response(output=[{**MESSAGE, "content": [5]}]),
    "call without its ID": response(output=[{"type": "function_call", "name": "f", "arguments": "{}"}]),
    "usage that is a number": response(usage=5),
    "error that is a text": response(error="x", status="failed"),
    "unknown status": response(status="ready"),
}


@embedded_only
@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN.keys())
async def test_malformed_answer_of_a_portable_turn_fails_and_holds_nothing(
    world: World, streamed: bool, answer: dict[str, Any]
) -> None:
    async with hostile_target(world, one_at_a_time) as (hostile, client):
        asked = {"input": "alpha", "conversation": "conv_a"}
        if streamed:
            hostile.says(events(created(), {"type": "response.completed", "response": answer}), streamed=True)
            status, seen = await stream(client, **asked)
            assert (status, terminals(seen)) == (200, ["response.failed"])
        else:
            hostile.says(answer, streamed=False)
            told = await ask(client, streamed=False, model="h", **asked)
            assert (told.status, told.code) == (502, "upstream_failed")
        # Nothing of it is in the way of the next turn.
        assert (await ask(client, streamed=False, model="chat", **asked)).text == "c heard: alpha"


@embedded_only
@pytest.mark.parametrize(
    "event",
    [{"delta": "x"}, {"type": []}, {"type": "response.x\ndata: {}"},
     {"type": "response.output_item.done", "output_index": 0}],
    ids=["no type", "type that is a list", "type with a line break", "done without its item"],
)  # fmt: skip
async def test_malformed_event_of_a_portable_turn_ends_in_one_failure(world: World, event: dict[str, Any]) -> None:
    async with hostile_target(world) as (hostile, client):
        broken = b"data: %s\n\n" % msgspec.json.encode(event)
        hostile.says(events(created(), broken, completed()), streamed=True)
        status, seen = await stream(client, input="alpha", conversation="conv_a")
        assert (status, terminals(seen)) == (200, ["response.failed"])
        assert seen[-1]["type"] == "response.failed"


@embedded_only
@pytest.mark.parametrize("rest", [b"data: null\n\n", b"data: {\n\n", events(completed(), created())], ids=repr)
async def test_nothing_follows_the_terminal_of_a_native_stream(world: World, rest: bytes) -> None:
    async with hostile_target(world) as (hostile, client):
        for terminal in (completed(), {"type": "error", "code": "x", "message": "x", "param": None}):
            hostile.says(events(created(), terminal) + rest + b"data: [DONE]\n\n", streamed=True)
            status, seen = await stream(client, input="alpha")
            assert (status, terminals(seen)) == (200, [terminal["type"]])


@embedded_only
@pytest.mark.parametrize("again", [b"no JSON", b"[]", response(output=[5]), response(status="queued")], ids=repr)
async def test_retry_whose_owner_answers_nonsense_is_an_error_of_the_api(
    world: World, streamed: bool, again: Any
) -> None:
    async with hostile_target(world) as (hostile, client):
        request = {"model": "h", "input": "alpha"}
        key = {"Idempotency-Key": "key-1"}
        hostile.says(response(), streamed=False)
        assert (await send_raw(client, "POST", "/responses", request, **key))[0] == 200
        hostile.says(again, streamed=False)
        status, raw = await send_raw(client, "POST", "/responses", {**request, "stream": streamed}, **key)
        assert (status, json.loads(raw)["error"]["code"]) == (502, "upstream_failed")


@embedded_only
async def test_header_that_no_client_could_read_is_left_out(world: World, streamed: bool) -> None:
    async with hostile_target(world) as (hostile, client):
        hostile.headers = {b"x-request-id": b"\xe2\x98\x83\xff"}
        hostile.says(events(created(), completed()) if streamed else response(), streamed=streamed)
        status, _ = await send_raw(client, "POST", "/responses", {"model": "h", "input": "alpha", "stream": streamed})
        assert status == 200


@embedded_only
@pytest.mark.parametrize("fields", [{"store": False}, {"id": ""}], ids=["not stored", "without ID"])
async def test_lock_does_not_outlive_a_turn_of_which_nothing_can_be_kept(
    world: World, streamed: bool, fields: dict[str, Any]
) -> None:
    def native(config: Config) -> None:
        config["models"][-1]["forwards_unknown"] = True
        config["keys"] = config["keys"][:1]
        one_at_a_time(config)

    async with hostile_target(world, native) as (hostile, client):
        hostile.says(events(completed(**fields)) if streamed else response(**fields), streamed=streamed)
        request = {"model": "h", "input": "alpha", "conversation": "conv_a", "stream": streamed}

        async def was_called_again() -> bool:
            await send_raw(client, "POST", "/responses", request)
            return hostile.calls > 1

        await eventually(was_called_again)


# Bad moments


@embedded_only
async def test_native_background_response_that_is_streamed_ends_as_it_did(world: World) -> None:
    client = world.client(1)
    for number, headers in enumerate(({}, {"Idempotency-Key": "key-1"})):
        for pause in ("", "!pause(400)"):
            answer = await ask(
                client, streamed=True, model="auto", background=True, input=f"{pause}alpha {number}",
                extra_headers={name: f"{key}{pause}" for name, key in headers.items()},
            )  # fmt: skip
            assert answer.types[-1] == "response.completed"
            followed = await ask(
                world.client(2), streamed=True, model="auto", input="b", previous_response_id=answer.id
            )
            assert followed.text == f"p1 heard: alpha {number} | b"


async def test_background_stream_that_cannot_be_announced_ends_in_a_failure(
    stage: World, log: FailingLog, replica: Replica
) -> None:
    log.fail(REFUSED)
    answer = await ask(replica.client(stage.alice), streamed=True, model="auto", background=True, input="alpha")
    assert answer.types[-1] in ("response.failed", "error")
    log.heal()


@embedded_only
async def test_stream_that_waits_for_a_response_ends_in_an_error_when_that_is_deleted(world: World) -> None:
    client = world.client(1)
    started = await client.responses.create(model="chat", input="!hang alpha", background=True)
    waiting = asyncio.create_task(send_raw(client, "GET", f"/responses/{started.id}?stream=true"))
    await asyncio.sleep(0.2)
    await world.client(2).responses.delete(started.id)
    status, raw = await waiting
    told = checked_stream(raw)
    assert (status, told.types) == (200, ["error"])


@embedded_only
async def test_stream_whose_turn_was_ended_while_it_connected_is_refused(world: World) -> None:
    client, gateway = world.client(1), world.replicas[0].gateway
    assert gateway is not None
    running = asyncio.create_task(ask(client, streamed=True, model="chat", input="!hang alpha"))
    await eventually(world.some_call)
    for turn in gateway.turns:
        turn.cancel()
    async with asyncio.timeout(5):
        answer = await running
    assert (answer.status, answer.code) == (409, "turn_ended")


async def test_lock_does_not_outlive_a_client_that_left_during_a_commit_that_fails(
    stage: World, ledger: Ledger, log: FailingLog
) -> None:
    async with gateway_over(ledger, stage.config(one_at_a_time)) as replica:
        client = replica.client(stage.alice)
        for model in ("auto", "chat"):
            named = {"model": model, "conversation": (await client.conversations.create()).id}
            running = asyncio.create_task(ask(client, streamed=False, input="!delay(200) alpha", **named))
            await eventually(stage.some_call)
            stage.forget()
            log.fail(LOST)

            async def is_committing() -> bool:
                return log.first is REFUSED

            await eventually(is_committing)
            running.cancel()
            await asyncio.sleep(0.05)
            log.heal()

            async def unlocked(named: dict[str, Any] = named) -> bool:
                answer = await ask(client, streamed=False, input="beta", **named)
                return answer.status == 200

            await eventually(unlocked)


async def test_long_frame_is_cut_in_time_that_grows_with_its_length() -> None:
    loop = asyncio.get_running_loop()
    chunk, cutter = b"x" * 65_536, FrameCutter()
    began_s = loop.time()
    for _ in range(256):
        assert list(cutter.feed(chunk)) == []
    (frame,) = cutter.feed(b"\n\n")
    assert len(frame.raw) == 256 * len(chunk) + 2
    # With every chunk looked through again it took ten times as long.
    assert loop.time() - began_s < 2
