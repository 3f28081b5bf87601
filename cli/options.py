"""Options that commands which serve have in common; what is not given comes from the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error. Default: info.")]
