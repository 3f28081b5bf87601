"""``turnledger lookup`` and ``turnledger history``."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from cli.connection import Connection, connected
from cli.failures import ExitCode, exit_code_of_answer, report
from cli.output import AsJson, console, fields_table, moment, print_json
from ledger.answer import Answer, Entry, Found, Gone
from ledger.bodies import LOOKUPS_MAX
from ledger.errors import LedgerError
from ledger.turn import SelectorKind
from ledger.wire import absence_body, found_body, kind_of

TEXT_WIDTH_MAX = 160
"""Characters of an item that a history shows; ``--json`` has all."""

Kind = Annotated[str, typer.Argument(metavar="KIND", help="response, conversation or item.")]


@connected
async def lookup(
    connection: Connection,
    kind: Kind,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Opaque IDs, as the client sent them.")],
    strong: Annotated[
        bool, typer.Option("--strong", help="See everything acknowledged before, deletions of the last second too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say who owns an ID."""
    selectors = [connection.selector(kind_of(kind), opaque_id) for opaque_id in ids]
    async with connection.client() as client:
        answers: list[Answer | LedgerError] = []
        for start in range(0, len(selectors), LOOKUPS_MAX):
            answers += await client.load_many(selectors[start : start + LOOKUPS_MAX], strong=strong)
    code = ExitCode.OK
    for opaque_id, answer in zip(ids, answers, strict=True):
        if isinstance(answer, LedgerError):
            raise answer
        code = max(code, exit_code_of_answer(answer))
        _show(opaque_id, answer, as_json=as_json, named=len(ids) > 1)
    raise typer.Exit(code)


@connected
async def history(
    connection: Connection,
    kind: Kind,
    opaque_id: Annotated[str, typer.Argument(metavar="ID")],
    as_json: AsJson = False,
) -> None:
    """Print all that a portable conversation holds, oldest first."""
    selector = connection.selector(kind_of(kind), opaque_id)
    async with connection.client() as client:
        answer = await client.history(selector)
    if as_json or not isinstance(answer, Found):
        _show(opaque_id, answer, as_json=as_json, named=False)
    else:
        assert answer.history is not None, "it was asked for"
        for entry in answer.history.entries:
            _show_entry(console(), entry)
    raise typer.Exit(exit_code_of_answer(answer))


def _show(opaque_id: str, answer: Answer, *, as_json: bool, named: bool) -> None:
    if as_json:
        body = found_body(answer) if isinstance(answer, Found) else absence_body(answer)
        print_json(body if isinstance(answer, Found) else {"error": body})
    elif isinstance(answer, Found):
        table = fields_table()
        if named:
            table.add_row("id", opaque_id)
        for name, value in described(answer).items():
            table.add_row(name, value)
        console().print(table)
    else:
        prefix = f"{opaque_id}: " if named else ""
        since = f" since {moment(answer.at_ms)}" if isinstance(answer, Gone) else ""
        report(f"{prefix}{absence_body(answer).message}{since}")


def described(found: Found) -> dict[str, str]:
    """Return what a look-up found, by name, as a person reads it."""
    kept = "here: any target can continue" if not found.owner.native else "at its owner only"
    values = {
        "owner": found.owner.target,
        "state": kept,
        "status": found.status.name.lower(),
        "response": found.response_id if found.kind is not SelectorKind.RESPONSE else None,
        "conversation": found.conversation_id if found.kind is not SelectorKind.CONVERSATION else None,
        "revision": str(found.revision) if found.kind is SelectorKind.CONVERSATION else None,
        "created": moment(found.created_at_ms),
        "expires": moment(found.expires_at_ms) if found.expires_at_ms else None,
        "event": f"offset {found.node}" if found.node else None,
    }
    return {name: value for name, value in values.items() if value}


def _show_entry(out: Console, entry: Entry) -> None:
    name = entry.response_id or "items"
    out.print(Text(f"{moment(entry.accepted_at_ms)}  {name}  {entry.status.name.lower()}", style="dim"))
    for item in (*entry.input, *entry.output):
        out.print(Text(f"  {summary_of(item)}"), no_wrap=True, overflow="ellipsis", crop=True)


def summary_of(item: Any) -> str:
    """Return an item as one line: who says what."""
    label = ""
    shown = item
    if isinstance(item, dict):
        label = str(item.get("role") or item.get("type") or "")
        shown = item.get("content") or {name: value for name, value in item.items() if name not in ("role", "type")}
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    text = " ".join(text.split())
    if len(text) > TEXT_WIDTH_MAX:
        text = f"{text[:TEXT_WIDTH_MAX]} ... ({len(text)} characters)"
    return f"{label}: {text}" if label else text
