"""Writes what was measured: docs/benchmarks.json, and docs/benchmarks.md as tables."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.measure import Added, Aim, Figure

DOCS = Path(__file__).parent.parent / "docs"
BEGIN, END = "<!-- figures: written by make bench -->", "<!-- end of figures -->"
PROCESSORS_BEGIN, PROCESSORS_END = (
    "<!-- figures of the processors: written by make bench -->",
    "<!-- end of figures of the processors -->",
)
GATEWAY_BEGIN, GATEWAY_END = (
    "<!-- figures of the gateway: written by make bench -->",
    "<!-- end of figures of the gateway -->",
)


def environment() -> dict[str, str]:
    """Return what the figures depend on."""
    packages = ("aiohttp", "aiokafka", "rocksdict", "msgspec", "uvloop", "fastapi", "uvicorn")
    return {
        "cores": str(os.cpu_count()),
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }


def write_ledger(figures: Sequence[Figure], broker: str) -> None:
    """Replace the figures of the ledger in docs."""
    described = {**environment(), "broker": broker}
    _write_json({"environment": described, "figures": [dataclasses.asdict(entry) for entry in figures]})
    _write_between(BEGIN, END, table(figures, described))


def write_processors(figures: Sequence[Figure], broker: str) -> None:
    """Replace the figures of the processors in docs."""
    described = {**environment(), "broker": broker}
    part = {"environment": described, "figures": [dataclasses.asdict(entry) for entry in figures]}
    _write_json({"processors": part})
    _write_between(PROCESSORS_BEGIN, PROCESSORS_END, table(figures, described))


def write_gateway(figures: Sequence[Added], aims: Sequence[Aim], broker: str) -> None:
    """Replace the figures of the gateway in docs."""
    described = {**environment(), "broker": broker}
    part = {
        "environment": described,
        "figures": [dataclasses.asdict(entry) for entry in figures],
        "aims": [dataclasses.asdict(aim) for aim in aims],
    }
    _write_json({"gateway": part})
    _write_between(GATEWAY_BEGIN, GATEWAY_END, gateway_tables(figures, aims, described))


def table(figures: Sequence[Figure], described: Mapping[str, str]) -> str:
    """Return figures as a Markdown table."""
    lines = [
        _measured_on(described),
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


def gateway_tables(figures: Sequence[Added], aims: Sequence[Aim], described: Mapping[str, str]) -> str:
    """Return the figures of the gateway as a Markdown table, and its aims as another."""
    lines = [
        _measured_on(described),
        "",
        "| what | log | calls | direct p50 ms | direct p99 ms | gateway p50 ms | gateway p99 ms | added p50 ms "
        "| held p50 ms | held p99 ms |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines.extend(
        f"| {row.name} | {row.where} | {row.count:,} | {_ms(row.direct_p50_ms)} | {_ms(row.direct_p99_ms)} | "
        f"{_ms(row.gateway_p50_ms)} | {_ms(row.gateway_p99_ms)} | {_ms(row.added_p50_ms)} | {_ms(row.held_p50_ms)} | "
        f"{_ms(row.held_p99_ms)} |"
        for row in figures
    )
    lines += ["", "| aim, 1 at once | log | at most ms | measured ms | |", "| --- | --- | ---: | ---: | --- |"]
    lines.extend(
        f"| {aim.name} | {aim.where} | {_ms(aim.aim_ms)} | {_ms(aim.measured_ms)} | "
        f"{'reached' if aim.is_reached else 'not reached'} |"
        for aim in aims
    )
    return "\n".join(lines) + "\n"


def _write_json(parts: Mapping[str, Any]) -> None:
    """Replace parts of the document; the others are of a run before."""
    path = DOCS / "benchmarks.json"
    document = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**document, **parts}, indent=1) + "\n")


def _write_between(begin: str, end: str, text: str) -> None:
    """Replace what stands between two marks; the text around them is written by people."""
    page = DOCS / "benchmarks.md"
    head, _, rest = page.read_text().partition(begin)
    _, _, tail = rest.partition(end)
    page.write_text(f"{head}{begin}\n\n{text}\n{end}{tail}")


def _measured_on(described: Mapping[str, str]) -> str:
    return "Measured on " + ", ".join(f"{name} {value}" for name, value in described.items()) + "."


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
