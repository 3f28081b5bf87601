"""Cases A4 and A13: follow-ups faster than the write, and two turns on one conversation at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI, NotFoundError

from cli.loopback.server import Loopback
from tests.gateway.asking import Asked, ask, ask_and_leave, eventually
from tests.gateway.world import Config, GatewayProcess, Replica, World

CHAINS = 200
"""Of three turns each, on either log: half of them buffered, half streamed."""
AT_ONCE = 4
"""Chains that are played at the same time: they share the cores, not the context."""


def one_at_a_time(config: Config) -> None:
    """Refuse a turn while another one runs on its conversation; a lease long enough that no test waits for its end."""
    config["conversations"] = "reject"
    config["limits"]["lease_s"] = 600


def one_at_a_time_with_short_leases(config: Config) -> None:
    """As an operator who wants a dead replica's locks to go soon."""
    config["conversations"] = "reject"


@asynccontextmanager
async def two_that_reject(world: World) -> AsyncIterator[tuple[AsyncOpenAI, AsyncOpenAI]]:
    """Run a replica that lets one turn run at a time on a conversation, and give two clients of it and another such."""
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(world.another(one_at_a_time, prefers=prefers)) for prefers in ("p1", "p2")
        ]
        yield replicas[0].client(world.alice), replicas[1].client(world.alice)


async def calls(loopback: Loopback, count: int) -> None:
    """Return when an upstream has been called so often."""

    async def reached() -> bool:
        return len(loopback.recorded()) >= count

    await eventually(reached)


def assert_locked(answer: Asked) -> None:
    """Check that a request was refused because of another one on its conversation, before anything was streamed."""
    assert (answer.status, answer.code) == (400, "conversation_locked")
    assert (answer.error["type"], answer.error["param"]) == ("invalid_request_error", "conversation")
    assert answer.events == []


# A4, faster than the write


async def test_follow_up_sent_at_once_to_the_other_replica_misses_nothing(world: World, streamed: bool) -> None:
    for first in range(0, CHAINS // 2, AT_ONCE):
        await asyncio.gather(*(alternate(world, chain, streamed=streamed) for chain in range(first, first + AT_ONCE)))


async def alternate(world: World, chain: int, *, streamed: bool) -> None:
    """Take three turns, each on the other replica the moment the one before has ended."""
    kind = ("native", "by response", "by conversation")[chain % 3]
    model, owner = ("auto", f"p{1 + chain % 2}") if kind == "native" else ("chat", "c")
    named: dict[str, Any] = {"conversation": f"conv_{chain}"} if kind == "by conversation" else {}
    for turn in range(3):
        client = world.client(1 + (chain + turn) % 2)
        answer = await ask(client, streamed=streamed, model=model, input=f"t{turn}", **named)
        assert answer.text == f"{owner} heard: {' | '.join(f't{number}' for number in range(turn + 1))}", kind
        if kind != "by conversation":
            named = {"previous_response_id": answer.id}


# A13, last write: both are stored


@pytest.mark.parametrize("model", ["auto", "chat"])
async def test_two_turns_at_once_are_both_stored_in_the_order_of_the_log(
    world: World, streamed: bool, model: str
) -> None:
    named = {"model": model, "conversation": (await world.client(1).conversations.create()).id}
    await ask(world.client(1), streamed=streamed, input="alpha", **named)
    # Both have read the conversation before either is stored.
    both = [
        asyncio.create_task(ask(world.client(replica), streamed=streamed, input=f"!delay(200) b{replica}", **named))
        for replica in (1, 2)
    ]
    answers = [await each for each in both]
    assert {answer.text.split(": ")[1] for answer in answers} == {"alpha | b1", "alpha | b2"}
    lists = [
        [item.id for item in (await world.client(replica).conversations.items.list(named["conversation"])).data]
        for replica in (1, 2)
    ]
    assert lists[0] == lists[1]
    assert len(lists[0]) == 6
    heard = []
    for replica in (1, 2):
        # A branch from the head, so that both replicas are asked the same.
        head = await newest_response(world.client(replica), answers, named["conversation"])
        followed = await ask(
            world.client(replica), streamed=streamed, model=model, input="gamma", previous_response_id=head
        )
        heard.append(followed.text.split(": ")[1])
    assert heard[0] == heard[1]
    assert heard[0] in ("alpha | b1 | b2 | gamma", "alpha | b2 | b1 | gamma")
    third = await ask(world.client(1), streamed=streamed, input="gamma", **named)
    assert third.text.split(": ")[1] == heard[0]


async def newest_response(client: AsyncOpenAI, answers: list[Asked], conversation: str) -> str:
    """Return the response whose output is the conversation's newest item."""
    newest = (await client.conversations.items.list(conversation, order="desc", limit=1)).data[0].id
    for answer in answers:
        assert answer.response is not None
        if newest in [item.id for item in answer.response.output]:
            return answer.id
    raise AssertionError("the head is one of both")


async def test_two_first_turns_at_once_make_one_conversation(world: World, streamed: bool) -> None:
    both = [
        asyncio.create_task(
            ask(world.client(replica), streamed=streamed, model="chat", input=f"!delay(200) b{replica}",
                conversation="conv_a")
        )
        for replica in (1, 2)
    ]  # fmt: skip
    for each in both:
        assert (await each).text.startswith("c heard: b")
    for replica in (1, 2):
        items = await world.client(replica).conversations.items.list("conv_a")
        assert len(items.data) == 4


# A13, reject: the second is refused


async def test_second_turn_at_once_is_refused_until_the_first_has_ended_or_its_client_has_left(
    world: World, streamed: bool
) -> None:
    async with two_that_reject(world) as (here, there):
        for model, loopback in (("auto", world.p1), ("chat", world.c)):
            new, old = f"new_{model}", f"old_{model}"
            beginning = asyncio.create_task(stay(here, streamed=streamed, model=model, conversation=new))
            named = {"model": model, "conversation": old}
            first = await ask(here, streamed=streamed, input="alpha", **named)
            running = asyncio.create_task(stay(here, streamed=streamed, **named))
            await calls(loopback, 3)
            for client in (here, there):
                for locked in (new, old):
                    assert_locked(await ask(client, streamed=streamed, model=model, input="beta", conversation=locked))
            assert len(loopback.recorded()) == 3
            with pytest.raises(NotFoundError):
                await there.conversations.retrieve(new)
            # Another conversation is not held up.
            other = await ask(there, streamed=streamed, model=model, input="other", conversation=f"other_{model}")
            assert other.text.endswith("heard: other")
            running.cancel()
            third = await when_unlocked(there, streamed=streamed, input="gamma", **named)
            assert third.text == first.text + " | gamma"
            assert len((await here.conversations.items.list(old)).data) == 4
            beginning.cancel()
            after = await when_unlocked(there, streamed=streamed, model=model, input="beta", conversation=new)
            assert after.text.endswith("heard: beta")
            world.forget()


async def stay(client: AsyncOpenAI, *, streamed: bool, **request: Any) -> None:
    """Ask for an answer that does not end; of a stream, the first events come."""
    if streamed:
        await ask_and_leave(client, events=1_000, input="!pause(600000) !say(one two)", **request)
    else:
        await ask(client, streamed=False, input="!hang", **request)


async def test_lock_does_not_outlive_a_turn_that_failed(world: World, streamed: bool) -> None:
    async with two_that_reject(world) as (here, there):
        for number, directive in enumerate(("!status(429)", "!cut(1)", "!fail")):
            named = {"model": "chat", "conversation": f"conv_{number}"}
            failed = await ask(here, streamed=streamed, input=f"{directive} one two three", **named)
            assert b"response.completed" not in failed.raw
            answer = await when_unlocked(there, streamed=streamed, input="beta", **named)
            assert answer.text == "c heard: beta"


async def test_lock_does_not_outlive_a_replica_that_died(world: World) -> None:
    async with world.process(one_at_a_time_with_short_leases) as process:
        dying = process.replica()
        client = dying.client(world.alice)
        conversations = {False: "conv_a", True: "conv_b"}
        for streamed, conversation in conversations.items():
            named = {"model": "chat", "conversation": conversation}
            turn = asyncio.create_task(stay(client, streamed=streamed, **named))
            turn.add_done_callback(lambda ended: ended.exception())
            await calls(world.c, 1)
            assert_locked(await ask(client, streamed=streamed, input="beta", **named))
            world.forget()
        await asyncio.to_thread(process.stop, kill=True)
        await dying.close()
        async with survivor(world, process) as replica:
            client = replica.client(world.alice)
            for streamed, conversation in conversations.items():
                named = {"model": "chat", "conversation": conversation}
                answer = await when_unlocked(client, streamed=streamed, input="beta", **named)
                assert answer.text == "c heard: beta"
                assert len((await client.conversations.items.list(conversation)).data) == 2


@asynccontextmanager
async def survivor(world: World, died: GatewayProcess) -> AsyncIterator[Replica]:
    """Give another replica of a ledger whose replica died; an embedded one is open in one process, which comes back."""
    if world.has_shared_log:
        async with world.another(one_at_a_time_with_short_leases) as replica:
            yield replica
    else:
        await asyncio.to_thread(died.start)
        replica = died.replica()
        try:
            yield replica
        finally:
            await replica.close()


async def when_unlocked(client: AsyncOpenAI, *, streamed: bool, **request: Any) -> Asked:
    """Return the first answer that is not that the conversation is locked."""

    async def unlocked() -> Asked | None:
        answer = await ask(client, streamed=streamed, **request)
        if answer.code == "conversation_locked":
            assert_locked(answer)
            return None
        return answer

    return await eventually(unlocked)
