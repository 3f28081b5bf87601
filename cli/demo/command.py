"""``turnledger demo``: what the ledger does, shown in a few seconds."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

import typer

from api.auth import LOCAL_NAMESPACE, LOCAL_PRINCIPAL, LOCAL_ROUTE
from cli.failures import ExitCode, report
from cli.kafka import Bootstrap, kafka_settings
from ledger.errors import InvalidInput
from ledger.turn import Scope

PORT = 8420
"""Where the service is left running, unless somebody has the port."""


def demo(
    once: Annotated[
        bool, typer.Option("--once", help="End after the demo; otherwise a service is left running.")
    ] = False,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="On Kafka, with two service processes that are killed.")
    ] = False,
    directory: Annotated[
        Path | None, typer.Option(help="Keep the embedded ledger here. Default: a temporary directory.")
    ] = None,
    port: Annotated[int | None, typer.Option(help=f"Of the service. Default: {PORT} if it is free.")] = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Show what the ledger does: real traffic over two replicas, and each rule once."""
    # Here, so that other commands need not load a server.
    from api.serve import ServiceSettings, run
    from cli.demo.embedded import demonstrate
    from cli.demo.kafka import demonstrate_kafka
    from cli.demo.narrator import Narrator
    from cli.demo.trace import read_trace

    if kafka:
        if directory is not None:
            raise InvalidInput("directory", "is for the embedded ledger; with --kafka all state is temporary")
        settings = kafka_settings(bootstrap, f"demo-{secrets.token_hex(3)}")
        try:
            wrong = asyncio.run(demonstrate_kafka(settings, Narrator(), once=once))
        except asyncio.CancelledError:
            raise typer.Exit(128 + signal.SIGTERM) from None
        _expect_none(wrong)
        return
    if directory is not None and (directory / "log").is_dir():
        raise InvalidInput("directory", f"{directory} holds a ledger already; the demo begins with an empty one")
    scope = Scope(namespace=LOCAL_NAMESPACE, principal=LOCAL_PRINCIPAL, route=LOCAL_ROUTE)
    with tempfile.TemporaryDirectory(prefix="turnledger-") if directory is None else nullcontext(directory) as chosen:
        narrator = Narrator()
        _expect_none(asyncio.run(demonstrate(Path(chosen), scope, narrator)))
        if once:
            return
        number = free_port() if port is None else port
        narrator.close(
            "The HTTP service opens this very ledger now and stays until Ctrl-C. Try:\n\n"
            f"  {curl_line(f'http://127.0.0.1:{number}', read_trace()[-1].response_id)}\n"
        )
        run(
            ServiceSettings(
                host="127.0.0.1",
                port=number,
                directory=Path(chosen),
                kafka_bootstrap=None,
                auth_file=None,
                log_level="warning",
            )
        )


def _expect_none(wrong: int) -> None:
    """Leave with an error when the demo has seen an answer that must not be."""
    if wrong:
        report(f"the demo failed: {wrong} answers were wrong")
        raise typer.Exit(ExitCode.REFUSED)


def curl_line(url: str, response_id: str) -> str:
    """Return a command that asks a service who owns a response."""
    return f"curl -s '{url}/ledger/v1/lookup?{urlencode({'kind': 'response', 'id': response_id})}'"


def free_port() -> int:
    """Return the usual port, or any other one that is free if somebody has it."""
    for number in (PORT, 0):
        try:
            with socket.create_server(("127.0.0.1", number)) as server:
                found: int = server.getsockname()[1]
                return found
        except OSError:
            continue
    raise InvalidInput("port", "none is free")
