"""``turnledger delete`` and ``turnledger erase``."""

from __future__ import annotations

import secrets
import sys
from typing import Annotated

import typer

from cli.connection import Connection, connected
from cli.output import AsJson, EventId, finish_change
from ledger.errors import InvalidInput
from ledger.turn import SelectorKind

delete = typer.Typer(no_args_is_help=True, help="Delete a response, a conversation or an item.")


@delete.command("response")
@connected
async def delete_response(
    connection: Connection,
    response_id: Annotated[str, typer.Argument(metavar="ID")],
    event_id: EventId = None,
    as_json: AsJson = False,
) -> None:
    """Delete a response; what continues it keeps its history."""
    name = event_id or secrets.token_hex(16)
    selector = connection.selector(SelectorKind.RESPONSE, response_id)
    async with connection.client() as client:
        verdict = await client.delete_response(selector, event_id=name)
    finish_change(verdict, name, as_json=as_json)


@delete.command("conversation")
@connected
async def delete_conversation(
    connection: Connection,
    conversation_id: Annotated[str, typer.Argument(metavar="ID")],
    cascade: Annotated[bool, typer.Option("--cascade", help="Its responses too, and what continues them.")] = False,
    event_id: EventId = None,
    as_json: AsJson = False,
) -> None:
    """Delete a conversation; without --cascade its responses live on."""
    name = event_id or secrets.token_hex(16)
    selector = connection.selector(SelectorKind.CONVERSATION, conversation_id)
    async with connection.client() as client:
        verdict = await client.delete_conversation(selector, event_id=name, cascade=cascade)
    finish_change(verdict, name, as_json=as_json)


@delete.command("item")
@connected
async def delete_item(
    connection: Connection,
    conversation_id: Annotated[str, typer.Argument(metavar="CONVERSATION")],
    item_id: Annotated[str, typer.Argument(metavar="ITEM")],
    event_id: EventId = None,
    as_json: AsJson = False,
) -> None:
    """Delete one item of a conversation."""
    name = event_id or secrets.token_hex(16)
    conversation = connection.selector(SelectorKind.CONVERSATION, conversation_id)
    item = connection.selector(SelectorKind.ITEM, item_id)
    async with connection.client() as client:
        verdict = await client.delete_item(conversation, item, event_id=name)
    finish_change(verdict, name, as_json=as_json)


@connected
async def erase(
    connection: Connection,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    event_id: EventId = None,
    as_json: AsJson = False,
) -> None:
    """Erase everything of a principal, on every route, for good."""
    if connection.principal is None:
        raise InvalidInput("principal", "must be named: --principal")
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidInput("yes", "is needed where nobody can be asked: --yes")
        typer.confirm(f"Erase everything of principal '{connection.principal}' for good?", abort=True, err=True)
    name = event_id or secrets.token_hex(16)
    async with connection.client() as client:
        verdict = await client.erase(connection.scope(), event_id=name)
    finish_change(verdict, name, as_json=as_json)
