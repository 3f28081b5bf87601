"""Measure everything in one run and write the report: ``python -m benchmarks [--quick] [--only PART]``."""

from __future__ import annotations

import argparse
import secrets
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import uvloop
from rich.console import Console

from benchmarks import baseline, gateway, in_process, over_http, processors, report
from benchmarks.measure import Added, Figure
from broker.launcher import Cluster
from ledger.ledger import Ledger

COMMITS = 20_000
REBUILT = 150_000
PROCESSED = 200_000
PARTS = ("ledger", "processors", "gateway")
GATEWAY_CALLS = 1_000
BROKER = "Kafka 4 on the same machine, one broker"
console = Console()


async def run_ledger(bootstrap: str, directory: Path, *, scale: float) -> list[Figure]:
    """Return all figures of the ledger; ``scale`` shortens the run."""
    commits, rebuilt = int(COMMITS * scale), int(REBUILT * scale)
    settings = await in_process.prepare_kafka(bootstrap, f"bench-{secrets.token_hex(4)}")
    figures: list[Figure] = []

    def show(entries: list[Figure]) -> None:
        figures.extend(entries)
        _show(entries)

    raw = await in_process.prepare_kafka(bootstrap, f"raw-{secrets.token_hex(4)}")
    show(await baseline.raw_kafka(raw, count=commits))
    show(baseline.raw_rocks(directory / "raw", count=commits * 5))
    kinds: list[tuple[str, Callable[[Path], AbstractAsyncContextManager[Ledger]]]] = [
        ("embedded", in_process.embedded),
        ("Kafka", lambda path: in_process.kafka(settings, path)),
    ]
    for where, opened in kinds:
        state = directory / where
        async with opened(state) as ledger:
            show(await in_process.commits(ledger, where, count=commits))
            show(await in_process.reads(ledger, where, count=commits))
            await in_process.fill(ledger, events=rebuilt)
        if where == "embedded":
            (state / "view").rename(state / "view.before")
            show([await in_process.rebuild(opened, state, where)])
        else:
            show([await in_process.rebuild(opened, directory / "Kafka again", where)])
    show(await over_http.all_figures(bootstrap, directory / "HTTP", count=commits // 4))

    return figures


async def run_processors(bootstrap: str, directory: Path, *, scale: float) -> list[Figure]:
    """Return all figures of the processors; ``scale`` shortens the run."""
    prefix = f"processed-{secrets.token_hex(4)}"
    return await processors.all_figures(
        bootstrap, directory / "processors", _show, events=int(PROCESSED * scale), prefix=prefix
    )


def _show(entries: list[Figure]) -> None:
    for entry in entries:
        latency = "" if entry.p50_ms is None else f"p50 {entry.p50_ms:.3f} ms  p99 {entry.p99_ms:.3f} ms"
        console.print(f"{entry.name:36} {entry.where:16} {entry.rate_per_s:>12,.0f}/s  {latency}")


async def run_gateway(bootstrap: str, directory: Path, *, scale: float) -> list[Added]:
    """Return all figures of the gateway; ``scale`` shortens the run."""

    def show(rows: list[Added]) -> None:
        for row in rows:
            held = "" if row.held_p50_ms is None else f"held {row.held_p50_ms:.3f}"
            console.print(
                f"{row.name:64} {row.where:9} direct {row.direct_p50_ms:8.3f} {row.direct_p99_ms:8.3f}  "
                f"gateway {row.gateway_p50_ms:8.3f} {row.gateway_p99_ms:8.3f}  added {row.added_p50_ms:.3f}  {held}",
                soft_wrap=True,
            )

    figures = await gateway.all_figures(bootstrap, directory / "gateway", show, count=int(GATEWAY_CALLS * scale))
    for aim in gateway.aims(figures):
        console.print(
            f"{aim.name}, {aim.where}: aim {aim.aim_ms:.1f} ms, measured {aim.measured_ms:.3f} ms", soft_wrap=True
        )
    return figures


def main() -> None:
    """Start a broker, measure, write docs/benchmarks.*."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the calls, and nothing written")
    parser.add_argument("--only", choices=PARTS, help="one part; the others' figures stay")
    arguments = parser.parse_args()
    scale = 0.1 if arguments.quick else 1.0
    with Cluster.from_environment() as cluster, tempfile.TemporaryDirectory() as directory:
        if arguments.only in (None, "ledger"):
            figures = uvloop.run(run_ledger(cluster.bootstrap, Path(directory), scale=scale))
            if not arguments.quick:
                report.write_ledger(figures, BROKER)
        if arguments.only in (None, "processors"):
            figures = uvloop.run(run_processors(cluster.bootstrap, Path(directory), scale=scale))
            if not arguments.quick:
                report.write_processors(figures, BROKER)
        if arguments.only in (None, "gateway"):
            rows = uvloop.run(run_gateway(cluster.bootstrap, Path(directory), scale=scale))
            if not arguments.quick:
                report.write_gateway(rows, gateway.aims(rows), BROKER)


if __name__ == "__main__":
    main()
