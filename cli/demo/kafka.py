"""The demo on Kafka: two service processes, killed in turn under load, and nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import secrets
import signal
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from cli.demo.narrator import Narrator
from cli.demo.processes import ServiceProcess
from cli.demo.trace import Request, read_trace
from cli.demo.traffic import publish_trace, response
from cli.topics import format_ledger
from ledger.adapters.http import LedgerClient
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.adapters.kafka_topics import create_topics
from ledger.answer import Answer, Found
from ledger.bodies import LOOKUPS_MAX
from ledger.composition import alias_key_in
from ledger.errors import LedgerError, RetryableError
from ledger.ledger import wall_clock_ms
from ledger.turn import Owner, Scope, Selector, Turn

PARTITION_COUNT = 8
PRINCIPALS = tuple(f"user-{number}" for number in range(8))
"""Each lies in one partition, so that several have work."""
NAMESPACE, ROUTE = "demo", "default"
WRITERS = 16
"""Clients that publish while a replica is killed."""
KILL_AFTER = 200
"""Acknowledged turns after which a replica is killed: by then every client has a commit on the way."""


@dataclass(slots=True, kw_only=True)
class Load:
    """What writers were told while their replica died."""

    acknowledged: list[Turn] = field(default_factory=list)
    uncertain: list[Turn] = field(default_factory=list)
    """Sent and not answered."""
    is_heavy: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is time to kill."""


@dataclass(slots=True, kw_only=True)
class KafkaDemo:
    """Two service processes and a client of each."""

    narrator: Narrator
    services: tuple[ServiceProcess, ServiceProcess]
    clients: tuple[LedgerClient, LedgerClient]
    requests: list[Request] = field(default_factory=read_trace)
    published: list[Selector] = field(default_factory=list)
    lost: int = 0
    """Acknowledged turns and look-ups that a replica did not answer: the demo fails unless it stays 0."""

    async def run(self) -> None:
        """Show everything once."""
        await self.traffic()
        for victim in (0, 1):
            await self.kill_under_load(victim)
        await self.compare()

    async def traffic(self) -> None:
        count = len(self.requests)
        self.narrator.step(
            f"{count} turns of real traffic through two processes",
            "What one accepts is looked up on the other the moment the commit returns, and continued there.",
        )
        with self.narrator.progress() as bar:
            task = bar.add_task("turns", total=count)
            tally = await publish_trace(self.clients, self.requests, scope_of, lambda: bar.advance(task))
        self.narrator.facts(tally.facts())
        self.published += [response(scope_of(request), request.response_id) for request in self.requests]
        self.lost += tally.not_found + (count - tally.accepted)

    async def kill_under_load(self, victim: int) -> None:
        service, other = self.services[victim], self.services[1 - victim]
        self.narrator.step(
            f"Kill {service.name} under load",
            f"{WRITERS} clients publish through {service.name}. It is killed with SIGKILL in the middle of it.",
        )
        load = Load()
        writers = [asyncio.create_task(self._write(victim, number, load)) for number in range(WRITERS)]
        await load.is_heavy.wait()
        await service.kill()
        await asyncio.gather(*writers)
        self.narrator.said("", f"{len(load.acknowledged)} acknowledged, {len(load.uncertain)} sent and not answered")
        acknowledged = [response(turn.scope, turn.response_id) for turn in load.acknowledged]
        await self._count_found(1 - victim, acknowledged, "of the acknowledged")
        verdicts = Counter([(await self.clients[1 - victim].publish(turn)).code.word for turn in load.uncertain])
        if verdicts:
            told = ", ".join(f"{count} {word}" for word, count in verdicts.most_common())
            self.narrator.said(other.name, f"the unanswered again, with the same event_id: {told}")
        self.published += acknowledged + [response(turn.scope, turn.response_id) for turn in load.uncertain]
        began_s = time.perf_counter()
        await service.start()
        self.narrator.said(service.name, f"started again, serving after {time.perf_counter() - began_s:.1f} s")
        await self._count_found(victim, self.published, "of all so far")

    async def _write(self, victim: int, number: int, load: Load) -> None:
        """Publish one turn after the other until the replica is gone."""
        for count in itertools.count():
            name = f"{victim}_{number:02d}_{count:06d}"
            scope = Scope(namespace=NAMESPACE, route=ROUTE, principal=PRINCIPALS[number % len(PRINCIPALS)])
            turn = Turn(
                scope=scope,
                event_id=f"event_{name}",
                response_id=f"resp_{name}",
                owner=Owner(native=True, target="alpha"),
                begun_at_ms=wall_clock_ms(),
            )
            try:
                verdict = await self.clients[victim].publish(turn)
            except RetryableError:
                load.uncertain.append(turn)
                load.is_heavy.set()
                return
            assert verdict.accepted, "every name is new"
            load.acknowledged.append(turn)
            if len(load.acknowledged) == KILL_AFTER:
                load.is_heavy.set()

    async def _count_found(self, replica: int, selectors: list[Selector], what: str) -> None:
        answers = await look_up(self.clients[replica], selectors)
        missing = sum(not isinstance(answer, Found) for answer in answers)
        self.lost += missing
        self.narrator.said(
            self.services[replica].name, f"answers {len(answers) - missing} {what} {len(answers)}, {missing} lost"
        )

    async def compare(self) -> None:
        self.narrator.step(
            "The same answers everywhere", "Every response of this demo, asked of both: owner, state, offset, times."
        )
        answers = [await look_up(client, self.published) for client in self.clients]
        differing = sum(one != other for one, other in zip(*answers, strict=True))
        self.lost += differing
        self.narrator.facts({"answers": f"{len(self.published)} compared, {differing} differ"})


def scope_of(request: Request) -> Scope:
    """Return whose a traced request is; one conversation is one principal's."""
    return Scope(namespace=NAMESPACE, route=ROUTE, principal=PRINCIPALS[request.root_turn % len(PRINCIPALS)])


async def look_up(client: LedgerClient, selectors: list[Selector]) -> list[Answer]:
    """Look up many IDs. Raises the first error."""
    answers: list[Answer] = []
    for start in range(0, len(selectors), LOOKUPS_MAX):
        for answer in await client.load_many(selectors[start : start + LOOKUPS_MAX], strong=True):
            if isinstance(answer, LedgerError):
                raise answer
            answers.append(answer)
    return answers


async def demonstrate_kafka(kafka: KafkaSettings, narrator: Narrator, *, once: bool) -> int:
    """Run the demo with topics and services of its own; return how much was lost, which is 0.

    Without ``once`` both services stay until SIGINT or SIGTERM.
    """
    stopping = asyncio.Event()
    me = asyncio.current_task()
    assert me is not None, "this is a coroutine"
    loop = asyncio.get_running_loop()
    # As Ctrl-C does, so that the services are stopped in order.
    loop.add_signal_handler(signal.SIGTERM, me.cancel)
    async with AsyncExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnledger-")))
        token = secrets.token_hex(16)
        narrator.open(
            "turnledger on Kafka",
            f"Two service processes, A and B, share the topics {kafka.prefix}.* and nothing else.",
        )
        arguments = await prepare(kafka, state, token)
        services = tuple(
            ServiceProcess(name=f"service {name}", directory=state / name, arguments=arguments) for name in "AB"
        )
        for service in services:
            stack.push_async_callback(service.stop)
        await asyncio.gather(*(service.start() for service in services))
        clients = [await stack.enter_async_context(LedgerClient(service.url, token=token)) for service in services]
        demo = KafkaDemo(narrator=narrator, services=(services[0], services[1]), clients=(clients[0], clients[1]))
        await demo.run()
        if not once:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stopping.set)
            narrator.close(
                "Both services stay until Ctrl-C. Ask either:\n\n"
                + "\n".join(f"  {curl_line(service.url, token, demo.published[-1])}" for service in services)
                + "\n"
            )
            await stopping.wait()
        return demo.lost


async def prepare(kafka: KafkaSettings, state: Path, token: str) -> tuple[str, ...]:
    """Create topics, alias key and auth file; return the arguments that services take."""
    key_file, auth_file = state / "alias.key", state / "auth.yaml"
    alias_key = alias_key_in(key_file)
    await create_topics(kafka, partition_count=PARTITION_COUNT, replication_factor=1)
    await format_ledger(kafka, alias_key)
    entry = {
        "sha256": hashlib.sha256(token.encode()).hexdigest(),
        "namespace": NAMESPACE,
        "principals": "*",
        "routes": [ROUTE],
        "roles": ["router", "reader", "auditor", "admin"],
    }
    # YAML reads JSON.
    auth_file.write_text(json.dumps({"tokens": [entry]}))
    return (
        *("--bootstrap", kafka.bootstrap, "--prefix", kafka.prefix),
        *("--alias-key-file", str(key_file), "--auth-file", str(auth_file), "--log-level", "warning"),
    )


def curl_line(url: str, token: str, selector: Selector) -> str:
    """Return a command that asks a service who owns a response."""
    query = urlencode({"kind": "response", "id": selector.id, "principal": selector.scope.principal})
    return f"curl -s -H 'authorization: Bearer {token}' '{url}/ledger/v1/lookup?{query}'"
