"""``turnledger process``: a worker of the processors, and where their tables stand."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from cli.environment import settings_of
from cli.failures import ExitCode
from cli.kafka import Bootstrap, Prefix, kafka_settings
from cli.output import AsJson, console, moment, print_json
from cli.reporters import alarms_of, ask_if_there, forget_reporter, holders_of, later_lines, later_of, reporters
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.errors import InvalidInput
from ledger.ledger import wall_clock_ms

if TYPE_CHECKING:
    from processors.status import TableStatus
    from processors.trim import TrimPlan

DAY_MS = 24 * 60 * 60 * 1000

process = typer.Typer(
    invoke_without_command=True,
    help="Run a worker: tables for fast starts, erasure on Kafka, checkpoints. Any number may run.",
)


process.command("reporters")(reporters)
process.command("forget-reporter")(forget_reporter)


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
    _CHECKPOINT_KEY_FILE, _PROCESS_HOST, _PROCESS_PORT, _SWEEP_INTERVAL_S, _REPORTER_NAME, _REPORT_INTERVAL_S,
    _LOG_LEVEL, and how to log in to Kafka.
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
    """Say how far the tables are, whoever writes them, and whether all who hold rows agree; exit code 4 when a table is
    missing or too far behind, or somebody differs."""
    kafka = kafka_settings(bootstrap, prefix)
    found = asyncio.run(_statuses(kafka))
    late = [one for one in found if one.problem or one.lag > lag_max]
    reported = asyncio.run(ask_if_there(kafka))
    alarms = alarms_of(reported)
    now_ms = wall_clock_ms()
    silent = [holder.last.who for holder in holders_of(reported) if holder.is_silent(now_ms)]
    if as_json:
        print_json(
            {
                "healthy": not late and not alarms,
                "alarms": alarms,
                "silent": silent,
                "later_format": [reporter_id.hex() for reporter_id in later_of(reported)],
                "partitions": [
                    {
                        "partition": one.partition,
                        "position": None if one.marker is None else one.marker.position,
                        "first": one.first,
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
        for name in ("partition", "log begins", "position", "behind", "rows"):
            table.add_column(name, justify="right")
        table.add_column("partition clock")
        table.add_column("problem")
        for one in found:
            marker = one.marker
            table.add_row(
                str(one.partition),
                str(one.first),
                "" if marker is None else str(marker.position),
                str(one.lag),
                "" if marker is None else str(marker.rows_count),
                "" if marker is None else moment(marker.clock_ms),
                one.problem,
            )
        console().print(table)
        for alarm in alarms:
            console().print(f"ALARM {alarm}")
        for who in silent:
            console().print(f"silent: {who}")
        for line in later_lines(reported):
            console().print(line)
    raise typer.Exit(ExitCode.UNAVAILABLE if late or alarms else ExitCode.OK)


@process.command("trim")
def trim(
    older_than_days: Annotated[float, typer.Option(min=0, help="Keep what is younger, by partition clock.")],
    checkpoint_key_file: Annotated[
        Path, typer.Option(envvar="TURNLEDGER_CHECKPOINT_KEY_FILE", help="Whose checkpoints are trusted.")
    ],
    bootstrap: Bootstrap = None,
    prefix: Prefix = "turnledger",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old records of the event log, as far as signed checkpoints and tables that verify stand for them.

    A new replica then needs the tables, and a replay begins where the log does.
    """
    kafka = kafka_settings(bootstrap, prefix)
    if not checkpoint_key_file.exists():
        raise InvalidInput("checkpoint_key_file", f"{checkpoint_key_file} does not exist")
    plans = asyncio.run(_plans(kafka, older_than_days, checkpoint_key_file))
    removed = {plan.partition: plan.before for plan in plans if not plan.reason}
    if not as_json:
        table = Table("partition", "log begins", "then", "why not", title_justify="left", header_style="bold")
        for plan in plans:
            table.add_row(str(plan.partition), str(plan.first), str(plan.before), plan.reason)
        console().print(table)
    if removed and not yes:
        if not sys.stdin.isatty():
            raise InvalidInput("yes", "is needed where nobody can be asked: --yes")
        typer.confirm("Remove these records for good?", abort=True, err=True)
    if removed:
        from ledger.adapters.kafka_trim import trim_log

        asyncio.run(trim_log(kafka, removed))
    if as_json:
        print_json({"trimmed": removed, "kept": {plan.partition: plan.reason for plan in plans if plan.reason}})
    raise typer.Exit(ExitCode.OK if removed else ExitCode.REFUSED)


async def _plans(kafka: KafkaSettings, days: float, key_file: Path) -> list[TrimPlan]:
    from ledger.adapters.kafka import KafkaLog
    from ledger.adapters.kafka_settings import CHECKPOINTS, TABLES
    from ledger.composition import scratch_view
    from ledger.turn import Partition
    from processors.composition import signer_in
    from processors.trim import ASK_TIMEOUT_S, plan_trim

    public_key = signer_in(key_file).public_key
    before_ms = wall_clock_ms() - int(days * DAY_MS)
    log, tables, checkpoints = KafkaLog(kafka), KafkaLog(kafka, TABLES), KafkaLog(kafka, CHECKPOINTS)
    try:
        count = (await log.manifest(timeout_s=ASK_TIMEOUT_S)).partition_count
        plans = []
        for number in range(count):
            with scratch_view() as scratch:
                plan = await plan_trim(
                    log,
                    tables,
                    checkpoints,
                    Partition(number),
                    before_ms=before_ms,
                    public_key=public_key,
                    scratch=scratch,
                )
            plans.append(plan)
        return plans
    finally:
        for one in (log, tables, checkpoints):
            await one.close()


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
