"""``turnledger gateway``: the OpenAI-compatible gateway, with its state on Kafka, embedded, in memory or off."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cli.options import (
    AliasKeyFile,
    Brokers,
    Directory,
    Holders,
    Host,
    LogLevel,
    Partitions,
    Port,
    Prefix,
    service_settings,
)


def gateway(
    config: Annotated[Path, typer.Option(help="The gateway's configuration, see docs/gateway.md.")],
    host: Host = None,
    port: Port = None,
    directory: Directory = None,
    bootstrap: Brokers = None,
    prefix: Prefix = None,
    alias_key_file: AliasKeyFile = None,
    partitions: Partitions = None,
    holders: Holders = None,
    ledger: Annotated[bool, typer.Option("--ledger", help="Serve the ledger's own API beside the gateway.")] = False,
    auth_file: Annotated[Path | None, typer.Option(help="Who may use the ledger's own API; with --ledger.")] = None,
    log_level: LogLevel = None,
) -> None:
    """Serve the Responses and Conversations API in front of several targets.

    What is not given comes from the environment, as for 'turnledger serve'; state and limits of the configuration also
    from TURNLEDGER_STATE_... and TURNLEDGER_LIMITS_..., see docs/gateway.md.
    """
    # Here, so that other commands need not load a server.
    from api.gateway.config import GatewayConfig
    from api.serve import run

    settings = service_settings(
        host=host,
        port=port,
        directory=directory,
        bootstrap=bootstrap,
        prefix=prefix,
        alias_key_file=alias_key_file,
        partitions=partitions,
        holders=holders,
        auth_file=auth_file,
        log_level=log_level,
    )
    environ = dict(os.environ)
    if settings.kafka_bootstrap is not None:
        environ["TURNLEDGER_KAFKA_BOOTSTRAP"] = settings.kafka_bootstrap
    run(settings, gateway=GatewayConfig.from_file(config, environ), serves_ledger=ledger)
