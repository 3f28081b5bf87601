"""Two gateways that hold half of the principals each: the official SDK may talk to either, and to the wrong one too."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import APIStatusError, AsyncOpenAI

from cli.loopback.server import Loopback, running_loopback
from ledger.alias import partition_of
from ledger.turn import Scope
from tests.e2e.replicas import Deployment, deploy
from tests.gateway.asking import ask, ask_and_leave, eventually
from tests.gateway.world import GatewayProcess, Replica, base_config, config_from, kafka_options, native_or_portable

PARTITION_COUNT = 4
HALVES = ("0-1", "2-3")
NAMES = ("p1", "p2", "c")


@dataclass(slots=True, kw_only=True)
class Pair:
    """Two gateways, the principals that each holds, and the targets behind both."""

    processes: list[GatewayProcess]
    replicas: list[Replica]
    principals: list[str]
    """One that the first holds, and one of the second."""
    loopbacks: dict[str, Loopback]

    def clients(self, holder: int) -> tuple[AsyncOpenAI, AsyncOpenAI]:
        """Return the clients of a principal on the gateway that holds it, and on the wrong one."""
        principal = self.principals[holder]
        return self.replicas[holder].client(principal), self.replicas[1 - holder].client(principal)

    def calls(self) -> int:
        return sum(len(loopback.recorded()) for loopback in self.loopbacks.values())


def principals_of(deployment: Deployment) -> list[str]:
    found: dict[int, str] = {}
    for principal in map("tenant-{}".format, itertools.count()):
        scope = Scope(namespace="tests", route="default", principal=principal)
        number = partition_of(deployment.alias_key.principal(scope), PARTITION_COUNT)
        found.setdefault(number // 2, principal)
        if len(found) == 2:
            return [found[0], found[1]]
    raise AssertionError("unreachable")


@pytest.fixture
async def pair(kafka_bootstrap: str, upstream_ports: Mapping[str, int], tmp_path: Path) -> AsyncIterator[Pair]:
    deployment = await deploy(kafka_bootstrap, tmp_path, partition_count=PARTITION_COUNT)
    principals = principals_of(deployment)
    async with AsyncExitStack() as stack:
        loopbacks = {
            name: await stack.enter_async_context(running_loopback(name, port=upstream_ports[name])) for name in NAMES
        }
        # The map needs the ports of both.
        environ = {"TURNLEDGER_HOLDERS": ""}
        processes = []
        for number, prefers in enumerate(("p1", "p2")):
            config = config_from(base_config(upstream_ports, prefers=prefers, principals=principals), tmp_path, prefers)
            options = (*kafka_options(deployment), "--partitions", HALVES[number])
            processes.append(GatewayProcess(config, tmp_path / prefers, *options, environ=environ))
        environ["TURNLEDGER_HOLDERS"] = ",".join(
            f"{half}=http://127.0.0.1:{process.port}" for half, process in zip(HALVES, processes, strict=True)
        )
        for process in processes:
            stack.callback(process.stop)
            process.launch()
        for process in processes:
            await asyncio.to_thread(process.await_ready)
        replicas = [process.replica() for process in processes]
        for replica in replicas:
            stack.push_async_callback(replica.close)
        yield Pair(processes=processes, replicas=replicas, principals=principals, loopbacks=loopbacks)


@native_or_portable
async def test_chain_goes_on_at_the_wrong_gateway_as_at_the_right_one(
    pair: Pair, model: str, target: str, streamed: bool
) -> None:
    for holder in (0, 1):
        right, wrong = pair.clients(holder)
        previous: str | None = None
        said: list[str] = []
        for number, client in enumerate((right, wrong, wrong, right, wrong)):
            before = pair.calls()
            said.append(f"word-{number}")
            named: dict[str, str] = {} if previous is None else {"previous_response_id": previous}
            answer = await ask(client, streamed=streamed, model=model, input=said[-1], **named)
            assert answer.text.endswith(f"heard: {' | '.join(said)}")
            assert pair.calls() == before + 1, "one model is called, by the gateway that holds the principal"
            previous = answer.id
        assert previous is not None
        for client in (right, wrong):
            assert (await client.responses.retrieve(previous)).id == previous
        await wrong.responses.delete(previous)
        with pytest.raises(APIStatusError) as gone:
            await right.responses.retrieve(previous)
        assert gone.value.status_code == 404
        assert await pair.replicas[1 - holder].metric("turnledger_forwarded_total", outcome="answered") > 0


async def test_conversation_is_made_changed_and_continued_at_the_wrong_gateway(pair: Pair) -> None:
    right, wrong = pair.clients(1)
    made = await wrong.conversations.create(metadata={"topic": "one"})
    await wrong.conversations.items.create(
        made.id, items=[{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "first"}]}]
    )
    answer = await ask(wrong, streamed=True, model="chat", input="second", conversation=made.id)
    assert answer.text == "c heard: first | second"
    listed = [[item.id async for item in client.conversations.items.list(made.id)] for client in (right, wrong)]
    assert listed[0] == listed[1]
    assert len(listed[0]) == 3
    assert (await right.conversations.retrieve(made.id)).metadata == {"topic": "one"}


async def test_client_that_leaves_the_wrong_gateway_ends_its_turn(pair: Pair) -> None:
    right, wrong = pair.clients(0)
    request = {"model": "chat", "input": "!pause(200) !say(a b c d e f g h i j k l m n o p q r s t)"}
    seen = await ask_and_leave(wrong, events=1, **request)

    async def has_ended() -> bool:
        try:
            return (await right.responses.retrieve(seen[0]["response"]["id"])).status == "cancelled"
        except APIStatusError:
            # Not stored yet.
            return False

    await eventually(has_ended)
    assert await pair.replicas[1].metric("turnledger_forwarded_total", outcome="left") == 1


async def test_principals_of_a_gateway_that_died_are_refused_and_the_others_go_on(pair: Pair) -> None:
    right, _ = pair.clients(0)
    first = await ask(right, streamed=False, model="chat", input="alpha")
    _, wrong = pair.clients(1)
    pair.processes[1].stop(kill=True)
    calls = pair.calls()
    with pytest.raises(APIStatusError) as refused:
        await wrong.responses.create(model="chat", input="alpha")
    assert refused.value.status_code == 503
    assert isinstance(refused.value.body, dict)
    assert (refused.value.body["code"], refused.value.body["reason"]) == ("ledger_unavailable", "holder")
    assert pair.calls() == calls, "no model runs for what cannot be stored"
    followed = await ask(right, streamed=True, model="chat", input="beta", previous_response_id=first.id)
    assert followed.text == "c heard: alpha | beta"
    assert [model.id async for model in wrong.models.list()], "what needs no state is answered by any gateway"
