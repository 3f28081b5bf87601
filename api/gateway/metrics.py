"""What the gateway counts, besides what every process with a ledger does. Labels are words of the code and names of the
configuration, never an ID."""

from __future__ import annotations

import functools
from collections.abc import Awaitable
from typing import TypeVar

from prometheus_client import Counter, Histogram

from api.metrics import Metrics
from ledger.answer import Answer, Entry, Found, Verdict
from ledger.turn import SelectorKind

V = TypeVar("V", bound=Verdict | None)
HELD_BUCKETS_S = (
    0.00025, 0.0005, 0.00075, 0.001, 0.00125, 0.0015, 0.002, 0.0025, 0.003, 0.0035, 0.004, 0.005, 0.006, 0.008, 0.012,
    0.016, 0.024, 0.032, 0.048, 0.064, 0.125, 0.25, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
"""Fine where a commit usually ends: every client waits so long, and the aim of 3 ms at the median is a bound."""


class GatewayMetrics:
    """Counters in the registry of the process's ``Metrics``."""

    def __init__(self, metrics: Metrics) -> None:
        self._ledger = metrics
        registry = metrics.registry
        self._requests = Counter(
            "turnledger_gateway_requests",
            "Requests for a response, by what was done with them and how they ended.",
            ["mode", "outcome"],
            registry=registry,
        )
        self._calls = Counter(
            "turnledger_gateway_calls", "Calls to targets, by how they ended.", ["target", "outcome"], registry=registry
        )
        # Looking a child up takes four times as long as counting with it.
        self._requests_as, self._calls_as = (
            functools.cache(counter.labels) for counter in (self._requests, self._calls)
        )
        self._history_bytes = Counter(
            "turnledger_gateway_history_bytes", "Stored bytes of the histories that were read.", registry=registry
        )
        self._held = Histogram(
            "turnledger_gateway_terminal_held_seconds",
            "How long a terminal event or body waited for its turn to be durable.",
            buckets=HELD_BUCKETS_S,
            registry=registry,
        )

    async def lookup(self, kind: SelectorKind, loading: Awaitable[Answer]) -> Answer:
        """Await a look-up and count it."""
        return await self._ledger.lookup(kind, loading)

    async def lookup_entry(
        self, kind: SelectorKind, loading: Awaitable[tuple[Answer, Entry | None]]
    ) -> tuple[Answer, Entry | None]:
        """Await a look-up of one turn and count it."""
        entries: list[Entry | None] = []

        async def answer() -> Answer:
            found, entry = await loading
            entries.append(entry)
            return found

        return await self.lookup(kind, answer()), entries[0]

    async def commit(self, committing: Awaitable[V]) -> V:
        """Await a commit and count it."""
        return await self._ledger.commit(committing)

    def history_read(self, answer: Answer) -> None:
        """Count the stored bytes of a history that was read."""
        if isinstance(answer, Found) and answer.history is not None:
            sizes = (entry.content.size_bytes for entry in answer.history.entries if entry.content is not None)
            self._history_bytes.inc(sum(sizes))

    def called(self, target: str, outcome: str) -> None:
        """Count a call: ``outcome`` is ``answered``, ``refused`` or why it failed."""
        self._calls_as(target, outcome).inc()

    def served(self, mode: str, outcome: str) -> None:
        """Count a request: ``mode`` is ``native``, ``portable`` or ``refused``."""
        self._requests_as(mode, outcome).inc()

    def held(self, seconds: float) -> None:
        """Observe how long a terminal was held."""
        self._held.observe(seconds)
