"""Writes what was measured: docs/benchmarks.json whole, docs/benchmarks.md as a table."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.measure import Figure

DOCS = Path(__file__).parent.parent / "docs"
BEGIN, END = "<!-- figures: written by make bench -->", "<!-- end of figures -->"


def environment() -> dict[str, str]:
    """Return what the figures depend on."""
    packages = ("aiokafka", "rocksdict", "msgspec", "uvloop", "fastapi", "uvicorn")
    return {
        "cores": str(os.cpu_count()),
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }


def write(figures: Sequence[Figure], broker: str) -> None:
    """Replace the figures in docs; the text around the table is written by people."""
    document = {
        "environment": {**environment(), "broker": broker},
        "figures": [dataclasses.asdict(entry) for entry in figures],
    }
    (DOCS / "benchmarks.json").write_text(json.dumps(document, indent=1) + "\n")
    page = DOCS / "benchmarks.md"
    head, _, rest = page.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n\n{table(figures, document['environment'])}\n{END}{tail}")


def table(figures: Sequence[Figure], described: object) -> str:
    """Return the figures as a Markdown table."""
    assert isinstance(described, dict), "the environment is a mapping"
    lines = [
        "Measured on " + ", ".join(f"{name} {value}" for name, value in described.items()) + ".",
        "",
        "| what | where | calls | per second | p50 ms | p99 ms |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    lines.extend(
        f"| {entry.name} | {entry.where} | {entry.count:,} | {entry.rate_per_s:,.0f} | {_ms(entry.p50_ms)} | "
        f"{_ms(entry.p99_ms)} |"
        for entry in figures
    )
    return "\n".join(lines) + "\n"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
