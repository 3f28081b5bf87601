"""Prometheus metrics of a worker, served by a thread of its own. Labels are words of the code and partition numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ledger.errors import InvalidInput
from processors.composition import Worker
from processors.settings import ProcessSettings
from processors.slot import Phase


class WorkerCollector(Collector):
    """Reads a worker's numbers when they are asked for."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        yield from self._lanes()
        worker = self._worker
        counters: list[tuple[str, str, float]] = [
            ("turnledger_process_records", "Records folded and written to tables.", worker.materializer.records_count),
            (
                "turnledger_process_restores",
                "Partitions restored from their table.",
                worker.materializer.restores_count,
            ),
            ("turnledger_process_fenced", "Writers replaced by another worker's.", worker.materializer.fenced_count),
            ("turnledger_process_ticks", "Clock ticks appended for idle partitions.", worker.materializer.ticks_count),
            ("turnledger_process_facts", "Lifecycle facts read by the eraser.", worker.eraser.facts_count),
            ("turnledger_process_erased", "Contents erased.", worker.eraser.erased_count),
            ("turnledger_process_orphans", "Contents found that nothing refers to.", worker.upkeep.orphans_count),
            ("turnledger_process_rolled", "Records written to begin a new segment.", worker.upkeep.rolled_count),
            ("turnledger_process_checkpoints", "Checkpoints compared.", worker.watcher.checkpoints_count),
            ("turnledger_process_reports", "Reports compared.", worker.watcher.reports_count),
            ("turnledger_process_alarms", "Checkpoints and reports that differ.", worker.watcher.alarms_count),
            ("turnledger_process_rows_removed", "Partitions removed from disk.", worker.leftovers.removed_count),
        ]
        for name, text, value in counters:
            yield CounterMetricFamily(name, text, value=value)
        silent = GaugeMetricFamily("turnledger_process_silent_reporters", "Reporters that are silent, per partition.")
        silent.add_metric([], len(worker.watcher.silent()))
        yield silent

    def _lanes(self) -> Iterator[Metric]:
        position = GaugeMetricFamily("turnledger_process_position", "Next offset to fold.", labels=["partition"])
        lag = GaugeMetricFamily("turnledger_process_lag", "Offsets between table and log.", labels=["partition"])
        rows = GaugeMetricFamily("turnledger_process_rows", "Rows of the table.", labels=["partition"])
        running = GaugeMetricFamily("turnledger_process_running", "1: the table is kept up.", labels=["partition"])
        for status in self._worker.materializer.statuses():
            labels = [str(status.partition)]
            position.add_metric(labels, status.position)
            rows.add_metric(labels, status.rows_count)
            running.add_metric(labels, status.phase is Phase.RUNNING)
            if status.end is not None:
                lag.add_metric(labels, max(0, status.end - status.position))
        yield from (position, lag, rows, running)


def serve_metrics(settings: ProcessSettings, worker: Worker) -> Callable[[], None]:
    """Serve ``/metrics`` until the function that is returned is called. Raises ``InvalidInput``."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(WorkerCollector(worker))
    try:
        server, thread = start_http_server(settings.process_port, settings.process_host, registry)
    except OSError as error:
        raise InvalidInput("process_port", f"{settings.process_port} cannot be listened on: {error}") from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
