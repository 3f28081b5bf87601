"""``turnledger replay``: the log again, with the verdict of every event."""

from __future__ import annotations

from collections.abc import Sequence
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
WRAPPED = frozenset({"ID", "conversation", "detail"})
"""Columns that give way where the terminal is narrow."""


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


def replay_table(events: Sequence[dict[str, Any]], *, dated: bool = True) -> Table:
    """Return replayed events as a table; without ``dated`` it is about 80 columns wide."""
    has_detail = any("first_verdict" in event or "reason" in event for event in events)
    wide = dict.fromkeys(("appended", "conversation"), dated) | {"detail": has_detail}
    names = ("at", "appended", "event", "verdict", "ID", "conversation", "owner", "revision", "detail")
    shown = [name for name in names if wide.get(name, True)]
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    for name in shown:
        table.add_column(name, no_wrap=name not in WRAPPED, justify="right" if name == "revision" else "left")
    for event in events:
        cells = _cells(event)
        table.add_row(*(cells[name] for name in shown))
    return table


def _cells(event: dict[str, Any]) -> dict[str, str | Text]:
    verdict = event["verdict"]
    owner = (event.get("event") or {}).get("owner") or {}
    first = f"first {event['first_verdict']} at {event['first_offset']}" if "first_verdict" in event else ""
    return {
        "at": f"{event['partition']}:{event['offset']}",
        "appended": moment(event["appended_at_ms"]),
        "event": event["type"],
        "verdict": Text(verdict, style=VERDICT_STYLES.get(verdict, "red")),
        "ID": event.get("response_id", event.get("conversation_id", "")),
        "conversation": event.get("conversation_id", "") if "response_id" in event else "",
        "owner": owner.get("target", ""),
        "revision": str(event.get("revision", "")),
        "detail": event.get("reason", first),
    }
