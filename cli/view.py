"""``turnledger view``: where a replica's view stands, and making it anew."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from cli.connection import ServedElsewhere, service_client
from cli.failures import ExitCode, report
from cli.kafka import Bootstrap, Prefix, kafka_settings
from cli.output import AsJson, console, moment, print_json, progress
from cli.rebuild import PartitionStatus, is_embedded, log_of, partitions_in, rebuild, statuses, view_of
from ledger.composition import bootstrap_kafka
from ledger.errors import InvalidInput, StateDirectoryLocked
from ledger.holding import parse_partitions
from ledger.settings import default_directory
from ledger.turn import Partition
from ledger.view import ViewStore

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
        reason, held = asyncio.run(_readiness(url))
        if as_json:
            print_json({"ready": not reason, "reason": reason, **({"partitions": held} if held else {})})
        elif reason:
            report(f"not ready: {reason}")
        else:
            console().print(f"ready for partitions {held}" if held else "ready")
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


async def _readiness(url: str) -> tuple[str, str]:
    async with service_client(url) as client:
        return await client.readiness()


async def _statuses(directory: Path, bootstrap: str | None, prefix: str) -> list[PartitionStatus]:
    asks_log = is_embedded(directory) or bootstrap
    kafka = kafka_settings(bootstrap, prefix) if bootstrap else None
    async with log_of(directory, kafka) if asks_log else nullcontext() as log:
        with view_of(directory) as store:
            return await statuses(store, log)


def _status_table(directory: Path, found: list[PartitionStatus]) -> Table:
    ledgers = sorted({partition.ledger_id or "not formatted" for partition in found})
    title = f"View in {directory}\nledger {', '.join(ledgers)}"
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in ("partition", "first", "position", "behind", "policy", "quarantined"):
        table.add_column(name, justify="right")
    table.add_column("partition clock")
    for partition in found:
        table.add_row(
            str(partition.partition),
            "?" if partition.first is None else str(partition.first),
            str(partition.position),
            "?" if partition.end is None else str(partition.end - partition.position),
            str(partition.generation),
            str(partition.quarantined),
            moment(partition.clock_ms),
        )
    return table


class Source(StrEnum):
    """Where a rebuilt view comes from."""

    LOG = "log"
    TABLES = "tables"


@view.command("rebuild")
def rebuild_view(
    directory: Directory = None,
    bootstrap: Bootstrap = None,
    prefix: Prefix = "turnledger",
    partitions: Annotated[
        str | None,
        typer.Option(
            envvar="TURNLEDGER_PARTITIONS",
            help="Those that the replica holds, such as 0-7,12. Default: those of the old view, or all.",
        ),
    ] = None,
    source: Annotated[
        Source, typer.Option("--from", help="'tables' (on Kafka) reads rows that processors made, then folds the rest.")
    ] = Source.LOG,
    as_json: AsJson = False,
) -> None:
    """Make a new view, which then replaces the old one: from the whole log, or from its tables.

    Nobody may have the state directory open. The log is the truth, so nothing is lost.
    """
    chosen = directory or default_directory()
    if source is Source.TABLES and is_embedded(chosen):
        raise InvalidInput("from", "an embedded ledger has no tables; its view is rebuilt from the log")
    given = None if partitions is None else parse_partitions(partitions, "partitions")
    refused: dict[int, str] = {}
    try:
        count = asyncio.run(_rebuild(chosen, bootstrap, prefix, given, source, refused))
    except StateDirectoryLocked:
        raise StateDirectoryLocked(f"{chosen} is open in another process; stop it first") from None
    if as_json:
        print_json({"directory": str(chosen), "records": count, "from": source, "refused": refused})
        return
    for partition, reason in refused.items():
        report(f"the table of partition {partition} was not used ({reason}); its log was folded instead")
    console().print(f"the view in {chosen} was rebuilt from {count} records")


async def _rebuild(
    directory: Path,
    bootstrap: str | None,
    prefix: str,
    given: frozenset[Partition] | None,
    source: Source,
    refused: dict[int, str],
) -> int:
    kafka = kafka_settings(bootstrap, prefix) if bootstrap else None
    async with log_of(directory, kafka) as log:
        held = partitions_in(directory) if given is None else given
        with progress() as bar:
            task = bar.add_task("folding", total=None)

            async def fill(store: ViewStore) -> None:
                assert kafka is not None, "only a replica on Kafka is filled"
                read: dict[Partition, tuple[int, int]] = {}
                reading = bar.add_task("reading tables", total=None)

                def show(partition: Partition, position: int, end: int) -> None:
                    read[partition] = (position, end)
                    positions, ends = zip(*read.values(), strict=True)
                    bar.update(reading, completed=sum(positions), total=sum(ends))

                for result in await bootstrap_kafka(kafka, store, show, partitions=held):
                    if result.refused:
                        refused[result.partition] = result.refused
                bar.remove_task(reading)

            return await rebuild(
                directory,
                log,
                lambda folded, total: bar.update(task, completed=folded, total=total),
                fill if source is Source.TABLES else None,
                held,
            )
