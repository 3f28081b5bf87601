"""The options of commands that talk to Kafka themselves, and the alias key's file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.environment import settings_of
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.errors import InvalidInput

PANEL = "Kafka"

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        envvar=["TURNLEDGER_KAFKA_BOOTSTRAP", "KAFKA_BOOTSTRAP"],
        help="Brokers, host:port, separated by commas. How to log in is for the environment to say.",
        rich_help_panel=PANEL,
    ),
]
Prefix = Annotated[
    str,
    typer.Option("--prefix", envvar="TURNLEDGER_TOPIC_PREFIX", help="First part of topic names."),
]
AliasKeyFile = Annotated[
    Path,
    typer.Option(
        "--alias-key-file",
        envvar="TURNLEDGER_ALIAS_KEY_FILE",
        help="The ledger's alias key; all processes need the same. Keep it as long as the ledger.",
        rich_help_panel=PANEL,
    ),
]


def kafka_settings(bootstrap: str | None, prefix: str) -> KafkaSettings:
    """Return where the topics are, and how to log in as the environment says.

    Raises ``InvalidInput`` when no broker is named, and for what contradicts itself.
    """
    if not bootstrap:
        raise InvalidInput("bootstrap", "must be named: --bootstrap or KAFKA_BOOTSTRAP")
    # Here, as it loads pydantic, which commands that ask no broker need not.
    from ledger.adapters.kafka_security import KafkaSecurity

    return KafkaSettings(bootstrap=bootstrap, prefix=prefix, security=settings_of(KafkaSecurity, {}).kafka_options())
