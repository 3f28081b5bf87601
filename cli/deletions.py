"""``turnledger delete`` and ``turnledger erase``."""

from __future__ import annotations

import asyncio
import secrets
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cli.connection import Connection, connected
from cli.kafka import Bootstrap, Prefix, kafka_settings
from cli.output import AsJson, EventId, finish_change, moment
from ledger.answer import Verdict
from ledger.errors import InvalidInput, Unavailable
from ledger.ledger import wall_clock_ms
from ledger.turn import SelectorKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.adapters.kafka_settings import KafkaSettings
    from processors.comparison import Heard
    from processors.erasure import Stage

FILE_DELETE_DELAY_DEFAULT_MS = 60_000
"""Kafka's default, for a client that may not see the topic's configuration."""

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
    wait: Annotated[
        bool, typer.Option("--wait", help="On Kafka: return when the last copy is gone from every disk.")
    ] = False,
    wait_timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait. Default: two days.")] = 172_800.0,
    bootstrap: Bootstrap = None,
    prefix: Prefix = "turnledger",
    event_id: EventId = None,
    as_json: AsJson = False,
) -> None:
    """Erase everything of a principal, on every route, for good.

    Every reader is told so at once. The bytes leave the disks of replicas and workers within minutes, and the brokers
    with the next compaction, after a day or so; --wait tells each step on the way.
    """
    if connection.principal is None:
        raise InvalidInput("principal", "must be named: --principal")
    kafka = kafka_settings(bootstrap, prefix) if wait else None
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidInput("yes", "is needed where nobody can be asked: --yes")
        typer.confirm(f"Erase everything of principal '{connection.principal}' for good?", abort=True, err=True)
    name = event_id or secrets.token_hex(16)
    async with connection.client() as client:
        verdict = await client.erase(connection.scope(), event_id=name)
    if kafka is not None and verdict.accepted:
        await _wait(kafka, verdict, wait_timeout)
    finish_change(verdict, name, as_json=as_json)


async def _wait(kafka: KafkaSettings, verdict: Verdict, timeout_s: float) -> None:
    # Here, so that other commands need not load a Kafka client.
    from ledger.adapters.kafka import KafkaLog
    from ledger.adapters.kafka_settings import CONTENT, LIFECYCLE, REPORTS, TABLES
    from processors.erasure import ASK_TIMEOUT_S, Topics, wait_until_erased

    logs = [KafkaLog(kafka, name) for name in (TABLES, LIFECYCLE, CONTENT, REPORTS)]
    telling = _Telling()
    try:
        async with asyncio.timeout(timeout_s):
            tables, lifecycle, contents, reports = logs
            delay_ms = await contents.config("file.delete.delay.ms", timeout_s=ASK_TIMEOUT_S)
            topics = Topics(
                tables=tables,
                lifecycle=lifecycle,
                contents=contents,
                reports=reports,
                file_delete_delay_s=int(delay_ms or FILE_DELETE_DELAY_DEFAULT_MS) / 1000,
            )
            token = verdict.token
            await wait_until_erased(topics, token.partition, token.offset, telling.reached, telling.waiting)
    except TimeoutError:
        raise Unavailable("deadline", f"the erasure is in the log, and not yet so far: {telling.missing()}") from None
    finally:
        for log in logs:
            await log.close()


class _Telling:
    """Tells each step, and remembers what is missing."""

    def __init__(self) -> None:
        from processors.erasure import Stage

        self._meaning = {
            Stage.FOLDED: "the processors have folded the erasure",
            Stage.SWEPT: "no row of the principal is left in the tables",
            Stage.DELETED: "its contents are deleted for every reader",
            Stage.COMPACTED: "its contents are gone from the brokers",
            Stage.PURGED: "its bytes are gone from the disks of replicas and workers",
        }
        self._out = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self._holders: list[Heard] = []
        self._told = ""

    def reached(self, stage: Stage) -> None:
        """Tell a step."""
        self._out.print(self._meaning.pop(stage))

    def waiting(self, holders: Sequence[Heard]) -> None:
        """Tell whose disks are waited for, when that changes."""
        self._holders = list(holders)
        now_ms = wall_clock_ms()
        named = "; ".join(_last_heard(heard) if heard.is_silent(now_ms) else heard.who for heard in holders)
        if named != self._told:
            self._out.print(f"waiting for the disk of: {named}")
        self._told = named

    def missing(self) -> str:
        """Return what has not come true, and whose disks may still hold the text."""
        what = next(iter(self._meaning.values()))
        if not self._holders:
            return what
        return (
            f"{what}. These disks may still hold some: {'; '.join(map(_last_heard, self._holders))}. Of a disk that is "
            "destroyed, say so with 'turnledger process forget-reporter'"
        )


def _last_heard(heard: Heard) -> str:
    return f"{heard.who}, last heard {moment(heard.heard_at_ms)}"
