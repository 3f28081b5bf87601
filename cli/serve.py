"""``turnledger serve``: the HTTP service, on Kafka or on the embedded ledger."""

from __future__ import annotations

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


def serve(
    host: Host = None,
    port: Port = None,
    directory: Directory = None,
    bootstrap: Brokers = None,
    prefix: Prefix = None,
    alias_key_file: AliasKeyFile = None,
    partitions: Partitions = None,
    holders: Holders = None,
    auth_file: Annotated[
        Path | None, typer.Option(help="Who may do what. Without: loopback only, one principal, all roles.")
    ] = None,
    log_level: LogLevel = None,
) -> None:
    """Serve a ledger over HTTP until SIGTERM or Ctrl-C.

    What is not given comes from the environment: TURNLEDGER_HOST, _PORT, _DIRECTORY, _KAFKA_BOOTSTRAP, _TOPIC_PREFIX,
    _ALIAS_KEY or _ALIAS_KEY_FILE, _PARTITIONS, _HOLDERS, _AUTH_FILE, _MAX_STALENESS_S, _COMMIT_TIMEOUT_S,
    _READ_TIMEOUT_S, _LOG_LEVEL; and for TLS and SASL _KAFKA_SECURITY_PROTOCOL, _KAFKA_SSL_... and _KAFKA_SASL_..., see
    docs/operations.md.
    """
    # Here, so that other commands need not load a server.
    from api.serve import run

    run(
        service_settings(
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
    )
