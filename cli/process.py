"""``turnledger process``: a worker of the processors, and where their tables stand."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from cli.environment import settings_of
from cli.failures import ExitCode
from cli.kafka import Bootstrap, Prefix, kafka_settings
from cli.output import AsJson, console, moment, print_json
from ledger.adapters.kafka_settings import KafkaSettings

if TYPE_CHECKING:
    from processors.status import TableStatus

process = typer.Typer(
    invoke_without_command=True,
    help="Run a worker: tables for fast starts, erasure on Kafka, checkpoints. Any number may run.",
)


@process.callback()
def run(
    context: typer.Context,
    bootstrap: Annotated[str | None, typer.Option("--bootstrap", help="Kafka brokers, host:port.")] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="First part of topic names.")] = None,
    directory: Annotated[Path | None, typer.Option(help="Rows of this worker alone; may be lost at any time.")] = None,
    checkpoint_key_file: Annotated[
        Path | None, typer.Option(help="Key that signs checkpoints, the same for all workers; made when missing.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Of /metrics; 0: any free one. Default: 8430.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. Default: info.")] = None,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C.

    What is not given comes from the environment: TURNLEDGER_KAFKA_BOOTSTRAP, _TOPIC_PREFIX, _PROCESS_DIRECTORY,
    _CHECKPOINT_KEY_FILE, _PROCESS_HOST, _PROCESS_PORT, _SWEEP_INTERVAL_S, _LOG_LEVEL, and how to log in to Kafka.
    """
    if context.invoked_subcommand is not None:
        return
    given = {
        "kafka_bootstrap": bootstrap,
        "topic_prefix": prefix,
        "process_directory": directory,
        "checkpoint_key_file": checkpoint_key_file,
        "process_port": port,
        "log_level": log_level,
    }
    # Here, so that other commands need not load Faust.
    from api.logs import configure
    from processors.app import run as run_worker
    from processors.settings import ProcessSettings

    settings = settings_of(ProcessSettings, {name: value for name, value in given.items() if value is not None})
    configure(settings.log_level)
    run_worker(settings)


@process.command("status")
def status(
    bootstrap: Bootstrap = None,
    prefix: Prefix = "turnledger",
    lag_max: Annotated[int, typer.Option(min=0, help="Records that a table may be behind.")] = 10_000,
    as_json: AsJson = False,
) -> None:
    """Say how far the tables are, whoever writes them; exit code 4 when one is missing or too far behind."""
    found = asyncio.run(_statuses(kafka_settings(bootstrap, prefix)))
    late = [one for one in found if one.problem or one.lag > lag_max]
    if as_json:
        print_json(
            {
                "healthy": not late,
                "partitions": [
                    {
                        "partition": one.partition,
                        "position": None if one.marker is None else one.marker.position,
                        "end": one.end,
                        "lag": one.lag,
                        "rows": None if one.marker is None else one.marker.rows_count,
                        "clock_ms": None if one.marker is None else one.marker.clock_ms,
                        "problem": one.problem or None,
                    }
                    for one in found
                ],
            }
        )
    else:
        table = Table(title=f"Tables of {prefix}", title_justify="left", header_style="bold")
        for name in ("partition", "position", "behind", "rows"):
            table.add_column(name, justify="right")
        table.add_column("partition clock")
        table.add_column("problem")
        for one in found:
            marker = one.marker
            table.add_row(
                str(one.partition),
                "" if marker is None else str(marker.position),
                str(one.lag),
                "" if marker is None else str(marker.rows_count),
                "" if marker is None else moment(marker.clock_ms),
                one.problem,
            )
        console().print(table)
    raise typer.Exit(ExitCode.UNAVAILABLE if late else ExitCode.OK)


async def _statuses(kafka: KafkaSettings) -> list[TableStatus]:
    from ledger.adapters.kafka import KafkaLog
    from ledger.adapters.kafka_settings import TABLES
    from ledger.turn import Partition
    from processors.status import ASK_TIMEOUT_S, table_statuses

    log, tables = KafkaLog(kafka), KafkaLog(kafka, TABLES)
    try:
        count = (await log.manifest(timeout_s=ASK_TIMEOUT_S)).partition_count
        return await table_statuses(log, tables, [Partition(number) for number in range(count)])
    finally:
        await tables.close()
        await log.close()
