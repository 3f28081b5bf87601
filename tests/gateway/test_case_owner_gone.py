"""Case A2: what no other target can continue is refused by name when its owner is gone, and nobody is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI

from tests.gateway.asking import Asked, ask, refused
from tests.gateway.test_case_continuation import own_provider
from tests.gateway.world import Config, World


def removed(config: Config) -> None:
    config["targets"] = [target for target in config["targets"] if target["name"] != "p1"]
    for model in config["models"]:
        model["targets"] = [way for way in model["targets"] if way["target"] != "p1"]
    config["models"] = [model for model in config["models"] if model["targets"]]


def marked_down(config: Config) -> None:
    config["targets"][0]["down"] = True


def other_account(config: Config) -> None:
    config["targets"][0]["account"] = "another team"


def other_endpoint(config: Config) -> None:
    config["targets"][0]["base_url"] = config["targets"][1]["base_url"]


changed_owner = pytest.mark.parametrize(
    ("change", "status", "code", "reason"),
    [
        (removed, 503, "owner_unavailable", "owner_removed"),
        (marked_down, 503, "owner_unavailable", "owner_down"),
        (other_account, 409, "owner_changed", "owner_changed"),
        (other_endpoint, 409, "owner_changed", "owner_changed"),
    ],
    ids=["removed", "down", "account", "endpoint"],
)


async def refusal(client: AsyncOpenAI, method: str, path: str) -> Asked:
    """Return how the gateway refuses a request that names an ID in its path."""
    with pytest.raises(APIStatusError) as raised:
        await (client.get if method == "GET" else client.post if method == "POST" else client.delete)(
            path, cast_to=object
        )
    return refused(raised.value)


@changed_owner
async def test_what_a_gone_owner_holds_is_refused_by_name_and_nobody_is_called(
    world: World, change: Callable[[Config], None], status: int, code: str, reason: str
) -> None:
    native, portable = await conversations(world)
    first = await ask(world.client(1), streamed=False, model="auto", input="alpha")
    served = await ask(world.client(1), streamed=True, model="auto", input="alpha", conversation=portable)
    assert served.text == "p1 heard: alpha"
    world.forget()
    follow_ups: list[dict[str, Any]] = [
        {"streamed": streamed, "model": model, "input": "beta", **named}
        for streamed in (False, True)
        # "any" has targets that could be called: that the owner is missing there is not the reason.
        for model in ("auto", "any")
        for named in ({"previous_response_id": first.id}, {"conversation": native})
    ]
    async with world.another(change, prefers="p2") as replica:
        client = replica.client(world.alice)
        for follow_up in follow_ups:
            answer = await ask(client, **follow_up)
            assert (answer.status, answer.code, answer.reason) == (status, code, reason), follow_up
        for method, path in (
            ("GET", f"/responses/{first.id}"),
            ("GET", f"/responses/{first.id}/input_items"),
            ("POST", f"/responses/{first.id}/cancel"),
            ("DELETE", f"/responses/{first.id}"),
            ("GET", f"/conversations/{native}"),
            ("GET", f"/conversations/{native}/items"),
            ("DELETE", f"/conversations/{native}"),
        ):
            told = await refusal(client, method, path)
            assert (told.status, told.code, told.reason) == (status, code, reason), path
        for called_method in ("GET", "POST", "DELETE"):
            assert world.called(called_method) == {"p1": 0, "p2": 0, "c": 0}
        for streamed in (False, True):
            # What the ledger holds goes on, on any target. Under another account the first choice is still p1.
            again = await ask(client, streamed=streamed, model="auto", input="beta", previous_response_id=served.id)
            assert again.text == f"{'p1' if change is other_account else 'p2'} heard: alpha | beta"
            other = await ask(client, streamed=streamed, model="chat", input="gamma", previous_response_id=served.id)
            assert other.text == "c heard: alpha | gamma"
    # Nothing was lost by it.
    for streamed in (False, True):
        second = await ask(
            world.client(2), streamed=streamed, model="auto", input="beta", previous_response_id=first.id
        )
        assert second.text == "p1 heard: alpha | beta"
    second = await ask(world.client(2), streamed=False, model="auto", input="beta", conversation=native)
    assert second.text == "p1 heard: alpha | beta"


async def conversations(world: World) -> tuple[str, str]:
    """Return a conversation of one turn that P1 holds, and an empty one that the ledger holds."""
    async with AsyncOpenAI(base_url=f"{world.p1.url}/v1", api_key="sk-provider") as provider:
        native = (await provider.conversations.create()).id
    async with world.another(own_provider) as replica:
        await ask(replica.client(world.alice), streamed=False, model="own", input="alpha", conversation=native)
    return native, (await world.client(1).conversations.create()).id


async def test_owner_that_does_not_answer_is_said_and_no_other_target_is_called(world: World, streamed: bool) -> None:
    first = await ask(world.client(1), streamed=streamed, model="auto", input="alpha")
    follow_up = {"model": "auto", "input": "beta", "previous_response_id": first.id}
    await world.p1.stop()
    for client in (world.client(1), world.client(2)):
        answer = await ask(client, streamed=streamed, **follow_up)
        assert (answer.status, answer.code, answer.reason) == (503, "owner_unavailable", "owner_unreachable")
    assert world.called()["p2"] == 0
    await world.p1.start()
    # A pinned request tries its owner also while the policy lets it rest.
    for client in (world.client(1), world.client(2)):
        assert (await ask(client, streamed=streamed, **follow_up)).text == "p1 heard: alpha | beta"
