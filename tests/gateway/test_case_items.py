"""Cases A20 to A23: what a turn is given, what is stored of it, and what of that goes to which target."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI

from cli.loopback.server import Loopback
from tests.gateway.asking import Asked, ask, send_raw, tool_output, user
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
async def test_reasoning_goes_back_to_its_owner_byte_for_byte(world: World, streamed: bool, with_tool: bool) -> None:
    said = "!reasoning(deep) !tool(f, {}, call_7) alpha" if with_tool else "!reasoning(deep) alpha"
    following: Any = [tool_output("call_7", "42")] if with_tool else "beta"
    for summary in (None, "auto"):
        settings = {**ENCRYPTED, "reasoning": {"summary": summary}, "tools": [TOOL], "conversation": f"conv_{summary}"}
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


async def test_reasoning_that_its_owner_has_not_encrypted_does_not_stop_the_conversation(
    world: World, streamed: bool
) -> None:
    given: list[Any] = ["!reasoning(deep) !tool(f, {}, call_7) alpha", [tool_output("call_7", "!reasoning(deep) 42")]]
    for number, value in enumerate([*given, "beta"]):
        client = world.client(number % 2 + 1)
        answered = await ask(client, streamed=streamed, model="auto", input=value, conversation="conv_a")
        assert answered.status == 200, answered.error
        if value == "beta":
            assert answered.text == "p1 heard: alpha | tool(call_7)=42 | beta"
    assert "rs_p1" not in world.p1.recorded()[-1].text


@pytest.mark.parametrize("with_tool", [False, True], ids=["message", "call"])
async def test_reasoning_of_one_target_goes_to_no_other_and_breaks_nothing_there(
    world: World, streamed: bool, with_tool: bool
) -> None:
    said = "!reasoning(deep) !between !tool(f, {}, call_6) !tool(f, {}, call_7) alpha"
    said = said if with_tool else "!reasoning(deep) alpha"
    following: Any = [tool_output("call_7", "7"), tool_output("call_6", "6")] if with_tool else "beta"
    await ask(
        world.client(1), streamed=streamed, model="auto", input=said, conversation="conv_a", tools=[TOOL], **ENCRYPTED
    )
    for elsewhere, there in (("chat", world.c), ("only-p2", world.p2)):
        answered = await ask(
            world.client(2),
            streamed=streamed,
            model=elsewhere,
            input=following,
            conversation="conv_a",
            tools=[TOOL],
            store=False,
        )
        assert answered.status == 200, answered.error
        (request,) = there.recorded()
        for secret in ("p1:", "encrypted", "reasoning"):
            assert secret not in request.text.replace("!reasoning(deep)", "")
        if with_tool and elsewhere == "chat":
            assert [message["role"] for message in heard(request.body)] == ["user", "assistant", "tool", "tool"]
            assert [call["id"] for call in heard(request.body)[1]["tool_calls"]] == ["call_6", "call_7"]
    # It is not lost: back at its owner the turn is whole again.
    world.forget()
    back = await ask(
        world.client(1), streamed=streamed, model="only-p1", input=following, conversation="conv_a", tools=[TOOL]
    )
    assert back.status == 200, back.error
    (request,) = world.p1.recorded()
    assert request.text.count('"encrypted_content":"p1:') == (2 if with_tool else 1)


async def test_encrypted_content_that_a_client_brings_goes_to_its_owner_only(world: World, streamed: bool) -> None:
    first = await ask(world.client(1), streamed=streamed, model="auto", input="!reasoning(deep) alpha", **ENCRYPTED)
    history = asked_again(first)
    for model in ("only-p2", "chat"):
        world.forget()
        answered = await ask(world.client(2), streamed=streamed, model=model, input=history)
        assert answered.text.endswith("heard: alpha | beta"), answered.error
        (request,) = [*world.p2.recorded(), *world.c.recorded()]
        assert "p1:" not in request.text
    for store in (True, False):
        world.forget()
        owners = await ask(world.client(2), streamed=streamed, model="only-p1", input=history, store=store)
        assert owners.text == "p1 heard: alpha | beta", owners.error
        assert posted(world.p1)[0]["input"] == history


def asked_again(answered: Asked) -> list[Any]:
    """Return the input of a client that keeps the history itself."""
    assert answered.response is not None, answered.error
    output: Any = answered.response.to_dict()["output"]
    return [user("alpha"), *output, user("beta")]


async def test_encrypted_content_stays_out_of_every_later_turn_elsewhere(world: World, streamed: bool) -> None:
    for store in (True, False):
        first = await ask(
            world.client(1), streamed=streamed, model="auto", input="!reasoning(deep) alpha", store=store, **ENCRYPTED
        )
        history = asked_again(first)
        one, other = {"conversation": f"conv_one_{store}"}, {"conversation": f"conv_other_{store}"}
        world.forget()
        brought = await ask(world.client(1), streamed=streamed, model="only-p2", input=history, **one)
        assert brought.status == 200, brought.error
        # It is an item of a turn at this target by now, but not one that this target has made.
        later = await ask(world.client(2), streamed=streamed, model="only-p2", input="gamma", **one)
        assert later.text == "p2 heard: alpha | beta | gamma", later.error
        again = await ask(world.client(2), streamed=streamed, model="only-p2", input=history, **other)
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
    # A replica of its own, where the target may rest afterwards.
    async with world.another() as another:
        await world.p1.stop()
        client = another.client(world.alice)
        answered = await ask(client, streamed=streamed, model="auto", input="beta", conversation="c1")
        assert answered.text == "p2 heard: alpha | beta", answered.error
        assert "p1:" not in world.p2.recorded()[0].text


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
    for model in ("chat", "only-p2"):
        refused = await ask(world.client(2), streamed=streamed, model=model, input=request)
        assert (refused.status, refused.code) == (400, "model_not_at_owner")
    assert world.called() == {"p1": 0, "p2": 0, "c": 0}


async def test_reference_to_nothing_or_to_an_item_of_another_tenant_is_refused_by_name(
    world: World, streamed: bool
) -> None:
    alice, bob = world.client(1), world.client(2, world.bob)
    for model in ("auto", "chat"):
        first = await ask(alice, streamed=streamed, model=model, input="alpha")
        assert first.response is not None
        world.forget()
        answers = []
        for item_id in (str(first.response.output[0].id), "msg_random"):
            reference = {"type": "item_reference", "id": item_id}
            refused = await ask(bob, streamed=streamed, model=model, input=[reference, user("beta")])
            assert (refused.status, refused.error["param"], refused.reason) == (404, "input", "unknown")
            assert item_id in refused.error["message"]
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
