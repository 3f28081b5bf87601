"""Cases A3, A7 to A12: the history that is replayed to a target without state is whole, in order, and never shorter."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from openai import NotFoundError

from ledger.answer import Found
from ledger.turn import Scope, Selector, SelectorKind
from tests.gateway.asking import Asked, ask, refused, tool_output, user
from tests.gateway.world import World

TOOL_CALLS = "look !reasoning(think) !between !tool(f, {}, call_a) !tool(f, {}, call_b) !tool(g, {}, call_c)"
OUTPUTS_LATE_FIRST = [tool_output("call_c", "3"), tool_output("call_a", "1"), tool_output("call_b", "2")]


def messages(world: World) -> list[dict[str, Any]]:
    """Return the messages of C's last call."""
    told: list[dict[str, Any]] = world.c.recorded()[-1].body["messages"]
    return told


def said(text: str) -> dict[str, Any]:
    """Return C's answer as a message."""
    return {"role": "assistant", "content": f"c heard: {text}"}


def called(*calls: tuple[str, str]) -> dict[str, Any]:
    """Return an assistant's calls as a message; each has a function's name and an ID."""
    functions = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}} for name, call_id in calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": functions}


def answered(call_id: str, output: str) -> dict[str, Any]:
    """Return a tool's output as a message."""
    return {"role": "tool", "tool_call_id": call_id, "content": output}


def by_response(previous: Asked) -> dict[str, Any]:
    """Continue a response."""
    return {"previous_response_id": previous.id}


# A3, a conversation across formats


@pytest.mark.parametrize("as_object", [False, True], ids=["id", "object"])
async def test_second_turn_of_a_conversation_carries_the_first(world: World, streamed: bool, as_object: bool) -> None:
    named: dict[str, Any] = {"model": "chat", "conversation": {"id": "conv_a"} if as_object else "conv_a"}
    for replica, text in ((1, "alpha"), (2, "beta"), (1, "gamma")):
        answer = await ask(world.client(replica), streamed=streamed, input=text, **named)
        assert answer.response is not None
        assert answer.response.conversation is not None
        assert answer.response.conversation.id == "conv_a"
        if text == "beta":
            assert messages(world) == [user("alpha"), said("alpha"), user("beta")]
    assert messages(world) == [user("alpha"), said("alpha"), user("beta"), said("alpha | beta"), user("gamma")]
    items = await world.client(2).conversations.items.list("conv_a", order="asc")
    assert [item.type for item in items.data] == ["message"] * 6


async def test_second_turn_by_response_carries_what_that_of_a_conversation_does(world: World, streamed: bool) -> None:
    first = await ask(world.client(1), streamed=streamed, model="chat", input="alpha")
    second = await ask(world.client(2), streamed=streamed, model="chat", input="beta", **by_response(first))
    assert messages(world) == [user("alpha"), said("alpha"), user("beta")]
    third = await ask(world.client(1), streamed=streamed, model="chat", input="gamma", **by_response(second))
    assert messages(world) == [user("alpha"), said("alpha"), user("beta"), said("alpha | beta"), user("gamma")]
    assert third.response is not None
    assert third.response.previous_response_id == second.id


async def test_conversation_goes_from_one_format_to_the_other_and_back(world: World, streamed: bool) -> None:
    heard: list[str] = []
    ids: list[str] = []
    for number, model in enumerate(["chat", "only-p1", "only-p2", "chat"]):
        heard.append(f"t{number}")
        client = world.client(1 + number % 2)
        answer = await ask(client, streamed=streamed, model=model, input=heard[-1], conversation="conv_a")
        assert answer.text == f"{'c' if model == 'chat' else model[-2:]} heard: {' | '.join(heard)}"
        ids.append(answer.id)
    # The same history by response: what a native target has served of it is the ledger's too.
    followed = await ask(
        world.client(1), streamed=streamed, model="only-p2", input="more", previous_response_id=ids[-1]
    )
    assert followed.text == "p2 heard: t0 | t1 | t2 | t3 | more"
    assert [message["role"] for message in messages(world)] == ["user", "assistant"] * 3 + ["user"]
    # The targets keep nothing of it.
    for request in (*world.p1.recorded(), *world.p2.recorded()):
        assert request.body["store"] is False
        assert not {"conversation", "previous_response_id"} & set(request.body)


# A7, a tool's output by its call's ID only


@pytest.mark.parametrize("by_conversation", [False, True], ids=["response", "conversation"])
async def test_output_of_a_tool_finds_its_call_in_the_history(
    world: World, streamed: bool, by_conversation: bool
) -> None:
    def following(previous: Asked | None) -> dict[str, Any]:
        named: dict[str, Any] = {"conversation": "conv_a"} if by_conversation else {}
        return {"model": "chat"} | (named if by_conversation or previous is None else by_response(previous))

    first = await ask(world.client(1), streamed=streamed, input="look !tool(f, {}, call_7)", **following(None))
    assert first.response is not None
    assert [(item.type, getattr(item, "call_id", "")) for item in first.response.output] == [
        ("function_call", "call_7")
    ]
    second = await ask(world.client(2), streamed=streamed, input=[tool_output("call_7", "42")], **following(first))
    asked = [user("look !tool(f, {}, call_7)"), called(("f", "call_7")), answered("call_7", "42")]
    assert messages(world) == asked
    assert second.text == "c heard: look | tool(call_7)=42"
    await ask(world.client(1), streamed=streamed, input="more", **following(second))
    assert messages(world) == [*asked, said("look | tool(call_7)=42"), user("more")]


async def test_output_of_a_tool_finds_its_call_at_its_owner(world: World, streamed: bool) -> None:
    first = await ask(world.client(1), streamed=streamed, model="auto", input="look !tool(f, {}, call_7)")
    second = await ask(
        world.client(2), streamed=streamed, model="auto", input=[tool_output("call_7", "42")], **by_response(first)
    )
    assert second.text == "p1 heard: look | tool(call_7)=42"
    third = await ask(world.client(1), streamed=streamed, model="auto", input="more", **by_response(second))
    assert third.text == "p1 heard: look | tool(call_7)=42 | more"
    assert world.called() == {"p1": 3, "p2": 0, "c": 0}


# A8, an output without its call


async def test_output_without_its_call_is_refused_here_and_nothing_is_stored(world: World, streamed: bool) -> None:
    first = await ask(world.client(1), streamed=streamed, model="chat", input="look !tool(f, {}, call_7)")
    done = await ask(
        world.client(1), streamed=streamed, model="chat", input=[tool_output("call_7", "42")], **by_response(first)
    )
    world.forget()
    lonely = [tool_output("call_8", "42")]
    unknown: list[tuple[dict[str, Any], str]] = [
        ({"model": model, "input": given, **named}, "tool_call_not_found")
        for model, given, named in (
            ("chat", lonely, {}),
            ("auto", lonely, {}),
            ("chat", lonely, {"conversation": "conv_new"}),
            ("auto", lonely, {"conversation": "conv_new"}),
            ("chat", lonely, by_response(first)),
            ("chat", [tool_output("call_7", "1"), *lonely], by_response(first)),
        )
    ]
    again = {"model": "chat", "input": [tool_output("call_7", "42")], **by_response(done)}
    for refused_request, code in (*unknown, (again, "tool_output_repeated")):
        for replica in (1, 2):
            answer = await ask(world.client(replica), streamed=streamed, **refused_request)
            assert (answer.status, answer.error["type"], answer.error["param"]) == (
                400,
                "invalid_request_error",
                "input",
            ), refused_request
            assert answer.code == code, refused_request
    assert world.called() == {"p1": 0, "p2": 0, "c": 0}
    with pytest.raises(NotFoundError):
        await world.client(2).conversations.retrieve("conv_new")
    await ask(
        world.client(2), streamed=streamed, model="chat", input=[tool_output("call_7", "9")], **by_response(first)
    )
    assert messages(world)[-1] == answered("call_7", "9")


async def test_call_without_its_output_is_refused_here(world: World, streamed: bool) -> None:
    first = await ask(world.client(1), streamed=streamed, model="chat", input=TOOL_CALLS)
    world.forget()
    for given in ("and then?", [tool_output("call_a", "1")], [tool_output("call_a", "1"), user("and then?")]):
        answer = await ask(world.client(2), streamed=streamed, model="chat", input=given, **by_response(first))
        assert (answer.status, answer.error["param"]) == (400, "input")
    assert world.called()["c"] == 0


# A9, parallel calls


@pytest.mark.parametrize("called_by", ["chat", "only-p1"])
async def test_parallel_calls_are_one_message_and_the_same_bytes_on_every_replica(
    world: World, streamed: bool, called_by: str
) -> None:
    conversation = "conv_a"
    first = await ask(world.client(1), streamed=streamed, model=called_by, input=TOOL_CALLS, conversation=conversation)
    assert first.response is not None
    kinds = [item.type for item in first.response.output]
    if called_by == "only-p1":
        assert kinds == ["reasoning", "function_call", "function_call", "reasoning", "function_call"]
    asked = {"model": "chat", "input": OUTPUTS_LATE_FIRST, **by_response(first)}
    seconds = [await ask(client, streamed=streamed, **asked) for client in (world.client(1), world.client(2))]
    assert [second.text.startswith("c heard: look | ") for second in seconds] == [True, True]
    assert messages(world) == [
        user(TOOL_CALLS),
        called(("f", "call_a"), ("f", "call_b"), ("g", "call_c")),
        answered("call_a", "1"),
        answered("call_b", "2"),
        answered("call_c", "3"),
    ]
    assert world.c.recorded()[-1].raw == world.c.recorded()[-2].raw
    # And so in the turns after it, whichever replica replays them.
    for client in (world.client(1), world.client(2)):
        await ask(client, streamed=streamed, model="chat", input="more", **by_response(seconds[0]))
    assert world.c.recorded()[-1].raw == world.c.recorded()[-2].raw
    assert messages(world)[:5] == world.c.recorded()[-3].body["messages"]


async def test_parallel_calls_are_answered_at_a_native_target_of_a_portable_conversation(
    world: World, streamed: bool
) -> None:
    named = {"conversation": "conv_a"}
    await ask(world.client(1), streamed=streamed, model="only-p1", input=TOOL_CALLS, **named)
    answer = await ask(world.client(2), streamed=streamed, model="only-p2", input=OUTPUTS_LATE_FIRST, **named)
    assert answer.text == "p2 heard: look | tool(call_c)=3 | tool(call_a)=1 | tool(call_b)=2"


# A10, branches


@pytest.mark.parametrize(("model", "name"), [("auto", "p1"), ("chat", "c")])
async def test_branch_sees_its_own_ancestors_only(world: World, streamed: bool, model: str, name: str) -> None:
    here, there = world.client(1), world.client(2)
    root = await ask(here, streamed=streamed, model=model, input="a")
    left = await ask(there, streamed=streamed, model=model, input="b1", **by_response(root))
    before = await ask(here, streamed=streamed, model=model, input="c0", **by_response(left))
    right = await ask(here, streamed=streamed, model=model, input="b2", **by_response(root))
    after = await ask(there, streamed=streamed, model=model, input="c1", **by_response(left))
    other = await ask(there, streamed=streamed, model=model, input="c2", **by_response(right))
    assert [answer.text for answer in (left, before, right, after, other)] == [
        f"{name} heard: a | {heard}" for heard in ("b1", "b1 | c0", "b2", "b1 | c1", "b2 | c2")
    ]


async def test_branch_from_inside_a_conversation_is_no_part_of_it(world: World, streamed: bool) -> None:
    named = {"model": "chat", "conversation": "conv_a"}
    first = await ask(world.client(1), streamed=streamed, input="a", **named)
    branch = await ask(world.client(2), streamed=streamed, model="chat", input="b1", **by_response(first))
    second = await ask(world.client(2), streamed=streamed, input="b2", **named)
    assert (branch.text, second.text) == ("c heard: a | b1", "c heard: a | b2")
    assert (await ask(world.client(1), streamed=streamed, input="c2", **named)).text == "c heard: a | b2 | c2"


# A11, a deleted parent


@pytest.mark.parametrize("deleted", [0, 1], ids=["grandparent", "parent"])
@pytest.mark.parametrize(("model", "name"), [("auto", "p1"), ("chat", "c")])
async def test_history_stays_whole_when_a_parent_is_deleted(
    world: World, streamed: bool, model: str, name: str, deleted: int
) -> None:
    chain = [await ask(world.client(1), streamed=streamed, model=model, input="a")]
    for text in ("b", "c"):
        chain.append(await ask(world.client(1), streamed=streamed, model=model, input=text, **by_response(chain[-1])))
    gone = chain[deleted].id
    await world.client(2).responses.delete(gone)
    for client in (world.client(1), world.client(2)):
        with pytest.raises(NotFoundError) as got:
            await client.responses.retrieve(gone)
        assert refused(got.value).reason == "deleted"
        with pytest.raises(NotFoundError):
            await client.responses.delete(gone)
        answer = await ask(client, streamed=streamed, model=model, input="d", **by_response(chain[-1]))
        assert answer.text == f"{name} heard: a | b | c | d"
    if deleted == 0:
        # Its child lives on its own.
        answer = await ask(world.client(1), streamed=streamed, model=model, input="d", **by_response(chain[1]))
        assert answer.text == f"{name} heard: a | b | d"
    assert world.called()["p2"] == 0


# A12, growth


async def test_turn_stores_its_own_items_only_and_the_prompt_only_grows_at_its_end(
    world: World, streamed: bool
) -> None:
    turns, client_of = 20, (world.client(1), world.client(2))
    ids: list[str] = []
    for number in range(turns):
        given: Any = (
            [tool_output(f"call_{number - 1}", "4" * 200)] if number % 2 else f"q{number} !tool(f, {{}}, call_{number})"
        )
        named = {"previous_response_id": ids[-1]} if ids else {}
        answer = await ask(client_of[number % 2], streamed=streamed, model="chat", input=given, **named)
        assert answer.response is not None
        assert answer.response.status == "completed"
        ids.append(answer.id)
    prompts = [request.body["messages"] for request in world.c.recorded()]
    assert [len(prompt) for prompt in prompts] == [2 * number + 1 for number in range(turns)]
    encoded = [msgspec.json.encode(prompt) for prompt in prompts]
    assert all(later.startswith(earlier[:-1]) for earlier, later in itertools.pairwise(encoded))
    async with world.another() as replica:
        assert replica.gateway is not None
        router = replica.gateway.router
        assert router is not None
        sizes: list[int] = []
        for response_id in ids:
            scope = Scope(namespace="tests", route=replica.gateway.config.route, principal=world.alice)
            found = await router.load(Selector(scope=scope, kind=SelectorKind.RESPONSE, id=response_id), history=True)
            assert isinstance(found, Found)
            assert found.history is not None
            assert len(found.history.entries) == len(sizes) + 1
            entry = found.history.entries[-1]
            assert (len(entry.input), len(entry.output)) == (1, 1)
            assert entry.content is not None
            sizes.append(entry.content.size_bytes)
    # A turn with a call, and a turn with its output: the last pair is as large as the first, whatever came before.
    assert abs((sizes[-1] + sizes[-2]) - (sizes[0] + sizes[1])) < 0.1 * (sizes[0] + sizes[1]) + 2_000
