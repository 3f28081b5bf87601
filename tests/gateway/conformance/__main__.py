"""Check the gateway against an API's description: ``python -m tests.gateway.conformance SCHEMA``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from api.logs import configure
from tests.gateway.conformance.run import Report, judge, record
from tests.gateway.conformance.schema import ApiSchema

WIDTH = 140
"""Of the table in a file or a pipe: no path is cut."""


def main() -> int:
    """Run, print what was checked, and return 1 when something is not as the schema says."""
    configure("error")
    parser = argparse.ArgumentParser(prog="python -m tests.gateway.conformance")
    parser.add_argument("schema", type=Path, help="an OpenAPI document, as JSON")
    schema = ApiSchema.from_file(parser.parse_args().schema)
    report = judge(schema, asyncio.run(record()))
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(_table(report))
    for found in sorted(report.found.values(), key=lambda found: (found.kind, found.violation.path)):
        console.print(
            f"{found.kind.method} {found.kind.path} {found.kind.status} {found.kind.what}\n"
            f"  {found.violation.path}: {found.violation.reason}\n"
            f"  first seen in: {found.play}",
            markup=False,
            soft_wrap=True,
        )
    checked = sum(report.checked.values())
    console.print(f"{checked} bodies and events checked, {len(report.found)} violations", markup=False)
    return 1 if report.found or not checked else 0


def _table(report: Report) -> Table:
    table = Table("method", "path", "status", "what", "checked", "violations")
    for kind in sorted({*report.checked, *report.unknown}):
        violations = sum(found.kind == kind for found in report.found.values())
        checked = str(report.checked[kind]) if kind in report.checked else "no schema"
        table.add_row(kind.method, kind.path, str(kind.status), kind.what, checked, str(violations or ""))
    return table


if __name__ == "__main__":
    sys.exit(main())
