"""Prometheus metrics of one process, in a registry of their own. Labels are words of the code and partition numbers,
never an ID."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Awaitable, Iterator, Mapping
from typing import Protocol, TypeVar, runtime_checkable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from api.errors import status_and_body
from ledger.answer import Answer, Verdict
from ledger.errors import LedgerError, StoreFailed
from ledger.ledger import Ledger
from ledger.log import Record
from ledger.turn import Partition, Position, SelectorKind
from ledger.verdict import Outcome

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
TIME_BUCKETS_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.0, 5.0)
"""From a commit on the embedded log to the deadline of one that waits for a broker's new leader."""

T = TypeVar("T", bound=Verdict | None)


@runtime_checkable
class Measured(Protocol):
    """A view store that knows about how large it is."""

    def approximate_bytes(self) -> int: ...

    def approximate_rows(self) -> int: ...


class CopyStatus(Protocol):
    """Where a copy of the contents stands."""

    @property
    def positions(self) -> Mapping[Partition, Position]: ...

    @property
    def ends(self) -> Mapping[Partition, Position]: ...

    @property
    def rebuilt_count(self) -> int: ...

    @property
    def problem(self) -> str | None: ...


@runtime_checkable
class Copied(Protocol):
    """A content store that reads from a copy of its own."""

    def status(self) -> CopyStatus: ...


@runtime_checkable
class Supervised(Protocol):
    """A log whose producers are replaced when they are stuck."""

    @property
    def retired_producer_count(self) -> int: ...


class Metrics:
    """What a process counts. Made before its ledger is opened, so that ``folded`` can be given to it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._folded = Counter(
            "turnledger_records_folded",
            "Records folded by this process, by verdict.",
            ["verdict"],
            registry=self.registry,
        )
        self._appends = Counter(
            "turnledger_appends",
            "Commits asked of this process, by verdict, or by the error that they ended with.",
            ["verdict"],
            registry=self.registry,
        )
        self._lookups = Counter(
            "turnledger_lookups", "Look-ups asked of this process.", ["kind", "outcome"], registry=self.registry
        )
        self._forwarded = Counter(
            "turnledger_forwarded",
            "Requests for partitions of other replicas, by how sending them on ended.",
            ["outcome"],
            registry=self.registry,
        )
        # Looking a child up takes four times as long as counting with it.
        self._folded_as, self._appended_as, self._looked_up_as = (
            functools.cache(counter.labels) for counter in (self._folded, self._appends, self._lookups)
        )
        self._commit_time = Histogram(
            "turnledger_commit_seconds",
            "From the request of a commit to its verdict.",
            buckets=TIME_BUCKETS_S,
            registry=self.registry,
        )
        self._barrier_time = Histogram(
            "turnledger_barrier_seconds",
            "From the request of a partition's end to the view having reached it.",
            buckets=TIME_BUCKETS_S,
            registry=self.registry,
        )

    def folded(self, _: Record, outcome: Outcome) -> None:
        """Count an outcome of the fold; give this to the ledger as ``on_outcome``."""
        self._folded_as(outcome.code.word).inc()

    def watch(self, ledger: Ledger) -> None:
        """Show the state of this ledger whenever the metrics are read, and how long its barriers take."""
        self.registry.register(_LedgerState(ledger))
        ledger.barrier.on_passed = self._barrier_time.observe

    async def commit(self, committing: Awaitable[T]) -> T:
        """Await a commit, and count how it ended and how long it took."""
        began_s = time.perf_counter()
        try:
            verdict = await committing
        except LedgerError as error:
            self._appended_as(status_and_body(error)[1].code).inc()
            raise
        self._commit_time.observe(time.perf_counter() - began_s)
        self._appended_as("waiting" if verdict is None else verdict.code.word).inc()
        return verdict

    async def lookup(self, kind: SelectorKind, loading: Awaitable[Answer]) -> Answer:
        """Await a look-up and count how it ended."""
        try:
            answer = await loading
        except LedgerError as error:
            self._looked_up_as(kind.name.lower(), status_and_body(error)[1].code).inc()
            raise
        self._looked_up_as(kind.name.lower(), type(answer).__name__.lower()).inc()
        return answer

    def forwarded(self, outcome: str) -> None:
        """Count what became of a request that was sent on: a word of the code."""
        self._forwarded.labels(outcome).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _LedgerState(Collector):
    """What the ledger knows already; read when it is asked for."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        yield from self._partitions()
        yield from self._process()
        if isinstance(self._ledger.contents, Copied):
            yield from _copied(self._ledger.contents.status())
        # A disk that fails takes away what is read from it, not the metrics that say so.
        with contextlib.suppress(StoreFailed):
            yield from self._stored()

    def _partitions(self) -> Iterator[Metric]:
        position = GaugeMetricFamily("turnledger_position", "Next offset that the view folds.", labels=["partition"])
        lag = GaugeMetricFamily(
            "turnledger_lag", "Offsets between the view and the highest end seen.", labels=["partition"]
        )
        quarantined = CounterMetricFamily(
            "turnledger_quarantined", "Records that no build may give a meaning.", labels=["partition"]
        )
        stopped = GaugeMetricFamily(
            "turnledger_partition_stopped", "1: the partition is not served until somebody acts.", labels=["partition"]
        )
        clock = GaugeMetricFamily(
            "turnledger_partition_clock_seconds", "The partition clock, in seconds since 1970.", labels=["partition"]
        )
        behind = GaugeMetricFamily(
            "turnledger_partition_clock_behind_seconds",
            "From the partition clock to this process's wall clock; negative: the partition clock is ahead.",
            labels=["partition"],
        )
        held = GaugeMetricFamily(
            "turnledger_partition_held", "1: this process holds the partition.", labels=["partition"]
        )
        for number in range(self._ledger.replica.partition_count):
            held.add_metric([str(number)], float(number in self._ledger.replica.held))
        now_ms = self._ledger.now_ms()
        for partition, state in self._ledger.replica.states().items():
            label = [str(partition)]
            clock.add_metric(label, state.rows.meta.clock_ms / 1000)
            behind.add_metric(label, (now_ms - state.rows.meta.clock_ms) / 1000)
            position.add_metric(label, state.rows.position)
            lag.add_metric(label, max(0, state.end_seen - state.rows.position))
            quarantined.add_metric(label, state.rows.meta.quarantined)
            stopped.add_metric(label, float(state.stopped is not None))
        yield from (held, position, lag, quarantined, stopped, clock, behind)

    def _process(self) -> Iterator[Metric]:
        ledger = self._ledger
        yield CounterMetricFamily(
            "turnledger_tail_reopened",
            "Times that a silent tail was opened anew.",
            value=ledger.replica.tail_reopened_count,
        )
        if isinstance(ledger.log, Supervised):
            yield CounterMetricFamily(
                "turnledger_producers_retired",
                "Producers of events that were given up and replaced.",
                value=ledger.log.retired_producer_count,
            )
        yield GaugeMetricFamily(
            "turnledger_waiters",
            "Commits that wait for their verdict, and reads that wait for the view.",
            value=ledger.replica.pending_count(),
        )
        yield GaugeMetricFamily(
            "turnledger_ready", "1: the process may get traffic.", value=float(not ledger.not_ready_reason())
        )

    def _stored(self) -> Iterator[Metric]:
        ledger = self._ledger
        yield GaugeMetricFamily(
            "turnledger_abandonments_waiting",
            "Abandonments kept on disk until they can be written.",
            value=ledger.committer.abandonments_waiting(),
        )
        if isinstance(ledger.store, Measured):
            yield GaugeMetricFamily(
                "turnledger_view_bytes", "About how many bytes the view takes.", value=ledger.store.approximate_bytes()
            )
            yield GaugeMetricFamily(
                "turnledger_view_rows", "About how many rows the view has.", value=ledger.store.approximate_rows()
            )


def _copied(status: CopyStatus) -> Iterator[Metric]:
    position = GaugeMetricFamily(
        "turnledger_content_position", "Next offset that the copy of the contents reads.", labels=["partition"]
    )
    lag = GaugeMetricFamily(
        "turnledger_content_lag", "Offsets between the copy and the end last asked for.", labels=["partition"]
    )
    for partition, copied_to in status.positions.items():
        position.add_metric([str(partition)], copied_to)
        if partition in status.ends:
            lag.add_metric([str(partition)], max(0, status.ends[partition] - copied_to))
    yield from (position, lag)
    yield GaugeMetricFamily(
        "turnledger_content_followed",
        "1: the copy follows the topic of the contents.",
        value=float(status.problem is None),
    )
    yield CounterMetricFamily(
        "turnledger_content_rebuilt",
        "Partitions whose copy was thrown away and made again.",
        value=status.rebuilt_count,
    )
