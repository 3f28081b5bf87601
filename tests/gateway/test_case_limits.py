"""Case A24 and the bounded local mode: what is too large is refused whole, what is too old goes first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from api.gateway.service import MIB
from cli.loopback.server import Loopback
from ledger.composition import open_embedded, open_kafka, open_memory
from ledger.ledger import Ledger, wall_clock_ms
from ledger.policy import Policy
from tests.e2e.replicas import deploy
from tests.gateway.asking import Asked, ask, send_raw, user
from tests.gateway.world import (
    Change,
    Config,
    GatewayProcess,
    Replica,
    World,
    base_config,
    config_from,
    embedded_only,
    gateway_over,
)

REPLAY_TOO_LARGE = (413, "request_too_large", "replay_bytes_max")
NOBODY = {"p1": 0, "p2": 0, "c": 0}
TURNS, ITEMS_A_TURN = 3, 49
"""With each turn's answer these are 150 items."""
BUDGET_MIB = 2
"""Of a gateway with two principals: one MiB each."""
MOST_OF_A_MIB = "x" * 600_000
MORE_THAN_A_MIB = "x" * 1_100_000


def texts_sent(loopback: Loopback) -> list[str]:
    """Return the texts of the last request, in order."""
    body = loopback.recorded()[-1].body
    messages = body.get("messages") or body["input"]
    contents = [message["content"] for message in messages]
    return [content if isinstance(content, str) else content[0]["text"] for content in contents]


# Histories


@pytest.mark.parametrize(
    ("model", "by_conversation"), [("chat", False), ("chat", True), ("auto", True)], ids=["chain", "chat", "native"]
)
async def test_both_ends_of_a_long_history_are_replayed(
    world: World, streamed: bool, model: str, by_conversation: bool
) -> None:
    selector: dict[str, Any] = {"conversation": "conv_a"} if by_conversation else {}
    expected = []
    for turn in range(TURNS):
        words = [f"word-{turn}-{index}" for index in range(ITEMS_A_TURN - 1)]
        # So that the answer does not repeat them all.
        words.append("!say(ok) last")
        given = [user(word) for word in words]
        answered = await ask(world.client(turn % 2 + 1), streamed=streamed, model=model, input=given, **selector)
        expected += [*words, "ok"]
        if not by_conversation:
            selector = {"previous_response_id": answered.id}
    assert len(expected) == 150
    await ask(world.client(1), streamed=streamed, model=model, input="newest", **selector)
    assert texts_sent(world.c if model == "chat" else world.p1) == [*expected, "newest"]


def small(config: Config) -> None:
    config["limits"] |= {"replay_mib_max": 1, "body_mib_max": 1}


async def test_history_above_the_replay_budget_is_refused_before_the_model_runs(world: World) -> None:
    async with world.another(small) as bounded:
        client = bounded.client(world.alice)
        for streamed in (False, True):
            named = {"model": "chat", "conversation": f"conv_{streamed}"}
            for words in ("alpha", "beta"):
                # Said with it, so that the answer does not repeat it.
                long = f"!say({words}) {MOST_OF_A_MIB}"
                made = await ask(world.client(1), streamed=streamed, input=long, **named)
                assert made.text == words
                answered = await ask(client, streamed=streamed, input="!say(ok)", store=False, **named)
                if words == "alpha":
                    assert answered.text == "ok"
                    continue
                assert (answered.status, answered.code, answered.reason) == REPLAY_TOO_LARGE
            world.forget()
            refused = await ask(client, streamed=streamed, input="gamma", **named)
            assert (refused.status, refused.code, refused.reason) == REPLAY_TOO_LARGE
            refused = await ask(client, streamed=streamed, model="chat", input=MORE_THAN_A_MIB)
            assert (refused.status, refused.code) == (413, "request_too_large")
            assert world.called() == NOBODY
            # Where there is room for it, it is whole: nothing was cut, and nothing added.
            whole = await ask(world.client(2), streamed=streamed, input="!say(ok) gamma", **named)
            assert whole.text == "ok"
            sent = texts_sent(world.c)
            assert [len(text) > MIB // 2 for text in sent] == [True, False, True, False, False]


# Records


@asynccontextmanager
async def small_kafka(bootstrap: str, directory: Path) -> AsyncIterator[Ledger]:
    policy = Policy(lineage_bytes_max=MIB, principal_bytes_max=MIB)
    deployment = await deploy(bootstrap, directory, partition_count=1, policy=policy)
    async with await open_kafka(deployment.kafka, directory / "small", deployment.alias_key) as ledger:
        yield ledger


@asynccontextmanager
async def local(world: World, backend: str, *changes: Change, **state: Any) -> AsyncIterator[Replica]:
    """Run a gateway with local state, bounded as its configuration says."""

    def bounded(config: Config) -> None:
        config["state"] = {"backend": backend, **state}

    config = world.config(bounded, *changes)
    opening = (
        open_memory(policy=config.policy())
        if backend == "memory"
        else open_embedded(world.directory / "bounded", policy=config.policy())
    )
    async with await opening as ledger, gateway_over(ledger, config) as replica:
        yield replica


@pytest.fixture(params=["memory", "embedded", "kafka"])
async def bounded(request: pytest.FixtureRequest, world: World, tmp_path: Path) -> AsyncIterator[Replica]:
    """A gateway whose principals may keep a MiB each."""
    if request.param == "kafka":
        bootstrap = request.getfixturevalue("kafka_bootstrap")
        async with small_kafka(bootstrap, tmp_path) as ledger, gateway_over(ledger, world.config()) as replica:
            yield replica
    else:
        async with local(world, request.param, budget_mib=BUDGET_MIB) as replica:
            yield replica


@embedded_only
async def test_record_that_can_never_fit_is_refused_whole(world: World, bounded: Replica) -> None:
    client = bounded.client(world.alice)
    for streamed in (False, True):
        named = {"model": "chat", "conversation": f"conv_{streamed}"}
        await ask(client, streamed=streamed, input="alpha", **named)
        path = f"/conversations/conv_{streamed}/items"
        before = await send_raw(client, "GET", path)
        world.forget()
        refused = await ask(client, streamed=streamed, input=MORE_THAN_A_MIB, **named)
        assert (refused.status, refused.code) == (413, "request_too_large")
        assert world.called() == NOBODY
        # Only its answer makes this one too large.
        refused = await ask(client, streamed=streamed, input=f"!say({MOST_OF_A_MIB})", **named)
        if streamed:
            assert refused.types[-1] == "response.failed"
            assert MOST_OF_A_MIB in "".join(event.get("delta", "") for event in refused.events)
            assert refused.error["message"]
            assert (await send_raw(client, "GET", f"/responses/{refused.id}"))[0] == 404
        else:
            assert (refused.status, refused.code) == (413, "request_too_large")
        assert await send_raw(client, "GET", path) == before
        following = await ask(client, streamed=streamed, input="beta", **named)
        assert following.text == "c heard: alpha | beta"


def is_evicted(answered: Asked) -> bool:
    return (answered.status, answered.code, answered.reason) == (400, "previous_response_not_found", "evicted")


LOCAL = pytest.mark.parametrize("backend", ["memory", "embedded"])


@embedded_only
@pytest.mark.parametrize(("backend", "model"), [("memory", "auto"), ("embedded", "chat")], ids=["memory", "embedded"])
async def test_oldest_response_is_evicted_first(world: World, streamed: bool, backend: str, model: str) -> None:
    async with local(world, backend, records_max=4) as replica:
        client = replica.client(world.alice)

        async def follow(response: Asked, principal: str = world.alice) -> Asked:
            return await ask(
                replica.client(principal),
                streamed=streamed,
                model=model,
                input="then",
                previous_response_id=response.id,
                store=False,
            )

        bobs = await ask(replica.client(world.bob), streamed=streamed, model=model, input="of bob")
        kept: list[Asked] = []
        for number in range(3):
            made = await ask(client, streamed=streamed, model=model, input=str(number))
            kept.append(made)
            if len(kept) > 2:
                world.forget()
                assert is_evicted(await follow(kept.pop(0)))
                assert world.called() == NOBODY
            for response in kept:
                assert (await follow(response)).status == 200
        # Each tenant has a share of its own.
        assert (await follow(bobs, world.bob)).status == 200


@embedded_only
@LOCAL
async def test_budget_is_kept_by_evicting_the_oldest_first(world: World, streamed: bool, backend: str) -> None:
    async with local(world, backend, budget_mib=BUDGET_MIB) as replica:
        client = replica.client(world.alice)
        made = [
            await ask(client, streamed=streamed, model="chat", input=f"{number} {MOST_OF_A_MIB[:400_000]}")
            for number in range(3)
        ]
        followed = [
            await ask(
                client, streamed=streamed, model="chat", input="then", previous_response_id=response.id, store=False
            )
            for response in made
        ]
        assert [answered.status for answered in followed] == [400, 400, 200]
        assert all(is_evicted(answered) for answered in followed[:2])


@embedded_only
async def test_settings_of_local_state_come_from_the_environment(world: World, tmp_path: Path) -> None:
    config = base_config(world.ports, prefers="p1", principals=[world.alice])
    config["state"] = {"backend": "embedded", "records_max": 1000}
    environ = {
        "TURNLEDGER_STATE_BACKEND": "memory",
        "TURNLEDGER_STATE_RECORDS_MAX": "1",
        "TURNLEDGER_LIMITS_BODY_MIB_MAX": "1",
    }
    process = GatewayProcess(config_from(config, tmp_path, "local"), tmp_path / "unused", environ=environ)
    try:
        await asyncio.to_thread(process.start)
        replica = process.replica()
        client = replica.client(world.alice)
        first = await ask(client, streamed=False, model="auto", input="alpha")
        second = await ask(client, streamed=True, model="chat", input="alpha")
        gone = await ask(client, streamed=False, model="auto", input="beta", previous_response_id=first.id)
        assert is_evicted(gone)
        following = await ask(client, streamed=True, model="chat", input="beta", previous_response_id=second.id)
        assert following.text == "c heard: alpha | beta"
        refused = await ask(client, streamed=False, model="chat", input=MORE_THAN_A_MIB)
        assert (refused.status, refused.code) == (413, "request_too_large")
        await replica.close()
    finally:
        await asyncio.to_thread(process.stop)
    assert not list((tmp_path / "unused").glob("**/*")), "it is in memory"


@embedded_only
async def test_configured_lifetime_ends_state_in_memory(world: World, streamed: bool) -> None:
    def short_lived(config: Config) -> None:
        config["state"] = {"backend": "memory", "ttl_s": 60, "sliding": False}

    config, now_ms = world.config(short_lived), wall_clock_ms()
    async with (
        await open_memory(policy=config.policy(), now_ms=lambda: now_ms) as ledger,
        gateway_over(ledger, config, now_ms=lambda: now_ms) as replica,
    ):
        client = replica.client(world.alice)
        first = await ask(client, streamed=streamed, model="chat", input="alpha")
        now_ms += 59_000
        living = await ask(client, streamed=streamed, model="chat", input="beta", previous_response_id=first.id)
        assert living.text == "c heard: alpha | beta"
        now_ms += 1_000
        gone = await ask(client, streamed=streamed, model="chat", input="gamma", previous_response_id=first.id)
        assert (gone.status, gone.code, gone.reason) == (400, "previous_response_not_found", "expired")


@embedded_only
async def test_answers_are_the_same_wherever_the_state_is(world: World, streamed: bool) -> None:
    async with local(world, "memory") as in_memory, local(world, "embedded") as embedded:
        bodies = []
        for replica in (in_memory, embedded, world.replicas[0]):
            client = replica.client(world.alice)
            first = await ask(client, streamed=streamed, model="chat", input="alpha", metadata={"a": "b"})
            second = await ask(
                client,
                streamed=streamed,
                model="chat",
                input="!tool(f, {}, call_7) beta",
                previous_response_id=first.id,
            )
            for response in (first, second):
                assert response.response is not None
                body = response.response.to_dict()
                for name in ("id", "previous_response_id", "created_at", "completed_at", "output", "usage"):
                    body.pop(name, None)
                bodies.append(msgspec.json.encode(body))
        assert bodies[:2] == bodies[2:4] == bodies[4:]
