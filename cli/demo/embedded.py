"""The demo on the embedded ledger: one log, two replicas with views of their own, and each rule shown once."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli.connection import in_process
from cli.demo.narrator import Narrator
from cli.demo.trace import Request, read_trace
from cli.demo.traffic import Tally, publish_trace, response
from cli.replay import replay_table
from ledger.adapters.http import LedgerClient
from ledger.adapters.rocks import RocksViewStore
from ledger.answer import Found
from ledger.composition import open_embedded
from ledger.ledger import Ledger, wall_clock_ms
from ledger.table import folded_rows
from ledger.turn import Content, Owner, Partition, Scope, Selector, SelectorKind, Turn

SHORT_TTL_MS = 1_000
"""The shortest lifetime that a policy may give."""
REPLAYED_SHOWN = 14
"""Events of the replay that fit a screen."""


@dataclass(slots=True, kw_only=True)
class EmbeddedDemo:
    """What the steps share."""

    narrator: Narrator
    ledgers: tuple[Ledger, Ledger]
    a: LedgerClient
    b: LedgerClient
    scope: Scope
    requests: list[Request] = field(default_factory=read_trace)
    tally: Tally = field(default_factory=Tally)

    wrong: int = 0
    """Turns not accepted or not found, and rows that differ: nothing, unless the ledger is broken."""

    async def run(self) -> None:
        """Show everything once."""
        for step in (
            self.traffic,
            self.continuation,
            self.conflict,
            self.stale_revision,
            self.duplicate,
            self.expiry,
            self.deletion,
            self.replay,
            self.totals,
        ):
            await step()

    async def traffic(self) -> None:
        count = len(self.requests)
        roots = len({request.root_turn for request in self.requests})
        self.narrator.step(
            f"{count} turns of real traffic",
            f"A slice of a public trace: {roots} conversations, text made up. The replicas take turns in each, so "
            "every continuation arrives where its parent did not. Each answer is looked up there at once.",
        )
        with self.narrator.progress() as bar:
            task = bar.add_task("turns", total=count)
            self.tally = await publish_trace(
                (self.a, self.b), self.requests, lambda _: self.scope, lambda: bar.advance(task)
            )
        self.narrator.facts(self.tally.facts())
        self.wrong += self.tally.not_found + (count - self.tally.accepted)

    async def continuation(self) -> None:
        native = max((r for r in self.requests if r.native), key=lambda request: request.depth)
        portable = self.deepest()
        self.narrator.step(
            "Who owns this response?",
            "The state of a native turn lives at one provider only, and every replica knows which. A portable turn can "
            "be continued anywhere: its whole history is here, branch by branch.",
        )
        for request in (native, portable):
            replica, name = (self.b, "replica B") if request.depth % 2 == 0 else (self.a, "replica A")
            self.narrator.said("", f"{request.response_id}, turn {request.depth + 1} of its conversation")
            self.narrator.answered(name, await replica.load(response(self.scope, request.response_id)))
        self.narrator.said("history", await self.history_of(portable.response_id))
        one, other = self.branches()
        self.narrator.said("", f"{one.response_id} and {other.response_id} both continue {one.previous_response_id}")
        for branch in (one, other):
            self.narrator.said("history", await self.history_of(branch.response_id))

    async def conflict(self) -> None:
        taken = self.deepest()
        self.narrator.step(
            "A conflict: another owner claims a response",
            f"{taken.response_id} belongs to {taken.target}. The first owner wins, on every replica, for ever.",
        )
        claimed = self.turn("claim", taken.response_id, owner=Owner(native=True, target="delta"))
        self.narrator.decided("replica B", await self.b.publish(claimed))
        self.narrator.answered("replica A", await self.a.load(response(self.scope, taken.response_id)))

    async def stale_revision(self) -> None:
        self.narrator.step(
            "A stale revision: compare-and-set on a conversation",
            "Both replicas read the same revision. The one that commits second is told, reads again and then succeeds.",
        )
        conversation = Selector(scope=self.scope, kind=SelectorKind.CONVERSATION, id="conv_demo")
        created = await self.a.create_conversation(conversation, metadata={"topic": "demo"})
        read = created.revision
        for name, replica, turn_name, expected in (
            ("replica A", self.a, "first", read),
            ("replica B", self.b, "late", read),
        ):
            turn = self.turn(
                turn_name, f"resp_{turn_name}", conversation_id=conversation.id, expected_revision=expected
            )
            self.narrator.decided(name, await replica.publish(turn))
        again = await self.b.load(conversation)
        assert isinstance(again, Found), "it was created above"
        retried = self.turn("retried", "resp_late", conversation_id=conversation.id, expected_revision=again.revision)
        self.narrator.decided("replica B", await self.b.publish(retried))

    async def duplicate(self) -> None:
        self.narrator.step(
            "A duplicate: the answer was lost, the router sends again",
            "The same event_id has one effect, however often and wherever it arrives. The first verdict stands.",
        )
        turn = self.turn("once", "resp_once")
        self.narrator.decided("replica A", await self.a.publish(turn))
        self.narrator.decided("replica B", await self.b.publish(turn))

    async def expiry(self) -> None:
        self.narrator.step(
            "An expired ID",
            "The policy gives the next turn one second to live. The log's own clock decides, so all replicas agree, "
            "and 'gone' stays different from 'never existed'.",
        )
        policy, _ = await self.a.policy()
        await self.a.change_policy({"active_ttl_ms": SHORT_TTL_MS})
        short = response(self.scope, "resp_short")
        await self.a.publish(self.turn("short", short.id))
        self.narrator.answered("at once", await self.b.load(short))
        await self.a.change_policy({"active_ttl_ms": policy.active_ttl_ms})
        await asyncio.sleep(SHORT_TTL_MS / 1000)
        self.narrator.answered("1 s later", await self.b.load(short))
        self.narrator.answered("unheard of", await self.b.load(response(self.scope, "resp_never")))

    async def deletion(self) -> None:
        leaf = self.deepest()
        parent = next(request for request in self.requests if request.turn == leaf.parent_turn)
        self.narrator.step(
            "A deletion in the middle of a conversation",
            f"{parent.response_id} is deleted. What continues it keeps its whole history.",
        )
        self.narrator.said("before", await self.history_of(leaf.response_id))
        deleted = response(self.scope, parent.response_id)
        self.narrator.decided("replica A", await self.a.delete_response(deleted))
        self.narrator.answered("replica B", await self.b.load(deleted, strong=True))
        self.narrator.said("after", await self.history_of(leaf.response_id))

    async def replay(self) -> None:
        self.narrator.step(
            "Replay: the log again, with every verdict",
            "A replay folds the log from its beginning into rows of its own. It says what every replica decided.",
        )
        began_s = time.perf_counter()
        events = [event async for event in self.a.replay()]
        elapsed_s = time.perf_counter() - began_s
        self.narrator.table(replay_table(events[-REPLAYED_SHOWN:], dated=False))
        verdicts = Counter(event["verdict"] for event in events)
        self.narrator.facts(
            {
                "events": f"{len(events)} in {elapsed_s:.2f} s, the last {REPLAYED_SHOWN} are shown",
                "verdicts": ", ".join(f"{count} {word}" for word, count in verdicts.most_common()),
            }
        )

    async def totals(self) -> None:
        self.narrator.step("Totals", "Two views, folded from one log by themselves, compared row by row.")
        await asyncio.gather(*(ledger.confirm() for ledger in self.ledgers))
        rows = [dict(folded_rows(ledger.store, Partition(0))) for ledger in self.ledgers]
        differing = sum(rows[0].get(key) != rows[1].get(key) for key in rows[0].keys() | rows[1].keys())
        self.wrong += differing
        self.narrator.facts(
            {
                "rows": f"{len(rows[0])} on replica A, {len(rows[1])} on replica B, {differing} differ",
                "published": self.tally.rate(),
                "figures": "make bench measures commits, look-ups and rebuilds one by one",
            }
        )

    def deepest(self) -> Request:
        """Return the last turn of the longest portable chain."""
        return max((r for r in self.requests if not r.native), key=lambda request: request.depth)

    def branches(self) -> tuple[Request, Request]:
        """Return two portable turns that continue the same one, as deep as there are any."""
        seen: dict[int, Request] = {}
        for request in sorted(self.requests, key=lambda request: -request.depth):
            if request.parent_turn is not None and not request.native:
                if request.parent_turn in seen:
                    return seen[request.parent_turn], request
                seen[request.parent_turn] = request
        raise AssertionError("the slice has branches")

    def turn(self, name: str, response_id: str, **fields: Any) -> Turn:
        """Return a small turn of the demo's own."""
        owner = fields.pop("owner", Owner(native=False, target="alpha"))
        content = Content(
            input=[{"type": "message", "role": "user", "content": f"the {name} turn"}],
            output=[{"type": "message", "role": "assistant", "content": "taken"}],
        )
        return Turn(
            scope=self.scope,
            event_id=f"event_{name}",
            response_id=response_id,
            owner=owner,
            content=None if owner.native else content,
            begun_at_ms=wall_clock_ms(),
            **fields,
        )

    async def history_of(self, response_id: str) -> str:
        """Say how long the history of a response is."""
        answer = await self.b.history(response(self.scope, response_id))
        assert isinstance(answer, Found), "the demo published it"
        assert answer.history is not None, "it was asked for"
        size = sum(len(str(item["content"])) for item in answer.history.items())
        return f"{len(answer.history.entries)} turns, {size:,} characters, oldest first, nothing left out"


@asynccontextmanager
async def two_replicas(directory: Path) -> AsyncIterator[tuple[Ledger, Ledger]]:
    """Open the embedded ledger in ``directory`` and a second replica of it, with a view of its own.

    Each takes commits, folds the log and answers by itself, as two processes on Kafka do.
    """
    first = await open_embedded(directory)
    with tempfile.TemporaryDirectory(prefix="turnledger-") as other:
        try:
            second = Ledger(first.log, first.contents, RocksViewStore(Path(other) / "view"), first.alias_key)
            try:
                await second.start()
                yield first, second
            finally:
                await second.close()
        finally:
            await first.close()


async def demonstrate(directory: Path, scope: Scope, narrator: Narrator) -> int:
    """Run the whole demo on a new ledger in ``directory``; return how many answers were wrong, which is 0."""
    narrator.open(
        "turnledger",
        "Two replicas of a router, A and B, share one ledger. What one learns, the other answers at once: who owns a "
        "response, what its history is, and what became of it.",
    )
    async with (
        two_replicas(directory) as ledgers,
        in_process(ledgers[0], scope.namespace) as a,
        in_process(ledgers[1], scope.namespace) as b,
    ):
        demo = EmbeddedDemo(narrator=narrator, ledgers=ledgers, a=a, b=b, scope=scope)
        await demo.run()
        return demo.wrong
