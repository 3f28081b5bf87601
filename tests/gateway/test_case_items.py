"""Cases A20 to A23: what a turn is given, what is stored of it, and what of that goes to which target."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI

from cli.loopback.server import Loopback
from tests.gateway.asking import ask, send_raw
from tests.gateway.world import World

FORMS: dict[str, Any] = {
    "string": "hi",
    "short": [{"role": "user", "content": "hi"}],
    "full": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
}
PORTABLE = pytest.mark.parametrize("model", ["auto", "chat"])
"""In a conversation that was made here, both are."""
ENCRYPTED = {"include": ["reasoning.encrypted_content"]}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}


def posted(*loopbacks: Loopback) -> list[Any]:
    """Return the bodies that were posted to these upstreams."""
    return [request.body for loopback in loopbacks for request in loopback.recorded() if request.method == "POST"]


def heard(body: Any) -> Any:
    """Return what a request gives the model to read."""
    return body["messages"] if "messages" in body else body["input"]


async def without_ids(client: AsyncOpenAI, path: str) -> list[dict[str, Any]]:
    """Return the items of a list without their IDs."""
    _, body = await send_raw(client, "GET", path)
    return [{name: value for name, value in item.items() if name != "id"} for item in msgspec.json.decode(body)["data"]]


# A20


@PORTABLE
async def test_every_form_of_input_is_stored_and_replayed_the_same(world: World, streamed: bool, model: str) -> None:
    stored, replayed = [], []
    for form, value in FORMS.items():
        conversation_id = f"conv_{form}"
        first = await ask(world.client(1), streamed=streamed, model=model, input=value, conversation=conversation_id)
        stored.append(
            await without_ids(world.client(2), f"/responses/{first.id}/input_items")
            + await without_ids(world.client(2), f"/conversations/{conversation_id}/items")
        )
        world.forget()
        # The turn after it may come in any form too.
        for again in FORMS.values():
            following = await ask(
                world.client(2),
                streamed=streamed,
                model=model,
                input=again,
                conversation=conversation_id,
                store=False,
            )
            assert following.text.endswith("heard: hi | hi")
        replayed += [
            # What the target itself has said keeps its own ID.
            re.sub(r'"msg_p1_\d+"', '"msg"', request.text)
            for loopback in (world.p1, world.c)
            for request in loopback.recorded()
        ]
    assert stored[0] == stored[1] == stored[2]
    assert stored[0][0]["content"] == [{"type": "input_text", "text": "hi"}]
    assert len(replayed) == 9
    assert len(set(replayed)) == 1


# A21

SETTINGS: dict[str, Any] = {
    "instructions": "shout",
    "tools": [TOOL],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "temperature": 0.5,
    "top_p": 0.5,
    "max_output_tokens": 500,
    "text": {"format": {"type": "json_object"}},
    "metadata": {"turn": "first"},
    "user": "somebody",
    "prompt_cache_key": "first",
}
NOT_SET: dict[str, Any] = {
    "instructions": None,
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "top_p": 1.0,
    "metadata": {},
}


@pytest.mark.parametrize(
    ("model", "by_conversation"),
    [("auto", False), ("auto", True), ("chat", False), ("chat", True)],
    ids=["native", "conversation", "chat", "chat-conversation"],
)
async def test_a_turn_carries_its_own_settings_only(
    world: World, streamed: bool, model: str, by_conversation: bool
) -> None:
    first = await ask(
        world.client(1),
        streamed=streamed,
        model=model,
        input="alpha",
        **({"conversation": "conv_a"} if by_conversation else {}),
        **SETTINGS,
    )
    selector = {"conversation": "conv_a"} if by_conversation else {"previous_response_id": first.id}
    world.forget()
    second = await ask(world.client(2), streamed=streamed, model=model, input="beta", **selector)
    assert second.text.endswith("heard: alpha | beta")
    assert second.response is not None
    answered = second.response.to_dict()
    assert {name: answered[name] for name in NOT_SET} == NOT_SET
    assert answered["text"] == {"format": {"type": "text"}}
    (sent,) = posted(world.p1, world.c)
    assert not {*SETTINGS, "response_format", "max_completion_tokens", "max_tokens"} & sent.keys()
    assert "shout" not in msgspec.json.encode(sent).decode()
    # Its own are all there, and only they.
    world.forget()
    own = {"instructions": "whisper", "temperature": 0.25}
    await ask(world.client(1), streamed=streamed, model=model, input="gamma", **selector, **own)
    (sent,) = posted(world.p1, world.c)
    assert sent["temperature"] == 0.25
    said = msgspec.json.encode(sent).decode()
    assert said.count("whisper") == 1
    assert "shout" not in said
    # What the first turn was asked is still what it says of itself.
    kept = (await world.client(2).responses.retrieve(first.id)).to_dict()
    assert (kept["instructions"], kept["metadata"], kept["temperature"]) == ("shout", {"turn": "first"}, 0.5)


# A22


@pytest.mark.parametrize("with_tool", [False, True], ids=["message", "call"])
@pytest.mark.parametrize("summary", [None, "auto"], ids=["empty-summary", "summary"])
async def test_reasoning_goes_back_to_its_owner_byte_for_byte(
    world: World, streamed: bool, with_tool: bool, summary: str | None
) -> None:
    said = "!reasoning(deep) !tool(f, {}, call_7) alpha" if with_tool else "!reasoning(deep) alpha"
    following = [{"type": "function_call_output", "call_id": "call_7", "output": "42"}] if with_tool else "beta"
    settings = {**ENCRYPTED, "reasoning": {"summary": summary}, "tools": [TOOL], "conversation": "conv_a"}
    first = await ask(world.client(1), streamed=streamed, model="auto", input=said, **settings)
    assert first.response is not None
    output = first.response.to_dict()["output"]
    assert isinstance(output, list)
    assert [item["type"] for item in output] == ["reasoning", "function_call" if with_tool else "message"]
    assert (output[0]["summary"] == []) == (summary is None)
    assert output[0]["encrypted_content"].startswith("p1:")
    world.forget()
    for client in world.client(2), world.client(1):
        answered = await ask(client, streamed=streamed, model="auto", input=following, **settings, store=False)
        assert answered.status == 200, answered.error
    (one, other) = [request.raw for request in world.p1.recorded()]
    assert one == other
    assert output[0] in msgspec.json.decode(one)["input"]
    for item in output:
        assert item_bytes(first.raw, item["id"]) in one


def item_bytes(raw: bytes, item_id: str) -> bytes:
    """Return an item as it is spelt in an answer."""
    text = raw.decode()
    # Of a stream the last event, which has the whole response.
    start = text.rindex(f'{{"id":"{item_id}"')
    depth = 0
    for end in range(start, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if not depth:
            return text[start : end + 1].encode()
    raise AssertionError("the item has no end")


@pytest.mark.parametrize("with_tool", [False, True], ids=["message", "call"])
async def test_reasoning_that_its_owner_has_not_encrypted_does_not_stop_the_conversation(
    world: World, streamed: bool, with_tool: bool
) -> None:
    said = "!reasoning(deep) !tool(f, {}, call_7) alpha" if with_tool else "!reasoning(deep) alpha"
    following = [{"type": "function_call_output", "call_id": "call_7", "output": "42"}] if with_tool else "beta"
    await ask(world.client(1), streamed=streamed, model="auto", input=said, conversation="conv_a")
    answered = await ask(world.client(2), streamed=streamed, model="auto", input=following, conversation="conv_a")
    assert answered.status == 200, answered.error
    assert answered.text == ("p1 heard: alpha | tool(call_7)=42" if with_tool else "p1 heard: alpha | beta")


@pytest.mark.parametrize("with_tool", [False, True], ids=["message", "call"])
@pytest.mark.parametrize("elsewhere", ["chat", "only-p2"])
async def test_reasoning_of_one_target_goes_to_no_other_and_breaks_nothing_there(
    world: World, streamed: bool, elsewhere: str, with_tool: bool
) -> None:
    said = "!reasoning(deep) !between !tool(f, {}, call_6) !tool(f, {}, call_7) alpha"
    said = said if with_tool else "!reasoning(deep) alpha"
    outputs = [{"type": "function_call_output", "call_id": f"call_{n}", "output": str(n)} for n in (7, 6)]
    following = outputs if with_tool else "beta"
    await ask(
        world.client(1), streamed=streamed, model="auto", input=said, conversation="conv_a", tools=[TOOL], **ENCRYPTED
    )
    answered = await ask(
        world.client(2), streamed=streamed, model=elsewhere, input=following, conversation="conv_a", tools=[TOOL]
    )
    assert answered.status == 200, answered.error
    there = world.c if elsewhere == "chat" else world.p2
    (request,) = there.recorded()
    for secret in ("p1:", "encrypted", "reasoning", "deep)"):
        assert secret not in request.text.replace("!reasoning(deep)", "")
    if with_tool and elsewhere == "chat":
        assert [message["role"] for message in heard(request.body)] == ["user", "assistant", "tool", "tool"]
        assert [call["id"] for call in heard(request.body)[1]["tool_calls"]] == ["call_6", "call_7"]
    # It is not lost: back at its owner the turn is whole again.
    world.forget()
    back = await ask(
        world.client(1), streamed=streamed, model="only-p1", input="gamma", conversation="conv_a", tools=[TOOL]
    )
    assert back.status == 200, back.error
    (request,) = world.p1.recorded()
    assert request.text.count('"encrypted_content":"p1:') == (2 if with_tool else 1)


@pytest.mark.parametrize("model", ["only-p2", "chat"])
async def test_encrypted_content_that_a_client_brings_goes_to_its_owner_only(
    world: World, streamed: bool, model: str
) -> None:
    first = await ask(world.client(1), streamed=streamed, model="auto", input="!reasoning(deep) alpha", **ENCRYPTED)
    assert first.response is not None
    output: Any = first.response.to_dict()["output"]
    history = [{"role": "user", "content": "alpha"}, *output, {"role": "user", "content": "beta"}]
    for store in (True, False):
        world.forget()
        answered = await ask(world.client(2), streamed=streamed, model=model, input=history, store=store)
        assert answered.text.endswith("heard: alpha | beta"), answered.error
        (request,) = [*world.p2.recorded(), *world.c.recorded()]
        assert "p1:" not in request.text
        world.forget()
        owners = await ask(world.client(2), streamed=streamed, model="only-p1", input=history, store=store)
        assert owners.text == "p1 heard: alpha | beta", owners.error
        assert output[0] in posted(world.p1)[0]["input"]


@pytest.mark.parametrize("is_known", [True, False], ids=["stored", "unstored"])
async def test_encrypted_content_stays_out_of_every_later_turn_elsewhere(
    world: World, streamed: bool, is_known: bool
) -> None:
    first = await ask(
        world.client(1), streamed=streamed, model="auto", input="!reasoning(deep) alpha", store=is_known, **ENCRYPTED
    )
    assert first.response is not None
    output: Any = first.response.to_dict()["output"]
    history = [{"role": "user", "content": "alpha"}, *output, {"role": "user", "content": "beta"}]
    world.forget()
    brought = await ask(world.client(1), streamed=streamed, model="only-p2", input=history, conversation="conv_a")
    assert brought.status == 200, brought.error
    # It is an item of a turn at this target by now, but not one that this target has made.
    later = await ask(world.client(2), streamed=streamed, model="only-p2", input="gamma", conversation="conv_a")
    assert later.text == "p2 heard: alpha | beta | gamma", later.error
    again = await ask(world.client(2), streamed=streamed, model="only-p2", input=history, conversation="conv_b")
    assert again.status == 200, again.error
    assert len(world.p2.recorded()) == 3
    for request in world.p2.recorded():
        assert "p1:" not in request.text


async def test_encrypted_content_does_not_move_with_its_turn_when_its_target_is_away(
    world: World, streamed: bool
) -> None:
    await ask(
        world.client(1), streamed=streamed, model="auto", input="!reasoning(deep) alpha", conversation="c1", **ENCRYPTED
    )
    await world.p1.stop()
    answered = await ask(world.client(1), streamed=streamed, model="auto", input="beta", conversation="c1")
    assert answered.text == "p2 heard: alpha | beta", answered.error
    assert "p1:" not in world.p2.recorded()[0].text
    await world.p1.start()


# A23


@PORTABLE
async def test_reference_to_an_item_stands_for_it(world: World, streamed: bool, model: str) -> None:
    first = await ask(world.client(1), streamed=streamed, model=model, input="alpha", conversation="conv_a")
    _, body = await send_raw(world.client(2), "GET", f"/responses/{first.id}/input_items")
    (item,) = msgspec.json.decode(body)["data"]
    for reference in ({"type": "item_reference", "id": item["id"]}, {"id": item["id"]}):
        world.forget()
        answered = await ask(
            world.client(2), streamed=streamed, model="chat", input=[reference, {"role": "user", "content": "beta"}]
        )
        assert answered.text == "c heard: alpha | beta", answered.error
        assert item["id"] not in world.c.recorded()[0].text


async def test_reference_to_an_item_of_a_target_goes_to_that_target(world: World, streamed: bool) -> None:
    first = await ask(world.client(1), streamed=streamed, model="auto", input="alpha")
    assert first.response is not None
    reference = {"type": "item_reference", "id": first.response.output[0].id}
    request = [reference, {"role": "user", "content": "beta"}]
    # The policy of this replica would choose the other one.
    answered = await ask(world.client(2), streamed=streamed, model="auto", input=request)
    assert answered.text == "p1 heard: beta", answered.error
    assert posted(world.p1)[-1]["input"] == request
    # Where only others could be asked it is refused, and never left out.
    world.forget()
    for fields in ({"model": "chat"}, {"model": "only-p2"}, {"model": "auto", "conversation": "conv_new"}):
        refused = await ask(world.client(2), streamed=streamed, input=request, **fields)
        if fields.get("conversation") is None:
            assert refused.status == 400, fields
            assert refused.error["param"] in ("model", "input")
    assert world.called()["p2"] == world.called()["c"] == 0


@pytest.mark.parametrize("model", ["auto", "chat"])
async def test_reference_to_nothing_is_refused_by_name(world: World, streamed: bool, model: str) -> None:
    refused = await ask(
        world.client(1), streamed=streamed, model=model, input=[{"type": "item_reference", "id": "msg_nowhere"}]
    )
    assert (refused.status, refused.error["param"], refused.reason) == (404, "input", "unknown")
    assert "msg_nowhere" in refused.error["message"]
    assert world.called() == {"p1": 0, "p2": 0, "c": 0}


@pytest.mark.parametrize("model", ["auto", "chat"])
async def test_reference_to_an_item_of_another_tenant_is_refused_as_a_random_one(
    world: World, streamed: bool, model: str
) -> None:
    alice, bob = world.client(1), world.client(2, world.bob)
    first = await ask(alice, streamed=streamed, model=model, input="alpha")
    assert first.response is not None
    mine = str(first.response.output[0].id)
    world.forget()
    answers = []
    for item_id in (mine, "msg_random"):
        refused = await ask(bob, streamed=streamed, model=model, input=[{"id": item_id, "type": "item_reference"}])
        assert refused.status == 404
        answers.append(refused.raw.replace(item_id.encode(), b"ID"))
    assert answers[0] == answers[1]
    assert world.called() == {"p1": 0, "p2": 0, "c": 0}


async def test_reference_to_a_deleted_item_says_that_it_is_deleted(world: World, streamed: bool) -> None:
    first = await ask(world.client(1), streamed=streamed, model="chat", input="alpha", conversation="conv_a")
    assert first.response is not None
    item_id = str(first.response.output[0].id)
    await world.client(2).conversations.items.delete(item_id, conversation_id="conv_a")
    refused = await ask(
        world.client(1), streamed=streamed, model="chat", input=[{"id": item_id, "type": "item_reference"}]
    )
    assert (refused.status, refused.error["param"], refused.reason) == (404, "input", "deleted")
    assert item_id in refused.error["message"]
