"""``turnledger loopback``: a deterministic upstream, to try the gateway without a provider."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.loopback.formats import Format

PORT = 8431
"""Beside the service's own port."""


def loopback(
    name: Annotated[str, typer.Option(help="Part of every ID and of every answer.")] = "p1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = PORT,
    format: Annotated[Format, typer.Option(help="What it speaks.")] = Format.BOTH,
) -> None:
    """Serve a model server without a model on 127.0.0.1 until SIGTERM or Ctrl-C.

    It speaks the Responses API, with state of its own, and stateless chat completions. Its answers say what it has
    heard: 'p1 heard: alpha | beta'. Directives in a user's text make it call tools, think, be late or fail, such as
    '!tool(weather, {"city": "Oslo"})' and '!status(500)'. GET /recorded lists what it was asked.
    """
    # Here, so that other commands need not load a server.
    from cli.loopback.server import Loopback, run

    run(Loopback(name, port=port, format=format))
