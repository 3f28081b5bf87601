"""``turnledger serve``: the HTTP service, on Kafka or on the embedded ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connection import default_directory
from ledger.errors import InvalidInput

if TYPE_CHECKING:
    from api.serve import ServiceSettings


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="0: any free one. Default: 8420.")] = None,
    directory: Annotated[
        Path | None, typer.Option(help="State of this process alone. Default: turnledger in XDG_DATA_HOME.")
    ] = None,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", help="Kafka brokers, host:port. Without: the embedded ledger.")
    ] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="First part of topic names.")] = None,
    alias_key_file: Annotated[
        Path | None, typer.Option(help="With Kafka: the ledger's alias key, as 'topics create' made it.")
    ] = None,
    auth_file: Annotated[
        Path | None, typer.Option(help="Who may do what. Without: loopback only, one principal, all roles.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. Default: info.")] = None,
) -> None:
    """Serve a ledger over HTTP until SIGTERM or Ctrl-C.

    What is not given comes from the environment: TURNLEDGER_HOST, _PORT, _DIRECTORY, _KAFKA_BOOTSTRAP, _TOPIC_PREFIX,
    _ALIAS_KEY or _ALIAS_KEY_FILE, _AUTH_FILE, _MAX_STALENESS_S, _COMMIT_TIMEOUT_S, _READ_TIMEOUT_S, _LOG_LEVEL.
    """
    given = {
        "host": host,
        "port": port,
        "directory": directory,
        "kafka_bootstrap": bootstrap,
        "topic_prefix": prefix,
        "alias_key_file": alias_key_file,
        "auth_file": auth_file,
        "log_level": log_level,
    }
    # Here, so that other commands need not load a server.
    from api.serve import run

    run(service_settings({name: value for name, value in given.items() if value is not None}))


def service_settings(given: dict[str, Any]) -> ServiceSettings:
    """Return what was given, completed from the environment. Raises ``InvalidInput`` naming the setting."""
    from pydantic import ValidationError

    from api.serve import ServiceSettings

    try:
        settings = ServiceSettings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidInput(".".join(map(str, first["loc"])), str(first["msg"])) from None
    if "directory" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"directory": default_directory()})
