"""``turnledger process reporters`` and ``forget-reporter``: who holds a ledger's partitions, and what they say."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.table import Table

from cli.failures import ExitCode
from cli.kafka import Bootstrap, Prefix, kafka_settings
from cli.output import AsJson, console, moment, print_json
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.errors import InvalidInput, Unavailable
from ledger.ledger import wall_clock_ms

if TYPE_CHECKING:
    from ledger.turn import Partition
    from processors.comparison import Heard
    from processors.reporters import PartitionReporters

ID_DIGITS_MIN = 8
"""Digits of a reporter ID that name it."""
WRITE_TIMEOUT_S = 10.0


class Holder(NamedTuple):
    """One reporter, with its last word on each partition."""

    id: bytes
    words: list[tuple[PartitionReporters, Heard]]

    @property
    def last(self) -> Heard:
        """What it said last."""
        return max((heard for _, heard in self.words), key=lambda heard: heard.heard_at_ms)

    @property
    def lag(self) -> int:
        """Records that lie between what it has said and the end, in all its partitions."""
        return sum(max(0, found.end - heard.report.position) for found, heard in self.words)

    @property
    def digest_at_ms(self) -> int | None:
        """When all its partitions' digests had been compared."""
        compared = [heard.digest_at_ms for _, heard in self.words]
        return None if None in compared else min(at_ms for at_ms in compared if at_ms is not None)

    def is_silent(self, now_ms: int) -> bool:
        return any(heard.is_silent(now_ms) for _, heard in self.words)


def holders_of(found: Iterable[PartitionReporters]) -> list[Holder]:
    """Return every reporter, by kind and name."""
    words: dict[bytes, list[tuple[PartitionReporters, Heard]]] = {}
    for one in found:
        for heard in one.watch.heard.values():
            words.setdefault(heard.id, []).append((one, heard))
    holders = [Holder(reporter_id, words[reporter_id]) for reporter_id in words]
    return sorted(holders, key=lambda holder: (holder.last.report.kind, holder.last.report.name, holder.id))


def later_of(found: Iterable[PartitionReporters]) -> dict[bytes, list[Partition]]:
    """Return the IDs of those who report in a format of a later release, with the partitions of which they do."""
    partitions: dict[bytes, list[Partition]] = {}
    for one in found:
        for reporter_id in one.later_format:
            partitions.setdefault(reporter_id, []).append(one.partition)
    return dict(sorted(partitions.items()))


def later_lines(found: Iterable[PartitionReporters]) -> list[str]:
    """Return the same in words."""
    return [
        f"reports in a format of a later release, so ask with that one: {reporter_id.hex()[:ID_DIGITS_MIN]}, of "
        f"partitions {', '.join(map(str, partitions))}"
        for reporter_id, partitions in later_of(found).items()
    ]


def alarms_of(found: Iterable[PartitionReporters]) -> list[str]:
    """Return every difference in words."""
    return [f"partition {one.partition}: {alarm}" for one in found for alarm in one.watch.alarms]


def described(holder: Holder, now_ms: int) -> dict[str, Any]:
    """Return a reporter as JSON values."""
    report = holder.last.report
    return {
        "id": holder.id.hex(),
        "kind": report.kind,
        "name": report.name,
        "silent": holder.is_silent(now_ms),
        "heard_at_ms": holder.last.heard_at_ms,
        "digest_compared_at_ms": holder.digest_at_ms,
        "partitions": [
            {
                "partition": one.partition,
                "position": heard.report.position,
                "lag": max(0, one.end - heard.report.position),
                "heard_at_ms": heard.heard_at_ms,
                "digest_compared_at_ms": heard.digest_at_ms,
                "purged_position": heard.report.purged_position,
                "purged_content_position": heard.report.purged_content_position,
            }
            for one, heard in holder.words
        ],
    }


async def ask(kafka: KafkaSettings) -> list[PartitionReporters]:
    """Return what the topics say of every partition. Raises ``Unavailable``."""
    # Here, so that other commands need not load a Kafka client.
    from ledger.adapters.kafka import KafkaLog
    from ledger.adapters.kafka_settings import CHECKPOINTS, REPORTS
    from ledger.turn import Partition
    from processors.reporters import ASK_TIMEOUT_S, partition_reporters

    log, reports, checkpoints = KafkaLog(kafka), KafkaLog(kafka, REPORTS), KafkaLog(kafka, CHECKPOINTS)
    try:
        # By name: a partition of a topic that is not there would only be waited for.
        count = (await reports.manifest(timeout_s=ASK_TIMEOUT_S)).partition_count
        return await partition_reporters(log, reports, checkpoints, [Partition(number) for number in range(count)])
    finally:
        for one in (log, reports, checkpoints):
            await one.close()


def reporters(bootstrap: Bootstrap = None, prefix: Prefix = "turnledger", as_json: AsJson = False) -> None:
    """List the replicas and workers that hold rows; exit code 4 when what they say differs, or one is silent or reports
    in a format of a later release."""
    found = asyncio.run(ask(kafka_settings(bootstrap, prefix)))
    now_ms = wall_clock_ms()
    holders, alarms, later = holders_of(found), alarms_of(found), later_of(found)
    is_well = not alarms and not later and not any(holder.is_silent(now_ms) for holder in holders)
    if as_json:
        print_json(
            {
                "healthy": is_well,
                "alarms": alarms,
                "later_format": [{"id": one.hex(), "partitions": numbers} for one, numbers in later.items()],
                "reporters": [described(holder, now_ms) for holder in holders],
            }
        )
    else:
        console().print(_table(prefix, holders, now_ms))
        for alarm in alarms:
            console().print(f"ALARM {alarm}")
        for line in later_lines(found):
            console().print(line)
    raise typer.Exit(ExitCode.OK if is_well else ExitCode.UNAVAILABLE)


def _table(prefix: str, holders: Iterable[Holder], now_ms: int) -> Table:
    table = Table(title=f"Reporters of {prefix}", title_justify="left", header_style="bold")
    for name in ("name", "kind", "id"):
        table.add_column(name)
    for name in ("partitions", "behind"):
        table.add_column(name, justify="right")
    for name in ("last heard", "digest compared", "not purged"):
        table.add_column(name)
    for holder in holders:
        report = holder.last.report
        unpurged = [one.partition for one, heard in holder.words if not heard.is_purged]
        table.add_row(
            report.name,
            report.kind,
            holder.id.hex()[:ID_DIGITS_MIN],
            str(len(holder.words)),
            str(holder.lag),
            moment(holder.last.heard_at_ms) + (" SILENT" if holder.is_silent(now_ms) else ""),
            "" if holder.digest_at_ms is None else moment(holder.digest_at_ms),
            ", ".join(map(str, unpurged)),
        )
    return table


def forget_reporter(
    name: Annotated[str, typer.Argument(metavar="NAME-OR-ID", help="As 'process reporters' shows it.")],
    bootstrap: Bootstrap = None,
    prefix: Prefix = "turnledger",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Vouch that the disk of a replica or worker that is gone is destroyed, so that nobody waits for it any more."""
    kafka = kafka_settings(bootstrap, prefix)
    named = [one for one in _forgettable(asyncio.run(ask(kafka))) if one.is_named(name)]
    if not named:
        raise InvalidInput("name", f"'{name}' is no reporter of {prefix}: see 'turnledger process reporters'")
    if len(named) > 1:
        ids = ", ".join(one.id.hex()[:ID_DIGITS_MIN] for one in named)
        raise InvalidInput("name", f"'{name}' names several reporters, give the ID of one: {ids}")
    (forgotten,) = named
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidInput("yes", "is needed where nobody can be asked: --yes")
        typer.confirm(f"{forgotten.said}. Is its disk destroyed, and will it never start again?", abort=True, err=True)
    asyncio.run(_withdraw(kafka, forgotten.id, forgotten.partitions))
    if as_json:
        print_json({"forgotten": forgotten.id.hex(), "partitions": forgotten.partitions})
    else:
        console().print(f"{forgotten.who} is forgotten")


class _Forgettable(NamedTuple):
    """One reporter that can be vouched for, whether its words can be read or not."""

    id: bytes
    names: set[str]
    partitions: list[Partition]
    who: str
    said: str
    """Of it, when it is asked for."""

    def is_named(self, name: str) -> bool:
        is_id = len(name) >= ID_DIGITS_MIN and self.id.hex().startswith(name.lower())
        return is_id or name in self.names


def _forgettable(found: list[PartitionReporters]) -> list[_Forgettable]:
    later = later_of(found)
    known = [
        _Forgettable(
            id=holder.id,
            names={heard.report.name for _, heard in holder.words},
            partitions=sorted([*(one.partition for one, _ in holder.words), *later.get(holder.id, [])]),
            who=holder.last.who,
            said=f"{holder.last.who} was last heard {moment(holder.last.heard_at_ms)}",
        )
        for holder in holders_of(found)
    ]
    for reporter_id in later.keys() - {one.id for one in known}:
        who = f"reporter {reporter_id.hex()[:ID_DIGITS_MIN]}"
        said = f"{who} reports in a format of a later release"
        known.append(_Forgettable(id=reporter_id, names=set(), partitions=later[reporter_id], who=who, said=said))
    return known


async def _withdraw(kafka: KafkaSettings, reporter_id: bytes, partitions: Iterable[Partition]) -> None:
    from ledger.adapters.kafka_reports import KafkaReports

    topic = KafkaReports(kafka)
    try:
        for partition in partitions:
            await topic.write(partition, reporter_id, None, timeout_s=WRITE_TIMEOUT_S)
    finally:
        await topic.close()


async def ask_if_there(kafka: KafkaSettings) -> list[PartitionReporters]:
    """The same, and nothing where the topic does not exist yet. Raises ``Unavailable``."""
    try:
        return await ask(kafka)
    except Unavailable as error:
        if error.reason != "manifest":
            raise
        return []
