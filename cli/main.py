"""The command ``turnledger``: all commands in one place."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from api.logs import configure
from cli.deletions import delete, erase
from cli.demo.command import demo
from cli.failures import EPILOG, ReportingGroup
from cli.gateway import gateway
from cli.lookups import history, lookup
from cli.loopback.command import loopback
from cli.policy import policy
from cli.process import process
from cli.publish import publish
from cli.replay import replay
from cli.serve import serve
from cli.topics import topics
from cli.view import view

app = typer.Typer(
    cls=ReportingGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=EPILOG,
    help="A shared, durable ledger of LLM conversation turns: who owns a response, and what is its history?",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:  # click calls it with the option's value
    if asked:
        typer.echo(f"turnledger {version('turnledger')}")
        raise typer.Exit


@app.callback()
def _start(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    # What matters reaches the caller as an error; a service sets its own level when it runs.
    configure("critical")


app.command()(serve)
app.command()(gateway)
app.command()(publish)
app.command()(lookup)
app.command()(history)
app.add_typer(delete, name="delete")
app.command()(erase)
app.command()(replay)
app.add_typer(topics, name="topics")
app.add_typer(policy, name="policy")
app.add_typer(view, name="view")
app.add_typer(process, name="process")
app.command()(demo)
app.command()(loopback)


def main() -> None:
    """Run the command that the arguments name."""
    app()
