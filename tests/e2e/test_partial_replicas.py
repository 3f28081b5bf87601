"""Two service processes on a real broker that hold half of the partitions each: any of them answers for everybody."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
import yaml

from ledger.adapters.http import LedgerClient
from ledger.adapters.rocks import RocksViewStore
from ledger.alias import partition_of
from ledger.answer import Found, Missing, Verdict
from ledger.composition import open_kafka
from ledger.errors import LedgerError, NeedsEveryPartition, Unavailable, Unknown
from ledger.holding import stored_partitions
from ledger.ledger import wall_clock_ms
from ledger.policy import Policy
from ledger.turn import Content, Partition, Scope, Selector, SelectorKind, Turn
from ledger.wire import turn_body
from tests.e2e.replicas import PORTABLE, Deployment, Service, deploy, free_port
from tests.forked import Forked

PARTITION_COUNT = 4
TOKEN = "anybody"  # the token of a test
PRINCIPALS_EACH = 3
"""Principals of a test in each partition."""
BOUND_S = 5.0
"""Far above the second that an unreachable URL may take: no test passes by it, a hang fails."""


def scope(principal: str) -> Scope:
    return Scope(namespace="n", route="default", principal=principal)


def response(principal: str, name: str) -> Selector:
    return Selector(scope=scope(principal), kind=SelectorKind.RESPONSE, id=name)


def turn(principal: str, name: str, *, previous: str | None = None, text: str = "hello") -> Turn:
    return Turn(
        scope=scope(principal),
        event_id=f"event-{name}",
        response_id=name,
        previous_response_id=previous,
        owner=PORTABLE,
        begun_at_ms=wall_clock_ms(),
        content=Content(input=[{"text": text}], output=[{"text": name}]),
    )


def partition(deployment: Deployment, principal: str) -> Partition:
    return partition_of(deployment.alias_key.principal(scope(principal)), PARTITION_COUNT)


def of_partitions(deployment: Deployment, *numbers: int) -> list[str]:
    """Return some principals of each of these partitions; which those are depends on the ledger's key."""
    found: dict[int, list[str]] = {number: [] for number in numbers}
    for principal in map("tenant-{}".format, itertools.count()):
        mine = found.get(partition(deployment, principal), [])
        if len(mine) < PRINCIPALS_EACH:
            mine.append(principal)
        if all(len(those) == PRINCIPALS_EACH for those in found.values()):
            break
    return [principal for those in found.values() for principal in those]


async def deployed(bootstrap: str, directory: Path) -> tuple[Deployment, list[str]]:
    """Return a ledger with an auth file beside it, and principals of all of its partitions."""
    deployment = await deploy(bootstrap, directory, partition_count=PARTITION_COUNT)
    token = {
        "sha256": hashlib.sha256(TOKEN.encode()).hexdigest(),
        "namespace": "n",
        "principals": "*",
        "routes": ["default"],
        "roles": ["router", "reader", "admin", "auditor"],
    }
    (directory / "auth.yaml").write_text(yaml.safe_dump({"tokens": [token]}))
    return deployment, of_partitions(deployment, *range(PARTITION_COUNT))


def partial(deployment: Deployment, name: str, port: int, partitions: str, holders: str) -> Service:
    auth = str(deployment.directory / "auth.yaml")
    options = ("--partitions", partitions, "--holders", holders, "--auth-file", auth)
    return Service(deployment, name, *options, port=port)


@asynccontextmanager
async def running(*services: Service) -> AsyncIterator[None]:
    try:
        await asyncio.gather(*(service.start() for service in services))
        yield
    finally:
        await asyncio.gather(*(service.kill() for service in services))


@asynccontextmanager
async def halves(deployment: Deployment) -> AsyncIterator[tuple[Service, Service]]:
    """Run two processes with half of the partitions each, and one map for both."""
    ports = [free_port(), free_port()]
    holders = f"0-1=http://127.0.0.1:{ports[0]},2-3=http://127.0.0.1:{ports[1]}"
    low = partial(deployment, "low", ports[0], "0-1", holders)
    high = partial(deployment, "high", ports[1], "2-3", holders)
    async with running(low, high):
        yield low, high


def stored(service: Service, kind: str = "view") -> list[Partition]:
    """Return the partitions that a stopped process has rows or contents of."""
    store = RocksViewStore(service.directory / kind, create=False)
    try:
        return list(stored_partitions(store))
    finally:
        store.close()


async def metric(service: Service, name: str) -> float:
    async with service.client(token=TOKEN) as client:
        text = await client.metrics()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


async def test_every_principal_is_written_to_and_read_from_either_half(kafka_bootstrap: str, tmp_path: Path) -> None:
    deployment, principals = await deployed(kafka_bootstrap, tmp_path)
    async with halves(deployment) as (low, high):
        async with low.client(token=TOKEN) as a, high.client(token=TOKEN) as b:
            for principal in principals:
                for number, (writer, reader) in enumerate([(a, b), (b, a), (a, a), (b, b)]):
                    name, previous = f"r{number}", f"r{number - 1}" if number else None
                    assert (await writer.publish(turn(principal, name, previous=previous))).accepted
                    # The first read after a commit, through the other one.
                    assert isinstance(await reader.load(response(principal, name)), Found)
                    found = await reader.history(response(principal, name))
                    assert isinstance(found, Found)
                    assert found.history is not None
                    assert len(found.history.entries) == number + 1
                    assert isinstance(await reader.load(response(principal, "none")), Missing)
        assert await metric(low, 'turnledger_forwarded_total{outcome="answered"}') > 0
        assert await metric(low, "turnledger_partition_held") == 2
        assert [await service.stop() for service in (low, high)] == [0, 0]
        for kind in ("view", "content"):
            assert (stored(low, kind), stored(high, kind)) == ([0, 1], [2, 3])


async def test_readiness_says_which_partitions_are_held(kafka_bootstrap: str, tmp_path: Path) -> None:
    deployment, _ = await deployed(kafka_bootstrap, tmp_path)
    async with halves(deployment) as (low, high), httpx.AsyncClient() as http:
        for service, partitions in ((low, "0-1"), (high, "2-3")):
            answer = await http.get(f"{service.url}/health/ready")
            assert answer.json() == {"ready": True, "partitions": partitions}


async def test_many_parts_of_one_request_are_answered_by_whoever_holds_them(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    deployment, principals = await deployed(kafka_bootstrap, tmp_path)
    async with halves(deployment) as (low, high), low.client(token=TOKEN) as a:
        turns = [
            turn(principal, f"r{number}", previous=f"r{number - 1}" if number else None)
            for principal in principals
            for number in range(3)
        ]
        verdicts = await a.publish_batch(turns)
        assert all(isinstance(verdict, Verdict) and verdict.accepted for verdict in verdicts)
        again = await a.publish_batch(turns)
        assert [v.token for v in again if isinstance(v, Verdict)] == [
            v.token for v in verdicts if isinstance(v, Verdict)
        ]
        found = await a.load_many([response(one.scope.principal, one.response_id) for one in turns])
        assert [one.response_id if isinstance(one, Found) else one for one in found] == [
            one.response_id for one in turns
        ]
        wrong = await a.publish_batch(
            [turn(principal, f"wrong-{principal}", previous="none") for principal in principals]
        )
        assert {one.code.word for one in wrong if isinstance(one, Verdict)} == {"parent_unknown"}
        await high.kill()
        results = await a.publish_batch([turn(principal, "late") for principal in principals])
        for principal, result in zip(principals, results, strict=True):
            if partition(deployment, principal) in (0, 1):
                assert isinstance(result, Verdict)
            else:
                assert isinstance(result, Unavailable)
                assert result.reason == "holder"


async def test_fields_of_errors_are_those_of_the_request_that_was_asked(kafka_bootstrap: str, tmp_path: Path) -> None:
    deployment, _ = await deployed(kafka_bootstrap, tmp_path)
    tight = await open_kafka(deployment.kafka, tmp_path / "all", deployment.alias_key)
    async with tight:
        await tight.set_policy(Policy(lineage_bytes_max=1_000))
    async with halves(deployment) as (low, _), low.client(token=TOKEN) as a:
        near, far = of_partitions(deployment, 0, 1)[0], of_partitions(deployment, 2, 3)[0]
        batch = [turn(near, "r1"), turn(near, "r2"), turn(far, "r1", text="x" * 2_000), turn(near, "r3")]
        body = [msgspec.to_builtins(turn_body(one)) for one in batch]
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}) as http:
            answer = await http.post(f"{low.url}/ledger/v1/turns/batch", json=body)
        results = answer.json()["results"]
        assert [result["status"] for result in results] == [200, 200, 413, 200]
        assert results[2]["error"]["field"] == "turns[2].content"
        assert results[2]["error"]["message"].startswith("turns[2].content: ")
        assert isinstance(await a.load(response(near, "r3")), Found)


async def test_what_spans_partitions_is_whole_or_refused(kafka_bootstrap: str, tmp_path: Path) -> None:
    deployment, principals = await deployed(kafka_bootstrap, tmp_path)
    async with halves(deployment) as (low, high), low.client(token=TOKEN) as a, high.client(token=TOKEN) as b:
        for principal in principals:
            assert (await a.publish(turn(principal, "r1"))).accepted
        # A replay folds the log, and needs no rows.
        for client in (a, b):
            events = [event async for event in client.replay()]
            assert {event["partition"] for event in events} == set(range(PARTITION_COUNT))
            assert len(events) == len(principals)
        assert await a.policy() == await b.policy()
        for client in (a, b):
            with pytest.raises(NeedsEveryPartition) as refused:
                await client.change_policy({"active_ttl_ms": 1_000_000})
            assert "turnledger topics policy" in refused.value.advice
        assert (await b.policy())[1] == 0
        for principal in principals:
            assert (await b.erase(scope(principal))).accepted
            assert not isinstance(await a.load(response(principal, "r1"), strong=True), Found)


async def test_range_of_a_killed_holder_says_so_and_the_others_go_on_until_a_second_takes_over(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    deployment, principals = await deployed(kafka_bootstrap, tmp_path)
    ports = [free_port() for _ in range(3)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    holders = f"0-1={urls[0]},2-3={urls[1]}|{urls[2]}"
    low = partial(deployment, "low", ports[0], "0-1", holders)
    high = partial(deployment, "high", ports[1], "2-3", holders)
    second = partial(deployment, "second", ports[2], "2-3", holders)
    near, far = of_partitions(deployment, 0, 1), of_partitions(deployment, 2, 3)
    async with running(low, high), low.client(token=TOKEN) as a:
        for principal in principals:
            assert (await a.publish(turn(principal, "r1"))).accepted
        await high.kill()
        for principal in far:
            began_s = time.monotonic()
            for asking in (a.publish(turn(principal, "r2")), a.load(response(principal, "r1"))):
                with pytest.raises(Unavailable, match="no replica that holds partitions 2-3") as refused:
                    await asking
                assert refused.value.reason == "holder"
            assert time.monotonic() - began_s < BOUND_S
        for principal in near:
            assert (await a.publish(turn(principal, "r2"))).accepted
        assert await metric(low, 'turnledger_forwarded_total{outcome="unreachable"}') == 2 * len(far)
        async with running(second):
            for principal in far:
                assert isinstance(await a.load(response(principal, "r1")), Found)
                assert (await a.publish(turn(principal, "r2", previous="r1"))).accepted


async def test_maps_that_disagree_are_said_and_nothing_goes_in_circles(kafka_bootstrap: str, tmp_path: Path) -> None:
    deployment, _ = await deployed(kafka_bootstrap, tmp_path)
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    # Each takes the other for the holder of what neither has.
    low = partial(deployment, "low", ports[0], "0", f"1-3={urls[1]}")
    high = partial(deployment, "high", ports[1], "1-2", f"0={urls[0]},3={urls[0]}")
    async with running(low, high), httpx.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}) as http:
        (principal, *_) = of_partitions(deployment, 3)
        for service in (low, high):
            query = {"kind": "response", "id": "r1", "principal": principal}
            answer = await http.get(f"{service.url}/ledger/v1/lookup", params=query)
            assert answer.status_code == 421
            assert answer.json()["error"]["code"] == "not_held"
            assert answer.json()["error"]["partition"] == 3
            assert "--holders" in answer.json()["error"]["message"]
            answer = await http.get(
                f"{service.url}/ledger/v1/lookup", params=query, headers={"turnledger-forwarded": "1"}
            )
            assert (answer.status_code, answer.headers["turnledger-not-served"]) == (421, "not_held")
            assert "the maps of the replicas disagree" in answer.json()["error"]["message"]
            assert await metric(service, 'turnledger_forwarded_total{outcome="disagreed"}') == 1
            lookups = {"selectors": [{"kind": "response", "id": "r1", "principal": principal}]}
            many = await http.post(f"{service.url}/ledger/v1/lookups", json=lookups)
            assert [(one["status"], one["error"]["partition"]) for one in many.json()["results"]] == [(421, 3)]


async def test_other_ranges_after_a_restart_leave_nothing_of_what_was_given_up(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    deployment, principals = await deployed(kafka_bootstrap, tmp_path)
    near, far = of_partitions(deployment, 0, 1), of_partitions(deployment, 2, 3)
    async with halves(deployment) as (low, high):
        async with low.client(token=TOKEN) as a:
            for principal in principals:
                assert (await a.publish(turn(principal, "r1", text=f"said by {principal} and nobody else"))).accepted
        assert [await service.stop() for service in (low, high)] == [0, 0]
        swapped = f"0-1={high.url},2-3={low.url}"
        ports = [int(service.url.rsplit(":", 1)[1]) for service in (low, high)]
        low_now = partial(deployment, "low", ports[0], "2-3", swapped)
        high_now = partial(deployment, "high", ports[1], "0-1", swapped)
        async with running(low_now, high_now):
            async with low_now.client(token=TOKEN) as a, high_now.client(token=TOKEN) as b:
                for principal in principals:
                    for client in (a, b):
                        found = await client.history(response(principal, "r1"))
                        assert isinstance(found, Found)
            assert [await service.stop() for service in (low_now, high_now)] == [0, 0]
        for kind in ("view", "content"):
            assert (stored(low, kind), stored(high, kind)) == ([2, 3], [0, 1])
        assert _texts_on_disk(low.directory, near) == []
        assert _texts_on_disk(high.directory, far) == []


@pytest.mark.timeout(400)
async def test_ranges_are_changed_step_by_step_and_nobody_is_without_a_holder(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    """Partition 1 goes from a and c to b and d, in the steps of docs/operations.md, while turns are published."""
    deployment, principals = await deployed(kafka_bootstrap, tmp_path)
    ports = {name: free_port() for name in "abcd"}
    a, b, c, d = (f"http://127.0.0.1:{ports[name]}" for name in "abcd")
    before, after = f"0-1={a}|{c},2-3={b}|{d}", f"0={a}|{c},1-3={b}|{d}"
    steps = [
        *(("b", "1-3", before), ("d", "1-3", before)),
        *(("a", "0-1", after), ("b", "1-3", after), ("c", "0-1", after), ("d", "1-3", after)),
        *(("a", "0", after), ("c", "0", after)),
    ]
    services = {
        name: partial(deployment, name, ports[name], "0-1" if name in "ac" else "2-3", before) for name in "abcd"
    }
    published: dict[str, int] = dict.fromkeys(principals[::PRINCIPALS_EACH], 0)
    refused: list[LedgerError] = []
    has_ended = asyncio.Event()

    async def publish_forever(principal: str, clients: Sequence[LedgerClient]) -> None:
        entries = itertools.cycle(clients)
        while not has_ended.is_set():
            number = published[principal]
            previous = f"r{number - 1}" if number else None
            try:
                verdict = await next(entries).publish(turn(principal, f"r{number}", previous=previous))
            except (Unknown, Unavailable) as error:
                # One that is being restarted is left by whoever finds another; its outcome is asked for again.
                if isinstance(error, Unavailable) and error.reason == "holder":
                    refused.append(error)
            except LedgerError as error:
                refused.append(error)
            else:
                assert verdict.accepted
                published[principal] += 1
            # Steadily, and not so fast that starting a process takes long on a machine that is busy.
            await asyncio.sleep(0.1)

    try:
        await asyncio.gather(*(service.start() for service in services.values()))
        clients = [service.client(token=TOKEN) for service in services.values()]
        publishing = [asyncio.create_task(publish_forever(principal, clients)) for principal in published]
        for name, partitions, holders in steps:
            assert await services[name].stop() == 0
            services[name] = partial(deployment, name, ports[name], partitions, holders)
            await services[name].start()
        has_ended.set()
        await asyncio.gather(*publishing)
        assert refused == []
        assert min(published.values()) > len(steps)
        for principal, count in published.items():
            for client in clients:
                found = await client.history(response(principal, f"r{count - 1}"))
                assert isinstance(found, Found)
                assert found.history is not None
                assert len(found.history.entries) == count
        for client in clients:
            await client.close()
    finally:
        await asyncio.gather(*(service.kill() for service in services.values()))


def _texts_on_disk(directory: Path, principals: Sequence[str]) -> list[str]:
    """Return whose IDs are in any file of a state directory; contents are compressed."""
    files = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    return [principal for principal in principals if any(principal.encode() in file for file in files)]


@pytest.mark.parametrize(
    ("partitions", "holders", "reason"),
    [
        ("0-4", "", "partitions: the log has the partitions 0 to 3, not 4"),
        ("0-1", "2=http://127.0.0.1:1", "holders: must say who holds partitions 3, which this replica does not hold"),
        ("0-1", "2-4=http://127.0.0.1:1", "holders: the log has the partitions 0 to 3, not 4"),
    ],
)
async def test_ranges_that_do_not_fit_the_log_end_the_process_before_it_makes_anything(
    kafka_bootstrap: str, tmp_path: Path, partitions: str, holders: str, reason: str
) -> None:
    deployment, _ = await deployed(kafka_bootstrap, tmp_path)
    words = [
        "serve", "--port", "0", "--directory", str(tmp_path / "state"),
        "--bootstrap", deployment.kafka.bootstrap, "--prefix", deployment.kafka.prefix,
        "--alias-key-file", str(deployment.key_file), "--partitions", partitions,
        *(("--holders", holders) if holders else ()),
    ]  # fmt: skip
    log = tmp_path / "serve.log"
    process = await asyncio.to_thread(Forked, *words, environ=os.environ, log=log)
    code = await asyncio.to_thread(process.wait, 60)
    process.end()
    assert code == 2, log.read_text()
    assert reason in log.read_text()
    assert not (tmp_path / "state").exists()
