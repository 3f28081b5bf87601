"""Case A14: what came first is what the log says, not what any clock says."""

from __future__ import annotations

from pathlib import Path

from openai import AsyncOpenAI

from ledger.composition import open_embedded
from ledger.ledger import wall_clock_ms
from ledger.policy import HOUR_MS
from tests.gateway.asking import ask
from tests.gateway.world import World, embedded_only, gateway_over

WORDS = ("one", "two", "three", "four", "five")


def heard_after(index: int) -> str:
    """Return what the model has heard with this turn."""
    return f"c heard: {' | '.join(WORDS[: index + 1])}"


async def in_conversation(client: AsyncOpenAI, conversation_id: str) -> list[str]:
    """Return the user's texts of a conversation in the order of its list."""
    listed = client.conversations.items.list(conversation_id, order="asc")
    items = [item.to_dict() async for item in listed]
    return [item["content"][0]["text"] for item in items if item["role"] == "user"]  # type: ignore[index]


async def test_turns_of_a_replica_whose_clock_is_an_hour_behind_come_after_what_was_before(
    world: World, streamed: bool
) -> None:
    async with world.another(now_ms=lambda: wall_clock_ms() - HOUR_MS) as late:
        clients = [world.client(1), late.client(world.alice)]
        created_at, previous = [], None
        for index, word in enumerate(WORDS):
            client = clients[index % 2]
            in_conv = await ask(client, streamed=streamed, model="chat", input=word, conversation="conv_a")
            chained = await ask(client, streamed=streamed, model="chat", input=word, previous_response_id=previous)
            assert in_conv.response is not None
            created_at.append(in_conv.response.created_at)
            previous = chained.id
            assert in_conv.text == chained.text == heard_after(index)
        assert created_at != sorted(created_at)
        for client in (*clients, world.client(2)):
            assert await in_conversation(client, "conv_a") == list(WORDS)


@embedded_only
async def test_five_turns_of_one_second_keep_their_order_when_the_clock_steps_back(
    world: World, tmp_path: Path, streamed: bool
) -> None:
    now_ms = wall_clock_ms()
    async with (
        await open_embedded(tmp_path / "stepping", now_ms=lambda: now_ms) as ledger,
        gateway_over(ledger, world.config(), now_ms=lambda: now_ms) as replica,
    ):
        client = replica.client(world.alice)
        previous = None
        for index, word in enumerate(WORDS):
            in_conv = await ask(client, streamed=streamed, model="chat", input=word, conversation="conv_a")
            chained = await ask(client, streamed=streamed, model="chat", input=word, previous_response_id=previous)
            previous = chained.id
            assert in_conv.text == chained.text == heard_after(index)
            if word == "two":
                now_ms -= HOUR_MS
        assert await in_conversation(client, "conv_a") == list(WORDS)
        newest_first = [item.id async for item in client.conversations.items.list("conv_a")]
        oldest_first = [item.id async for item in client.conversations.items.list("conv_a", order="asc")]
        assert newest_first == oldest_first[::-1]
