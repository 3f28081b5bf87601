"""``turnledger policy``: the limits and lifetimes that travel in the log."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from cli.connection import Connection, connected
from cli.output import AsJson, console, print_json
from ledger.errors import InvalidInput
from ledger.policy import Policy

policy = typer.Typer(no_args_is_help=True, help="Show or change the limits and lifetimes of a ledger.")


@policy.command("show")
@connected
async def show(connection: Connection, as_json: AsJson = False) -> None:
    """Print the policy."""
    async with connection.client() as client:
        show_policy(*await client.policy(), as_json=as_json)


@policy.command("set")
@connected
async def change(
    connection: Connection,
    changes: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Fields as 'policy show' names them.")],
    as_json: AsJson = False,
) -> None:
    """Change fields of the policy; the others stay. Can be run again to finish an interrupted change."""
    fields = dict(map(parsed, changes))
    async with connection.client(creates=True) as client:
        show_policy(*await client.change_policy(fields), as_json=as_json)


def parsed(change: str) -> tuple[str, int | bool]:
    """Return name and value of ``name=value``. Raises ``InvalidInput`` naming the field."""
    name, separator, text = change.partition("=")
    if not separator or not name:
        raise InvalidInput("changes", f"must be name=value, not '{change}'")
    if text in ("true", "false"):
        return name, text == "true"
    try:
        return name, int(text)
    except ValueError:
        raise InvalidInput(name, "must be an integer, true or false") from None


def show_policy(current: Policy, generation: int, *, as_json: bool) -> None:
    values = msgspec.structs.asdict(current)
    if as_json:
        print_json({"generation": generation, "policy": values})
        return
    table = Table("field", title=f"Policy, generation {generation}", title_justify="left", header_style="bold")
    table.add_column("value", justify="right")
    table.add_column("which is")
    for name, value in values.items():
        table.add_row(name, str(value).lower(), readable(name, value))
    console().print(table)


def readable(name: str, value: int) -> str:
    """Return a value in the unit that its name ends with, as a person says it."""
    if name.endswith("_ms"):
        return str(timedelta(milliseconds=value))
    if "_bytes" in name:
        return f"{value / 1024**2:,.0f} MiB"
    return ""
