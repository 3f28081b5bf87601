"""``turnledger topics``: make and check the Kafka topics of a ledger."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from cli.failures import ExitCode, report
from cli.kafka import AliasKeyFile, Bootstrap, Prefix, kafka_settings
from cli.output import AsJson, console, print_json
from cli.policy import parsed, show_policy
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.adapters.kafka_topics import (
    PARTITION_COUNT_DEFAULT,
    REPLICATION_FACTOR_DEFAULT,
    check_topics,
    create_topics,
)
from ledger.alias import AliasKey
from ledger.composition import alias_key_in, open_kafka, set_policy_on_kafka
from ledger.errors import InvalidInput
from ledger.policy import Policy

topics = typer.Typer(no_args_is_help=True, help="Make and check the Kafka topics of a ledger.")

Replication = Annotated[
    int, typer.Option("--replication-factor", min=1, help="Copies of each partition; a majority acknowledges.")
]


@topics.command("create")
def create(
    bootstrap: Bootstrap = None,
    prefix: Prefix = "turnledger",
    alias_key_file: AliasKeyFile = Path("alias.key"),
    partitions: Annotated[
        int, typer.Option(min=1, help="Busy principals at once; can never be changed.")
    ] = PARTITION_COUNT_DEFAULT,
    replication_factor: Replication = REPLICATION_FACTOR_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create the topics that are missing and format the ledger. Can be run again to finish.

    Makes the alias key, readable by its owner only, when its file does not exist yet.
    """
    settings = kafka_settings(bootstrap, prefix)
    created, ledger_id = asyncio.run(_create(settings, alias_key_file, partitions, replication_factor))
    if as_json:
        print_json({"created": created, "ledger_id": ledger_id, "alias_key_file": str(alias_key_file)})
        return
    out = console()
    for topic in created:
        out.print(f"created {topic}")
    out.print(f"ledger {ledger_id} is formatted; its alias key is in {alias_key_file}")


async def _create(
    settings: KafkaSettings, alias_key_file: Path, partitions: int, replication_factor: int
) -> tuple[list[str], str]:
    # The key first: topics without the key that formatted them are of no use to anybody.
    alias_key = alias_key_in(alias_key_file)
    created = await create_topics(settings, partition_count=partitions, replication_factor=replication_factor)
    return created, await format_ledger(settings, alias_key)


async def format_ledger(settings: KafkaSettings, alias_key: AliasKey) -> str:
    """Format the partitions that are not, with the default policy; return the ledger ID."""
    with tempfile.TemporaryDirectory(prefix="turnledger-") as directory:
        ledger = await open_kafka(settings, Path(directory), alias_key, format_policy=Policy(), reports=False)
        await ledger.close()
        return ledger.ledger_id.hex()


@topics.command("policy")
def policy(
    changes: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Fields as 'policy show' names them.")],
    bootstrap: Bootstrap = None,
    prefix: Prefix = "turnledger",
    alias_key_file: AliasKeyFile = Path("alias.key"),
    as_json: AsJson = False,
) -> None:
    """Change the policy where no replica holds all partitions; as 'policy set' does it elsewhere.

    Reads the rows of all partitions, from their tables as far as these verify, into a temporary directory, without
    any content. Can be run again to finish an interrupted change.
    """
    settings = kafka_settings(bootstrap, prefix)
    if not alias_key_file.is_file():
        raise InvalidInput("alias_key_file", f"{alias_key_file} does not exist; name the ledger's key")
    changed = set_policy_on_kafka(settings, alias_key_in(alias_key_file), dict(map(parsed, changes)))
    show_policy(*asyncio.run(changed), as_json=as_json)


@topics.command("check")
def check(
    bootstrap: Bootstrap = None,
    prefix: Prefix = "turnledger",
    partitions: Annotated[int | None, typer.Option(min=1, help="Default: as many as 'turns' has.")] = None,
    replication_factor: Replication = REPLICATION_FACTOR_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Compare the topics with what a ledger needs."""
    settings = kafka_settings(bootstrap, prefix)
    problems = asyncio.run(check_topics(settings, partition_count=partitions, replication_factor=replication_factor))
    if as_json:
        print_json({"problems": problems})
    elif not problems:
        console().print(f"the topics of {prefix} are as they should be")
    for problem in [] if as_json else problems:
        report(problem)
    raise typer.Exit(ExitCode.REFUSED if problems else ExitCode.OK)
