"""Cases A5 and A6: what a client was told is what the ledger has, whether the log fails or the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from api.gateway.sse import FrameCutter
from broker.launcher import Cluster
from cli.loopback.server import Loopback, running_loopback
from ledger.adapters.memory import AppendFate, AppendOutcome
from ledger.composition import open_kafka
from ledger.ledger import Ledger
from ledger.settings import LedgerSettings
from ledger.turn import Partition
from tests.api.faults import DELIVERED, LOST, REFUSED, SETTINGS, ScriptedFaults, faulty_ledger
from tests.e2e.replicas import deploy
from tests.gateway.asking import Asked, ask, ask_and_leave, checked_stream, eventually
from tests.gateway.conftest import NAMES
from tests.gateway.test_case_concurrency import one_at_a_time
from tests.gateway.world import Replica, World, gateway_over

LATE = AppendFate(outcome=AppendOutcome.LATE, delay_s=SETTINGS.commit_timeout_s + 0.1)
"""Not acknowledged in time, and in the log a little later."""
UNACKNOWLEDGED = AppendFate(outcome=AppendOutcome.UNACKNOWLEDGED)
SLOWLY = "!say(one two three four) !pause(100) "
"""Makes a stream whose deltas come one by one."""
both_kinds = pytest.mark.parametrize(("model", "owner"), [("auto", "p1"), ("chat", "c")])


class FailingLog(ScriptedFaults):
    """A log that works until a test breaks it."""

    def __init__(self) -> None:
        super().__init__()
        self.first: AppendFate = DELIVERED
        """Of the next append only."""
        self.then: AppendFate = DELIVERED

    def fail(self, first: AppendFate) -> None:
        """Let the next append fail so, and refuse all that follow."""
        self.first, self.then = first, REFUSED

    def heal(self) -> None:
        """Work again."""
        self.first = self.then = DELIVERED

    def append(self, partition: Partition) -> AppendFate:
        fate, self.first = self.first, self.then
        return fate


@pytest.fixture
async def stage(upstream_ports: Mapping[str, int], tmp_path: Path) -> AsyncIterator[World]:
    """The upstreams alone: a test brings its own ledger."""
    async with AsyncExitStack() as stack:
        p1, p2, c = [
            await stack.enter_async_context(running_loopback(name, port=upstream_ports[name])) for name in NAMES
        ]
        yield World(p1=p1, p2=p2, c=c, ports=upstream_ports, directory=tmp_path)


@pytest.fixture
def log() -> FailingLog:
    return FailingLog()


@pytest.fixture
async def ledger(log: FailingLog) -> AsyncIterator[Ledger]:
    settings = replace(SETTINGS, abandon_retry_s=0.05, tick_interval_s=3600.0)
    async with faulty_ledger(log, settings=settings) as opened:
        yield opened


@pytest.fixture
async def replica(stage: World, ledger: Ledger) -> AsyncIterator[Replica]:
    async with gateway_over(ledger, stage.config()) as running:
        yield running


async def ask_while(client: AsyncOpenAI, *, streamed: bool, breaks: Callable[[], object], **request: Any) -> Asked:
    """Ask, and let ``breaks`` happen while the answer is under way: in a stream, after its first delta."""
    if not streamed:
        breaks()
        return await ask(client, streamed=False, **request)
    raw, seen = b"", FrameCutter()
    async with client.responses.with_streaming_response.create(stream=True, **request) as stream:
        has_broken = False
        async for chunk in stream.http_response.aiter_raw():
            raw += chunk
            kinds = [frame.event for frame in seen.feed(chunk)]
            if not has_broken and "response.output_text.delta" in kinds:
                assert not any(kind in ("response.completed", "response.failed") for kind in kinds)
                breaks()
                has_broken = True
    return checked_stream(raw)


def assert_told_failed(answer: Asked, *, streamed: bool) -> None:
    """Check that no success was said: an error terminal after the deltas, or an error body."""
    assert b"response.completed" not in answer.raw
    if not streamed:
        assert (answer.status, answer.response) == (503, None)
        assert answer.code == "ledger_unavailable"
        return
    assert answer.types.count("response.output_text.delta") == 4
    assert answer.types[-1] == "response.failed"
    assert answer.response is not None
    assert answer.response.status == "failed"
    assert answer.response.error is not None
    assert "ledger" in answer.response.error.message


# A5, the log fails


@both_kinds
@pytest.mark.parametrize("fate", [REFUSED, LATE], ids=["refused", "late"])
async def test_turn_that_the_log_did_not_take_is_told_as_failed_and_cannot_be_continued(
    stage: World, ledger: Ledger, log: FailingLog, replica: Replica, streamed: bool, fate: AppendFate, model: str,
    owner: str,
) -> None:  # fmt: skip
    client = replica.client(stage.alice)
    first = await ask(client, streamed=streamed, model=model, input="alpha")
    follow = {"model": model, "previous_response_id": first.id}
    failed = await ask_while(client, streamed=streamed, breaks=lambda: log.fail(fate), input=f"{SLOWLY} beta", **follow)
    assert_told_failed(failed, streamed=streamed)
    log.heal()
    await abandoned(ledger)
    stage.forget()
    if streamed:
        answer = await ask(client, streamed=streamed, model=model, input="gamma", previous_response_id=failed.id)
        assert (answer.status, answer.code) == (400, "previous_response_not_found")
        assert sum(stage.called().values()) == 0
    assert (await ask(client, streamed=streamed, input="gamma", **follow)).text == f"{owner} heard: alpha | gamma"


@pytest.mark.parametrize(
    ("model", "fate"), [("chat", LOST), ("chat", LATE), ("auto", LATE)], ids=["chat-lost", "chat-late", "native-late"]
)
async def test_turn_that_was_told_as_failed_is_not_the_conversations_head(
    stage: World, ledger: Ledger, log: FailingLog, replica: Replica, streamed: bool, fate: AppendFate, model: str
) -> None:
    client = replica.client(stage.alice)
    named = {"model": model, "conversation": (await client.conversations.create()).id}
    first = await ask(client, streamed=streamed, input="alpha", **named)
    failed = await ask_while(client, streamed=streamed, breaks=lambda: log.fail(fate), input=f"{SLOWLY} beta", **named)
    assert_told_failed(failed, streamed=streamed)
    if fate is LATE:
        # It is the head now, for as long as the log does not take its abandonment.
        await eventually(lambda: has_items(client, named["conversation"], 4))
    log.heal()
    await abandoned(ledger)
    assert await has_items(client, named["conversation"], 2)
    third = await ask(client, streamed=streamed, input="gamma", **named)
    assert third.text == first.text + " | gamma"


@both_kinds
async def test_turn_whose_acknowledgement_was_lost_has_completed(
    stage: World, log: FailingLog, replica: Replica, streamed: bool, model: str, owner: str
) -> None:
    client = replica.client(stage.alice)
    log.first = UNACKNOWLEDGED
    first = await ask(client, streamed=streamed, model=model, input="alpha")
    second = await ask(client, streamed=streamed, model=model, input="beta", previous_response_id=first.id)
    assert second.text == f"{owner} heard: alpha | beta"


async def test_turn_that_needs_a_lock_is_refused_while_the_log_fails_and_nobody_is_called(
    stage: World, ledger: Ledger, log: FailingLog, streamed: bool
) -> None:
    async with gateway_over(ledger, stage.config(one_at_a_time)) as replica:
        client = replica.client(stage.alice)
        named = {"model": "chat", "conversation": (await client.conversations.create()).id}
        log.fail(REFUSED)
        refused = await ask(client, streamed=streamed, input="alpha", **named)
        assert (refused.status, refused.code) == (503, "ledger_unavailable")
        assert sum(stage.called().values()) == 0
        log.heal()
        assert (await ask(client, streamed=streamed, input="beta", **named)).text == "c heard: beta"


async def abandoned(ledger: Ledger) -> None:
    """Return when every turn that was given up has been given up in the log."""

    async def none_waiting() -> bool:
        return ledger.committer.abandonments_waiting() == 0

    await eventually(none_waiting)


async def has_items(client: AsyncOpenAI, conversation: str, count: int) -> bool:
    """Return whether a conversation has so many items."""
    return len((await client.conversations.items.list(conversation)).data) == count


# A5, on a broker


@pytest.fixture(scope="module")
def fragile_cluster() -> Iterator[Cluster]:
    """One broker that a test may pause; every test leaves it running."""
    with Cluster() as cluster:
        yield cluster


async def test_turn_during_a_pause_of_the_broker_is_told_as_failed_and_is_not_the_head_afterwards(
    stage: World, fragile_cluster: Cluster, tmp_path: Path, streamed: bool
) -> None:
    deployment = await deploy(fragile_cluster.bootstrap, tmp_path, partition_count=1)
    settings = LedgerSettings(commit_timeout_s=0.7, abandon_retry_s=0.1)
    async with (
        await open_kafka(deployment.kafka, tmp_path / "own", deployment.alias_key, settings=settings) as ledger,
        gateway_over(ledger, stage.config()) as replica,
    ):
        client = replica.client(stage.alice)
        for model in ("auto", "chat"):
            named = {"model": model, "conversation": f"conv_{model}"}
            first = await ask(client, streamed=streamed, input="alpha", **named)
            try:
                failed = await ask_while(
                    client,
                    streamed=streamed,
                    breaks=lambda: fragile_cluster.pause(0),
                    input=f"{SLOWLY} beta",
                    **named,
                )
            finally:
                fragile_cluster.resume(0)
            assert_told_failed(failed, streamed=streamed)
            await abandoned(ledger)
            third = await eventually(partial(completed, client, streamed=streamed, input="gamma", **named))
            assert third.text == first.text + " | gamma"


async def completed(client: AsyncOpenAI, *, streamed: bool, **request: Any) -> Asked | None:
    """Return the answer, None for one that is no success."""
    answer = await ask(client, streamed=streamed, **request)
    return None if answer.response is None or answer.response.status != "completed" else answer


# A6, the client leaves


async def left(loopback: Loopback) -> None:
    """Return when the last caller of an upstream has left it."""

    async def has_left() -> bool:
        return bool(loopback.recorded()) and loopback.recorded()[-1].left

    await eventually(has_left)


@both_kinds
async def test_response_whose_client_left_mid_stream_is_cancelled_and_cannot_be_continued(
    world: World, model: str, owner: str, streamed: bool
) -> None:
    events = await ask_and_leave(
        world.client(1), events=5, model=model, input="!say(one two three) !pause(60000) alpha"
    )
    assert "response.output_text.delta" in [event["type"] for event in events]
    response_id = events[0]["response"]["id"]
    await left(world.p1 if owner == "p1" else world.c)
    world.forget()

    async def refused_as_unfinished() -> bool:
        # Until the end is stored nothing is known of it, which is refused as well.
        answer = await ask(
            world.client(2), streamed=streamed, model=model, input="beta", previous_response_id=response_id
        )
        assert answer.status == 400
        assert answer.code in ("previous_response_unfinished", "previous_response_not_found")
        return (answer.code, answer.reason) == ("previous_response_unfinished", "cancelled")

    await eventually(refused_as_unfinished)
    assert world.called() == {"p1": 0, "p2": 0, "c": 0}
    if owner == "c":
        for client in (world.client(1), world.client(2)):
            told = await client.responses.retrieve(response_id)
            assert told.status == "cancelled"
            assert told.output_text == "one "


@both_kinds
async def test_response_whose_client_left_anywhere_has_completed_or_cannot_be_continued(
    world: World, model: str, owner: str
) -> None:
    for count in range(1, 13):
        events = await ask_and_leave(world.client(1), events=count, model=model, input="!say(one two three) alpha")
        response_id = events[0]["response"]["id"]
        follow = partial(ask, world.client(2), streamed=False, model=model, previous_response_id=response_id)

        async def decided(follow: Callable[..., Awaitable[Asked]] = follow) -> Asked | None:
            answer = await follow(input="beta")
            return None if answer.code == "previous_response_not_found" else answer

        answer = await eventually(decided)
        if answer.response is None:
            assert (answer.status, answer.code, answer.reason) == (400, "previous_response_unfinished", "cancelled")
            assert "response.completed" not in [event["type"] for event in events]
        else:
            assert answer.text == f"{owner} heard: alpha | beta"


@pytest.mark.parametrize("model", ["auto", "chat"])
async def test_turn_whose_client_left_is_no_part_of_its_conversation(world: World, streamed: bool, model: str) -> None:
    named = {"model": model, "conversation": (await world.client(1).conversations.create()).id}
    first = await ask(world.client(1), streamed=streamed, input="alpha", **named)
    loopback = world.p1 if model == "auto" else world.c
    world.forget()
    if streamed:
        await ask_and_leave(world.client(1), events=3, input="!pause(60000) !say(one two) beta", **named)
    else:
        leaving = asyncio.create_task(ask(world.client(1), streamed=False, input="!hang beta", **named))
        await eventually(lambda: _called(loopback))
        leaving.cancel()
    await left(loopback)
    third = await ask(world.client(2), streamed=streamed, input="gamma", **named)
    assert third.text == first.text + " | gamma"
    assert len((await world.client(1).conversations.items.list(named["conversation"])).data) == 4


@pytest.mark.parametrize("directive", ["!cut(2)", "!fail", '!half !tool(f, {"a": "long enough"})'])
@both_kinds
async def test_answer_that_its_target_did_not_finish_is_stored_as_what_it_is(
    world: World, streamed: bool, model: str, owner: str, directive: str
) -> None:
    answer = await ask(world.client(1), streamed=streamed, model=model, input=f"one two three four {directive}")
    assert b"response.completed" not in answer.raw
    if answer.response is None:
        assert answer.status in (500, 502)
    elif answer.response.status == "failed":
        followed = await ask(
            world.client(2), streamed=streamed, model=model, input="beta", previous_response_id=answer.id
        )
        assert (followed.status, followed.code) == (400, "previous_response_unfinished")
        assert followed.reason == "failed"
        assert sum(world.called().values()) == 1
    else:
        assert answer.response.status == "incomplete"
    # The target is asked again, also by those who have seen it fail.
    again = await ask(world.client(1), streamed=streamed, model="chat" if owner == "c" else "only-p1", input="again")
    assert again.text == f"{owner} heard: again"


async def _called(loopback: Loopback) -> bool:
    return len(loopback.recorded()) > 0
