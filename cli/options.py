"""Options that commands which serve have in common; what is not given comes from the environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.environment import settings_of

if TYPE_CHECKING:
    from api.serve import ServiceSettings

Host = Annotated[str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")]
Port = Annotated[int | None, typer.Option(help="0: any free one. Default: 8420.")]
Directory = Annotated[
    Path | None, typer.Option(help="State of this process alone. Default: turnledger in XDG_DATA_HOME.")
]
Brokers = Annotated[
    str | None, typer.Option("--bootstrap", help="Kafka brokers, host:port. Without: the embedded ledger.")
]
Prefix = Annotated[str | None, typer.Option("--prefix", help="First part of topic names.")]
AliasKeyFile = Annotated[
    Path | None, typer.Option(help="With Kafka: the ledger's alias key, as 'topics create' made it.")
]
Partitions = Annotated[
    str | None, typer.Option(help="With Kafka: the partitions that this process holds, such as 0-7,12. Default: all.")
]
Holders = Annotated[
    str | None,
    typer.Option(
        metavar="RANGE=URL[|URL...],...", help="Who holds the other partitions: 8-15=http://b:8420|http://c:8420"
    ),
]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error. Default: info.")]


def service_settings(
    *,
    host: str | None,
    port: int | None,
    directory: Path | None,
    bootstrap: str | None,
    prefix: str | None,
    alias_key_file: Path | None,
    partitions: str | None,
    holders: str | None,
    auth_file: Path | None,
    log_level: str | None,
) -> ServiceSettings:
    """Return the settings of a process that serves. Raises ``InvalidInput`` naming the setting."""
    # Here, so that other commands need not load a server.
    from api.serve import ServiceSettings

    given = {
        "host": host,
        "port": port,
        "directory": directory,
        "kafka_bootstrap": bootstrap,
        "topic_prefix": prefix,
        "alias_key_file": alias_key_file,
        "partitions": partitions,
        "holders": holders,
        "auth_file": auth_file,
        "log_level": log_level,
    }
    return settings_of(ServiceSettings, {name: value for name, value in given.items() if value is not None})
