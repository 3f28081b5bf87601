"""That the checkers can fail: each test breaks the real code in one way that others have shipped, and is caught."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

import ledger.fold
import ledger.fold_turns
import ledger.ledger
import ledger.outbox
import ledger.partition
import ledger.query
import ledger.replica
from ledger.barrier import Barrier
from ledger.commit import Committer
from ledger.errors import Unavailable, Unknown
from ledger.event import TurnAbandoned, TurnCompleted
from ledger.fold_rules import ACCEPTED, Step
from ledger.lifecycle import Lifecycle
from ledger.log import Appended, Record
from ledger.rows import Kind, NodeRow
from ledger.table import Rows
from ledger.turn import Offset, Partition, Position
from ledger.verdict import Code, Fact, Outcome
from tests.simulation import world
from tests.simulation.faults import CrashableStore
from tests.simulation.run import SimulationFailure, simulate
from tests.simulation.world import Topic

SEEDS_MAX = 40
"""A defect that so many seeds do not show would not be shown by the default run either."""


class StaleBarrier(Barrier):
    """Readers share an end that was asked for before they came."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._asked: dict[Partition, tuple[float, Position]] = {}

    async def _read_index(self, partition: Partition, timeout_s: float) -> Position:
        now_s = asyncio.get_running_loop().time()
        asked_s, end = self._asked.get(partition, (float("-inf"), Position(0)))
        if now_s - asked_s > 1.0:
            end = await super()._read_index(partition, timeout_s)
            self._asked[partition] = (now_s, end)
        return end


class NoBarrier(Barrier):
    """Whatever the view has is taken for the truth."""

    async def pass_through(self, partition: Partition, *, timeout_s: float) -> None:
        if not self._replica.rows(partition).meta.ledger_id:
            await super().pass_through(partition, timeout_s=timeout_s)


class EndlessFreshness(Barrier):
    """A continuation look-up is answered from the view however old it is."""

    async def pass_through(self, partition: Partition, *, timeout_s: float) -> None:
        await super().pass_through(partition, timeout_s=timeout_s)
        self._replica.state(partition).confirmed_at_s = float("inf")


class HopefulCommitter(Committer):
    """A timeout is taken for success."""

    async def _append(self, partition: Partition, event_id: str, *arguments: Any) -> tuple[Offset, Outcome]:
        try:
            return await super()._append(partition, event_id, *arguments)
        except Unknown:
            return Offset(self._replica.rows(partition).position), Outcome(code=Code.ACCEPTED)


class ForgetfulTopic(Topic):
    """An unclean election: the newest record goes after its writer was told that it is durable."""

    def land(self, partition: Partition, key: bytes, value: bytes | None, appended_at_ms: int) -> Appended:
        appended = super().land(partition, key, value, appended_at_ms)
        if appended.offset % 20 == 19:
            asyncio.get_running_loop().call_later(0.3, self._forget, partition, appended.offset)
        return appended

    def _forget(self, partition: Partition, offset: Offset) -> None:
        if self.end(partition) == offset + 1:
            self._records[partition].pop()


class TornStore(CrashableStore):
    """The position survives a crash that takes back the rows it was written with."""

    def after_crash(self, writes_lost: int) -> CrashableStore:
        newest = {key: row for key, row in self.copy().scan(b"", b"\xff" * 64) if key[2:3] == Kind.META}
        left = super().after_crash(writes_lost)
        left.copy_from(newest)
        return left


def _fold_without_event_ids(rows: Rows, record: Record) -> tuple[Outcome, list[Fact]]:
    outcome, facts = ledger.fold.fold(rows, record)
    if outcome.event_id is not None:
        rows.delete(Kind.EVENT, outcome.event_id)
    return outcome, facts


def _turn_without_compare_and_set(step: Step, event: TurnCompleted) -> Outcome:
    return _turn_completed(step, replace(event, expected_revision=None))


def _abandonment_without_effect(step: Step, event: TurnAbandoned) -> Outcome:
    return ACCEPTED


def _walk_without_the_root(rows: Rows, offset: int) -> list[tuple[int, NodeRow]]:
    nodes = _walk(rows, offset)
    return nodes[1:] if len(nodes) > 1 else nodes


def _queue_of_some_replicas(lifecycle: Lifecycle) -> None:
    if next(_count) % 2:
        _run_queue(lifecycle)


async def _refused_after_the_append(committer: Committer, event_id: str, *arguments: Any) -> tuple[Offset, Outcome]:
    try:
        return await _folded(committer, event_id, *arguments)
    except Unknown as error:
        raise Unavailable("deadline", str(error)) from None


_turn_completed = ledger.fold_turns.turn_completed
_walk = ledger.query.walk
_run_queue = Lifecycle.run_queue
_folded = Committer._folded
_count = itertools.count()


@dataclass(frozen=True, slots=True)
class Defect:
    """Where something else is put, and what a checker must say of it."""

    owner: Any
    name: str
    broken: Callable[..., Any]
    caught: str
    weathers: tuple[str, ...] = ()
    seed: int = 0
    """One that is known to show it: tried first, since finding one took up to a minute."""


DEFECTS = {
    "end offset asked for earlier": Defect(ledger.ledger, "Barrier", StaleBarrier, "check_reads", seed=5),
    "no barrier": Defect(ledger.ledger, "Barrier", NoBarrier, "check_reads"),
    "unbounded staleness": Defect(
        ledger.ledger, "Barrier", EndlessFreshness, "check_reads: weak read", ("laggy", "silent"), seed=30
    ),
    "success from a timeout": Defect(
        ledger.ledger, "Committer", HopefulCommitter, "check_nothing_acknowledged_is_lost"
    ),
    "unavailable although written": Defect(
        Committer, "_folded", _refused_after_the_append, "check_unavailable_means_not_written"
    ),
    "acknowledged record lost": Defect(world, "Topic", ForgetfulTopic, "log_diverged", seed=5),
    "position without its rows": Defect(world, "CrashableStore", TornStore, "check_rows_are_equal", seed=36),
    "event IDs forgotten": Defect(ledger.partition, "fold", _fold_without_event_ids, "has its effect a second time"),
    "no compare-and-set": Defect(
        ledger.fold_turns, "turn_completed", _turn_without_compare_and_set, "expected revision"
    ),
    "last owner wins": Defect(Step, "judge_claim", lambda *_: None, "claims a response that lives"),
    "abandonment without effect": Defect(
        ledger.fold_turns, "turn_abandoned", _abandonment_without_effect, "check_reads", seed=18
    ),
    "abandonments not kept": Defect(
        ledger.outbox.Outbox, "put", lambda *_: None, "check_abandoned", ("cut_off",), seed=3
    ),
    "shorter history": Defect(ledger.query, "walk", _walk_without_the_root, "its history is"),
    "queue by replica": Defect(Lifecycle, "run_queue", _queue_of_some_replicas, "check_rows_are_equal", seed=2),
    "leaked waiter": Defect(ledger.replica.Replica, "forget", lambda *_: None, "waiters although nobody waits"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_broken_code_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    defect = DEFECTS[name]
    monkeypatch.setattr(defect.owner, defect.name, defect.broken)
    for number in (defect.seed, *range(SEEDS_MAX)):
        try:
            simulate(f"broken {number}", weathers=defect.weathers)
        except SimulationFailure as failure:
            if any(defect.caught in violation for violation in failure.violations):
                return
    pytest.fail(f"{SEEDS_MAX} seeds did not show: {name}")
