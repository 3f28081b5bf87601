"""``turnledger replay``: the log again, with the verdict of every event."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from cli.connection import Connection, connected
from cli.output import AsJson, console, moment, print_json
from ledger.errors import InvalidInput
from ledger.turn import SelectorKind

VERDICT_STYLES = {"accepted": "green", "duplicate": "yellow", "quarantined": "red"}
"""Everything else is a refusal."""


@connected
async def replay(
    connection: Connection,
    response: Annotated[str | None, typer.Option(help="Only events that concern this response.")] = None,
    conversation: Annotated[str | None, typer.Option(help="Only events that concern this conversation.")] = None,
    until_offset: Annotated[int | None, typer.Option(min=0, help="Last offset shown, in each partition.")] = None,
    until_time: Annotated[
        str | None, typer.Option(metavar="ISO", help="Time of the last event shown, such as 2026-01-31T12:00Z.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fold the log again and print its events with their verdicts.

    --principal shows one principal's events only. Without it they are those of the whole namespace, as far as the token
    allows.
    """
    if response is not None and conversation is not None:
        raise InvalidInput("conversation", "cannot be given together with --response")
    selector = None
    if response is not None:
        selector = connection.selector(SelectorKind.RESPONSE, response)
    elif conversation is not None:
        selector = connection.selector(SelectorKind.CONVERSATION, conversation)
    events: list[dict[str, Any]] = []
    async with connection.client() as client:
        replaying = client.replay(
            selector=selector,
            principal=connection.principal,
            until_offset=until_offset,
            until_ms=None if until_time is None else milliseconds(until_time),
        )
        async with aclosing(replaying):
            async for event in replaying:
                if as_json:
                    print_json(event)
                else:
                    events.append(event)
    if not as_json:
        console().print(replay_table(events))


def milliseconds(text: str) -> int:
    """Return an ISO 8601 time as milliseconds since 1970; without a zone it is UTC. Raises ``InvalidInput``."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput("until-time", "must be an ISO 8601 time such as 2026-01-31T12:00Z") from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return int(parsed.timestamp() * 1000)


def replay_table(events: Iterable[dict[str, Any]], *, dated: bool = True) -> Table:
    """Return replayed events as a table; without ``dated`` it gives the time of day only."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold")
    for name in ("at", "appended", "event", "verdict"):
        table.add_column(name, no_wrap=True)
    table.add_column("ID", no_wrap=True, overflow="ellipsis")
    table.add_column("detail")
    for event in events:
        verdict = event["verdict"]
        appended = moment(event["appended_at_ms"])
        table.add_row(
            f"{event['partition']}:{event['offset']}",
            appended if dated else appended.partition(" ")[2],
            event["type"],
            Text(verdict, style=VERDICT_STYLES.get(verdict, "red")),
            " in ".join(event[name] for name in ("response_id", "conversation_id") if name in event),
            _detail(event),
        )
    return table


def _detail(event: dict[str, Any]) -> str:
    owner = (event.get("event") or {}).get("owner") or {}
    parts = {
        "owner": owner.get("target"),
        "revision": event.get("revision"),
        "first": event.get("first_verdict"),
        "reason": event.get("reason"),
    }
    return " ".join(f"{name}={value}" for name, value in parts.items() if value)
