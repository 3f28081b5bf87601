"""``turnledger view``: where a replica's view stands, and making it anew from the log."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cli.connection import ServedElsewhere, service_client
from cli.failures import ExitCode, report
from cli.kafka import Bootstrap, Prefix, kafka_settings
from cli.output import AsJson, console, moment, print_json, progress
from cli.rebuild import PartitionStatus, is_embedded, log_of, rebuild, statuses, view_of
from ledger.errors import StateDirectoryLocked
from ledger.settings import default_directory

view = typer.Typer(no_args_is_help=True, help="Look at or rebuild the view of a replica.")

Directory = Annotated[
    Path | None,
    typer.Option(envvar="TURNLEDGER_DIRECTORY", help="State directory of the replica. Default: the embedded ledger's."),
]


@view.command("status")
def status(
    url: Annotated[str | None, typer.Option(envvar="TURNLEDGER_URL", help="Ask a running service instead.")] = None,
    directory: Directory = None,
    bootstrap: Bootstrap = None,
    prefix: Prefix = "turnledger",
    as_json: AsJson = False,
) -> None:
    """Say whether a service is ready, or where the view of a state directory stands that nobody has open."""
    if url is not None:
        reason = asyncio.run(_not_ready_reason(url))
        if as_json:
            print_json({"ready": not reason, "reason": reason})
        elif reason:
            report(f"not ready: {reason}")
        else:
            console().print("ready")
        raise typer.Exit(ExitCode.UNAVAILABLE if reason else ExitCode.OK)
    chosen = directory or default_directory()
    try:
        found = asyncio.run(_statuses(chosen, bootstrap, prefix))
    except StateDirectoryLocked:
        raise ServedElsewhere(f"{chosen} is open in another process") from None
    if as_json:
        print_json({"directory": str(chosen), "partitions": found})
    else:
        console().print(_status_table(chosen, found))


async def _not_ready_reason(url: str) -> str:
    async with service_client(url) as client:
        return await client.not_ready_reason()


async def _statuses(directory: Path, bootstrap: str | None, prefix: str) -> list[PartitionStatus]:
    asks_log = is_embedded(directory) or bootstrap
    kafka = kafka_settings(bootstrap, prefix) if bootstrap else None
    async with log_of(directory, kafka) if asks_log else nullcontext() as log:
        with view_of(directory) as store:
            return await statuses(store, log)


def _status_table(directory: Path, found: list[PartitionStatus]) -> Table:
    table = Table(title=f"View in {directory}", title_justify="left", header_style="bold")
    for name in ("partition", "position", "behind", "policy", "quarantined"):
        table.add_column(name, justify="right")
    table.add_column("partition clock")
    table.add_column("ledger")
    for partition in found:
        table.add_row(
            str(partition.partition),
            str(partition.position),
            "?" if partition.end is None else str(partition.end - partition.position),
            str(partition.generation),
            str(partition.quarantined),
            moment(partition.clock_ms),
            partition.ledger_id or "not formatted",
        )
    return table


@view.command("rebuild")
def rebuild_view(
    directory: Directory = None,
    bootstrap: Bootstrap = None,
    prefix: Prefix = "turnledger",
    as_json: AsJson = False,
) -> None:
    """Fold the whole log into a new view, which then replaces the old one.

    Nobody may have the state directory open. The log is the truth, so nothing is lost.
    """
    chosen = directory or default_directory()
    try:
        count = asyncio.run(_rebuild(chosen, bootstrap, prefix))
    except StateDirectoryLocked:
        raise StateDirectoryLocked(f"{chosen} is open in another process; stop it first") from None
    if as_json:
        print_json({"directory": str(chosen), "records": count})
    else:
        console().print(f"the view in {chosen} was rebuilt from {count} records")


async def _rebuild(directory: Path, bootstrap: str | None, prefix: str) -> int:
    kafka = kafka_settings(bootstrap, prefix) if bootstrap else None
    async with log_of(directory, kafka) as log:
        with progress() as bar:
            task = bar.add_task("folding", total=None)
            return await rebuild(directory, log, lambda folded, total: bar.update(task, completed=folded, total=total))
