"""Case A18: what expired while nobody asked is said to have expired, and an outage is never taken for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from ledger.composition import open_embedded, open_kafka
from ledger.ledger import wall_clock_ms
from ledger.policy import Policy
from tests.api.faults import ScriptedFaults, faulty_ledger
from tests.e2e.replicas import deploy
from tests.gateway.asking import Asked, ask, eventually, send_raw
from tests.gateway.world import Config, Replica, World, embedded_only, gateway_over, native_or_portable

NOBODY = {"p1": 0, "p2": 0, "c": 0}
TTL_S = 60
SHORT_TTL_MS = 1_000
"""The shortest that a policy may say."""


def expired(answered: Asked) -> bool:
    """Return whether a continuation was refused as clients and programs know it."""
    found = (answered.status, answered.code, answered.error.get("param"), answered.reason)
    return found == (400, "previous_response_not_found", "previous_response_id", "expired")


async def has_expired(world: World, client: AsyncOpenAI, **follow: Any) -> bool:
    """Return whether a response has expired; until then it lives."""
    world.forget()
    answered = await ask(client, **follow)
    assert expired(answered) or answered.status == 200, answered.error
    return expired(answered)


@dataclass(slots=True)
class Clock:
    """The time of a ledger and its gateway, as a test sets it."""

    now_ms: int

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ms += int(seconds * 1000)


@dataclass(slots=True, kw_only=True)
class Aging:
    """A replica whose responses live for a minute of its clock."""

    replica: Replica
    clock: Clock
    client: AsyncOpenAI


@pytest.fixture(params=[False, True], ids=["fixed", "sliding"])
def sliding(request: pytest.FixtureRequest) -> bool:
    given: bool = request.param
    return given


@pytest.fixture
async def aging(world: World, sliding: bool, tmp_path: Path) -> AsyncIterator[Aging]:
    def short_lived(config: Config) -> None:
        config["state"] = {"backend": "embedded", "ttl_s": TTL_S, "sliding": sliding}

    config, clock = world.config(short_lived), Clock(wall_clock_ms())
    async with (
        await open_embedded(tmp_path / "aging", policy=config.policy(), now_ms=clock) as ledger,
        gateway_over(ledger, config, now_ms=clock) as replica,
    ):
        yield Aging(replica=replica, clock=clock, client=replica.client(world.alice))


@embedded_only
@native_or_portable
async def test_response_lives_as_long_as_its_policy_says(
    world: World, aging: Aging, sliding: bool, streamed: bool, model: str, target: str
) -> None:
    client, clock = aging.client, aging.clock
    parent = await ask(client, streamed=streamed, model=model, input="alpha")
    clock.advance(TTL_S * 0.6)
    child = await ask(client, streamed=streamed, model=model, input="beta", previous_response_id=parent.id)
    clock.advance(TTL_S * 0.6)
    world.forget()
    branch = await ask(client, streamed=streamed, model=model, input="gamma", previous_response_id=parent.id)
    if sliding:
        # The child's turn let the whole lineage live on.
        assert branch.text == f"{target} heard: alpha | gamma"
    else:
        assert expired(branch)
        assert world.called() == NOBODY
    # A child that lives has its whole history, whatever became of its parent.
    again = await ask(client, streamed=streamed, model=model, input="delta", previous_response_id=child.id)
    assert again.text == f"{target} heard: alpha | beta | delta"


@embedded_only
@native_or_portable
async def test_reading_lets_nothing_live_longer(
    world: World, aging: Aging, streamed: bool, model: str, target: str
) -> None:
    response = await ask(aging.client, streamed=streamed, model=model, input="alpha")
    aging.clock.advance(TTL_S - 1)
    path = f"/responses/{response.id}"
    assert (await send_raw(aging.client, "GET", path))[0] == 200
    aging.clock.advance(1)
    world.forget()
    refused = await ask(aging.client, streamed=streamed, model=model, input="beta", previous_response_id=response.id)
    assert expired(refused)
    for method, below in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        status, body = await send_raw(aging.client, method, f"{path}{below}")
        assert (status, b'"reason":"expired"' in body) == (404, True), (method, below)
    assert sum(len(loopback.recorded()) for loopback in (world.p1, world.p2, world.c)) == 0


@embedded_only
async def test_expired_conversation_is_refused_rather_than_begun_anew(
    world: World, aging: Aging, streamed: bool
) -> None:
    await ask(aging.client, streamed=streamed, model="chat", input="alpha", conversation="conv_a")
    aging.clock.advance(TTL_S)
    world.forget()
    refused = await ask(aging.client, streamed=streamed, model="chat", input="beta", conversation="conv_a")
    assert (refused.status, refused.code, refused.reason) == (404, "conversation_not_found", "expired")
    assert world.called() == NOBODY


@embedded_only
async def test_what_is_due_goes_without_any_traffic(world: World, tmp_path: Path) -> None:
    clock = Clock(wall_clock_ms())
    policy = Policy(active_ttl_ms=TTL_S * 1000, commit_grace_ms=0)
    async with (
        await open_embedded(tmp_path / "idle", policy=policy, now_ms=clock) as ledger,
        gateway_over(ledger, world.config(), now_ms=clock) as replica,
    ):
        client = replica.client(world.alice)
        response = await ask(client, streamed=False, model="chat", input="alpha")
        clock.advance(TTL_S)

        async def has_ticked() -> bool:
            return all(state.rows.meta.clock_ms >= clock() for state in ledger.replica.states().values())

        await eventually(has_ticked)
        assert await replica.metric("turnledger_lookups_total") == 0
        refused = await ask(client, streamed=False, model="chat", input="beta", previous_response_id=response.id)
        assert expired(refused)


@embedded_only
async def test_expiry_on_the_shared_log_is_told_by_every_replica(
    world: World, kafka_bootstrap: str, tmp_path: Path
) -> None:
    policy = Policy(active_ttl_ms=SHORT_TTL_MS)
    deployment = await deploy(kafka_bootstrap, tmp_path, partition_count=1, policy=policy)
    async with AsyncExitStack() as stack:
        ledgers = await asyncio.gather(
            *(open_kafka(deployment.kafka, tmp_path / name, deployment.alias_key) for name in ("r1", "r2"))
        )
        clients = []
        for ledger, prefers in zip(ledgers, ("p1", "p2"), strict=True):
            await stack.enter_async_context(ledger)
            replica = await stack.enter_async_context(gateway_over(ledger, world.config(prefers=prefers)))
            clients.append(replica.client(world.alice))
        made = [
            (model, streamed, await ask(clients[0], streamed=streamed, model=model, input="alpha"))
            for model in ("auto", "chat")
            for streamed in (False, True)
        ]
        # Nothing is asked of the ledger until all are due by this clock, which the broker's may be behind.
        await asyncio.sleep(SHORT_TTL_MS / 1000)
        for model, streamed, response in made:
            for client in reversed(clients):
                follow = {"streamed": streamed, "model": model, "input": "beta", "previous_response_id": response.id}
                await eventually(partial(has_expired, world, client, **follow))
                assert world.called() == NOBODY


@embedded_only
async def test_outage_of_the_ledger_is_said_and_is_never_a_missing_response(world: World, streamed: bool) -> None:
    faults = ScriptedFaults()
    async with faulty_ledger(faults) as ledger, gateway_over(ledger, world.config()) as replica:
        client = replica.client(world.alice)
        living = {model: await ask(client, streamed=streamed, model=model, input="alpha") for model in ("auto", "chat")}
        deleted = await ask(client, streamed=streamed, model="chat", input="alpha")
        await client.responses.delete(deleted.id)
        world.forget()
        faults.leaderless.update(ledger.replica.states())
        ids = [*(response.id for response in living.values()), deleted.id, "resp_random"]
        named: list[dict[str, Any]] = [{"previous_response_id": response_id} for response_id in ids]
        named.append({"conversation": "conv_random"})
        for refused in await asyncio.gather(
            *(ask(client, streamed=streamed, model="auto", input="beta", **selector) for selector in named)
        ):
            assert (refused.status, refused.code) == (503, "ledger_unavailable"), refused.error
        routes = (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items"))
        for status, body in await asyncio.gather(
            *(send_raw(client, method, f"/responses/{name}{below}") for name in ids for method, below in routes)
        ):
            assert (status, b'"ledger_unavailable"' in body) == (503, True), body
        assert sum(len(loopback.recorded()) for loopback in (world.p1, world.p2, world.c)) == 0
        faults.leaderless.clear()
        for model, response in living.items():
            answered = await ask(client, streamed=streamed, model=model, input="beta", previous_response_id=response.id)
            assert answered.text.endswith("heard: alpha | beta")
