"""Case A1: a follow-up on another replica goes to the owner, whatever the policy would choose."""

from __future__ import annotations

import pytest
from openai import AsyncOpenAI

from tests.gateway.asking import ask
from tests.gateway.world import Config, World

OTHER = {"p1": "p2", "p2": "p1"}


def own_provider(config: Config) -> None:
    """One principal, and a model of one target on which it may name what only the target knows."""
    config["keys"] = config["keys"][:1]
    config["models"].append(
        {"name": "own", "targets": [{"target": "p1", "model": "loopback"}], "forwards_unknown": True}
    )


def spread_evenly(config: Config) -> None:
    """Give ``auto`` a policy that counts."""
    config["models"][0]["policy"] = "weighted"


async def test_follow_up_on_the_same_replica_goes_to_the_owner(world: World, streamed: bool) -> None:
    for replica, owner in ((1, "p1"), (2, "p2"), (1, "p1")):
        world.forget()
        client = world.client(replica)
        first = await ask(client, streamed=streamed, model="auto", input="alpha")
        second = await ask(client, streamed=streamed, model="auto", input="beta", previous_response_id=first.id)
        assert second.text == f"{owner} heard: alpha | beta"
        assert world.called() == {"p1": 0, "p2": 0, "c": 0} | {owner: 2}


async def test_follow_up_on_the_other_replica_goes_to_the_owner(world: World, streamed: bool) -> None:
    for first_replica, owner in ((1, "p1"), (2, "p2"), (1, "p1")):
        world.forget()
        here, there = world.client(first_replica), world.client(3 - first_replica)
        first = await ask(here, streamed=streamed, model="auto", input="alpha")
        second = await ask(there, streamed=streamed, model="auto", input="beta", previous_response_id=first.id)
        third = await ask(here, streamed=streamed, model="auto", input="gamma", previous_response_id=second.id)
        assert first.text == f"{owner} heard: alpha"
        assert second.text == f"{owner} heard: alpha | beta"
        assert third.text == f"{owner} heard: alpha | beta | gamma"
        assert world.called() == {"p1": 0, "p2": 0, "c": 0} | {owner: 3}


async def test_follow_up_takes_no_turn_of_the_policy(world: World, streamed: bool) -> None:
    async with world.another(spread_evenly) as replica:
        client = replica.client(world.alice)
        first = await ask(client, streamed=streamed, model="auto", input="alpha")
        for _ in range(3):
            followed = await ask(client, streamed=streamed, model="auto", input="beta", previous_response_id=first.id)
            assert followed.text == "p1 heard: alpha | beta"
        chosen = [await ask(client, streamed=streamed, model="auto", input="free") for _ in range(3)]
    assert [answer.text for answer in chosen] == ["p2 heard: free", "p1 heard: free", "p2 heard: free"]


async def test_follow_ups_after_a_restart_of_both_replicas_go_where_they_went(world: World) -> None:
    firsts = [await ask(world.client(1), streamed=streamed, model="auto", input="alpha") for streamed in (False, True)]
    named = {"model": "auto", "conversation": (await world.client(1).conversations.create()).id}
    await ask(world.client(1), streamed=False, input="one", **named)
    await world.restart()
    for streamed in (False, True):
        for first in firsts:
            second = await ask(
                world.client(2), streamed=streamed, model="auto", input="beta", previous_response_id=first.id
            )
            assert second.text == "p1 heard: alpha | beta"
    assert (await ask(world.client(2), streamed=True, input="two", **named)).text == "p1 heard: one | two"
    assert (await ask(world.client(2), streamed=False, input="three", **named)).text == "p1 heard: one | two | three"
    assert world.called() == {"p1": 9, "p2": 0, "c": 0}


async def test_conversation_made_at_a_provider_stays_there(world: World, streamed: bool) -> None:
    async with AsyncOpenAI(base_url=f"{world.p1.url}/v1", api_key="sk-provider") as provider:
        conversation = (await provider.conversations.create()).id
    async with world.another(own_provider) as replica:
        first = await ask(
            replica.client(world.alice), streamed=streamed, model="own", input="alpha", conversation=conversation
        )
    assert first.text == "p1 heard: alpha"
    for replica_number, expected in ((2, "alpha | beta"), (1, "alpha | beta | gamma")):
        answer = await ask(
            world.client(replica_number),
            streamed=streamed,
            model="auto",
            input=expected.rsplit(" | ", 1)[1],
            conversation={"id": conversation},
        )
        assert answer.text == f"p1 heard: {expected}"
    # Whose it is follows from the response too, and the owner alone knows the conversation's items.
    followed = await ask(world.client(2), streamed=streamed, model="auto", input="delta", previous_response_id=first.id)
    assert followed.text == "p1 heard: alpha | delta"
    assert world.called()["p2"] == world.called()["c"] == 0
    items = await world.client(2).conversations.items.list(conversation, order="asc")
    assert len(items.data) == 6
    assert world.p1.recorded()[-1].path == f"/v1/conversations/{conversation}/items"


@pytest.mark.parametrize("first_replica", [1, 2])
async def test_conversation_of_the_gateway_stays_with_the_target_that_served_last(
    world: World, streamed: bool, first_replica: int
) -> None:
    here, there = world.client(first_replica), world.client(3 - first_replica)
    owner = f"p{first_replica}"
    named = {"model": "auto", "conversation": (await here.conversations.create()).id}
    heard = []
    for text, client in (("alpha", here), ("beta", there), ("gamma", here), ("delta", there)):
        heard.append(text)
        answer = await ask(client, streamed=streamed, input=text, **named)
        assert answer.text == f"{owner} heard: {' | '.join(heard)}"
    # Any target can go on, and the one that did is the next one's first choice.
    assert (await ask(there, streamed=streamed, input="eps", **(named | {"model": "chat"}))).text.startswith("c heard:")
    answer = await ask(here, streamed=streamed, input="zeta", **(named | {"model": "any"}))
    assert answer.text == "c heard: alpha | beta | gamma | delta | eps | zeta"
    assert world.called() == {owner: 4, OTHER[owner]: 0, "c": 2}
