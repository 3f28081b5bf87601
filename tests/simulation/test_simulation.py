"""Seeded runs of several replicas under every fault at once, and that a run can be repeated.

``SIMULATION_SEEDS=500`` runs that many seeds instead of the default; ``python -m tests.simulation --seed 17`` runs one.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import Counter

import pytest

from ledger.answer import Found, Gone, Missing
from ledger.verdict import Code
from tests.simulation.run import SimulationFailure, simulate

SEEDS_DEFAULT = 12
"""About a second each."""
SEEDS = [str(number) for number in range(int(os.environ.get("SIMULATION_SEEDS", SEEDS_DEFAULT)))]


@functools.cache
def seen_in(seed: str) -> Counter[object]:
    """Run a seed; return how often each verdict, answer, failure and fault occurred in it."""
    world = simulate(seed)
    seen: Counter[object] = Counter(outcome.code for _, outcome in world.evidence.outcomes.values())
    seen.update((read.mode, type(read.answer)) for read in world.evidence.reads)
    seen.update(attempt.failure for sent in world.evidence.sent for attempt in sent.attempts)
    for word in ("crashes and loses 0", "crashes and loses", "pauses", "closes", "broker clock is off", "time passes"):
        seen[word] = sum(word in line for line in world.trace_lines)
    return seen


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds(seed: str) -> None:
    assert seen_in(seed)


def test_the_runs_reach_every_fault_answer_and_kind_of_verdict() -> None:
    seen = sum((seen_in(str(number)) for number in range(SEEDS_DEFAULT)), Counter[object]())
    expected: set[object] = {
        *((mode, answer) for mode in ("strong", "history") for answer in (Found, Gone, Missing, type(None))),
        ("weak", Found),
        *("unknown", "unavailable", "lost"),
        *("crashes and loses 0", "crashes and loses", "pauses", "closes", "broker clock is off", "time passes"),
        *(Code.ACCEPTED, Code.DUPLICATE, Code.RESPONSE_EXISTS, Code.OWNER_CONFLICT, Code.REVISION_CONFLICT),
        *(Code.IDEMPOTENCY_CONFLICT, Code.KEY_IN_PROGRESS, Code.TOO_LATE, Code.ALIAS_GONE, Code.PARENT_GONE),
        *(Code.PARENT_UNKNOWN, Code.PARENT_NOT_PORTABLE, Code.PARENT_UNFINISHED, Code.CONVERSATION_UNKNOWN),
        *(Code.CONVERSATION_GONE, Code.KEPT, Code.LIMIT_EXCEEDED, Code.PRINCIPAL_ERASED, Code.CONTENT_STALE),
        *(Code.RESPONSE_UNKNOWN, Code.ITEM_UNKNOWN, Code.ITEM_CONFLICT, Code.QUARANTINED),
    }
    assert {what for what in expected if not seen[what]} == set()


def test_one_seed_is_one_trace() -> None:
    first, second = simulate("same"), simulate("same")
    assert first.trace_lines == second.trace_lines
    assert len(first.trace_lines) > 100


def test_a_trace_does_not_depend_on_the_process() -> None:
    def digest_of_another_process(hash_seed: str) -> str:
        command = [sys.executable, "-m", "tests.simulation", "--seed", "same"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        return run.stdout.split()[-1]

    here = simulate("same").trace_digest
    assert {digest_of_another_process(hash_seed) for hash_seed in ("1", "2")} == {here}


def test_a_failure_says_how_to_repeat_it() -> None:
    failure = SimulationFailure("17", ["check_reads: it lives"], ["first line", "last line"])
    assert "check_reads: it lives" in str(failure)
    assert "last line" in str(failure)
    assert "python -m tests.simulation --seed 17" in str(failure)
