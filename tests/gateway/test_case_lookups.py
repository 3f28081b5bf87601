"""Case A26: what a request costs the ledger."""

from __future__ import annotations

from typing import Any

import pytest
from openai import AsyncOpenAI

from ledger.adapters.embedded import EmbeddedContentStore
from tests.gateway.asking import ask
from tests.gateway.world import EmbeddedWorld, World, embedded_only, native_or_portable


async def cost(world: World, **labels: str) -> tuple[float, float]:
    """Return the look-ups that both replicas were asked for, and the bytes of history that they have read."""
    lookups = [await replica.metric("turnledger_lookups_total", **labels) for replica in world.replicas]
    histories = [await replica.metric("turnledger_gateway_history_bytes_total") for replica in world.replicas]
    return sum(lookups), sum(histories)


async def cost_of(world: World, client: AsyncOpenAI, **request: Any) -> tuple[float, float]:
    """Return what a request costs."""
    before = await cost(world)
    answered = await ask(client, **request)
    assert answered.status == 200, answered.error
    after = await cost(world)
    return after[0] - before[0], after[1] - before[1]


@native_or_portable
async def test_request_without_selectors_costs_no_look_up(
    world: World, streamed: bool, model: str, target: str
) -> None:
    fields: list[dict[str, Any]] = [
        {},
        {"store": False},
        {"extra_headers": {"Idempotency-Key": "key-1"}},
        {"previous_response_id": None},
        {"input": [{"role": "user", "content": "alpha"}, {"role": "assistant", "content": "beta"}]},
    ]
    before = await cost(world)
    for more in fields:
        for replica in (1, 2):
            request = {"model": model, "input": "alpha", **more}
            if "extra_headers" in more:
                request["extra_headers"] = {"Idempotency-Key": f"key-{replica}"}
            answered = await ask(world.client(replica), streamed=streamed, **request)
            assert answered.status == 200, answered.error
    assert await cost(world) == before


@pytest.mark.parametrize("store", [True, False], ids=["stored", "unstored"])
async def test_native_continuation_reads_ownership_once_and_no_history(
    world: World, streamed: bool, store: bool
) -> None:
    previous = (await ask(world.client(1), streamed=streamed, model="auto", input="alpha")).id
    responses = await cost(world, kind="response")
    for count, replica in enumerate((2, 1, 2), 1):
        request = {"streamed": streamed, "model": "auto", "input": "beta", "previous_response_id": previous}
        assert await cost_of(world, world.client(replica), store=store, **request) == (1, 0)
        assert (await cost(world, kind="response"))[0] == responses[0] + count


@embedded_only
async def test_native_turn_stores_nothing_of_what_was_said(world: World, streamed: bool) -> None:
    assert isinstance(world, EmbeddedWorld)
    assert world.ledger is not None
    contents, partitions = world.ledger.contents, world.ledger.replica.states()
    assert isinstance(contents, EmbeddedContentStore)

    def stored() -> int:
        return sum(len(list(contents.listed(partition))) for partition in partitions)

    first = await ask(world.client(1), streamed=streamed, model="auto", input="alpha")
    await ask(world.client(2), streamed=streamed, model="auto", input="beta", previous_response_id=first.id)
    assert stored() == 0
    await ask(world.client(1), streamed=streamed, model="chat", input="alpha")
    assert stored() == 1


@pytest.mark.parametrize("by_conversation", [False, True], ids=["response", "conversation"])
async def test_portable_continuation_reads_its_own_history_once(
    world: World, streamed: bool, by_conversation: bool
) -> None:
    named: dict[str, Any] = {"conversation": "conv_a"} if by_conversation else {}
    first = await ask(world.client(1), streamed=streamed, model="chat", input="alpha", **named)
    selector = named or {"previous_response_id": first.id}
    sizes = []
    for _ in range(2):
        lookups, history_bytes = await cost_of(
            world, world.client(2), streamed=streamed, model="chat", input="beta", store=False, **selector
        )
        assert lookups <= 2, "whose it is, and its history"
        sizes.append(history_bytes)
    assert sizes[0] == sizes[1] > 0
