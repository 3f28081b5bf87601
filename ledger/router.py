"""The router's port: all that a router needs to continue on any replica.

Three implementations behave alike, checked by ``tests/contracts/test_router_port.py``: ``LocalRouter`` (this process's
memory, a router's unchanged default), ``LedgerRouter`` (the ledger in this process) and ``HttpRouter``
(``adapters.http``, a client of the ledger service).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Protocol

from msgspec.structs import replace

from ledger import codec
from ledger.alias import CONTROL_KEY, DIGEST_VERSION, AliasKey, record_key
from ledger.answer import Answer, Found, History, Token, Verdict
from ledger.commit import abandonment, content_document, lineage_of, turn_event, verdict_of
from ledger.content import ContentRef, decode_content, encode_content
from ledger.event import ClockTicked, Event, LedgerFormatted
from ledger.fold import fold
from ledger.ledger import Ledger, wall_clock_ms
from ledger.log import Record
from ledger.policy import Policy
from ledger.query import NativeHistory, answer_from, entry_of, walk
from ledger.settings import LedgerSettings
from ledger.table import Rows
from ledger.turn import Offset, Partition, Scope, Selector, Turn
from ledger.verdict import Code, ContentUnneeded, Outcome
from ledger.view import ViewStore


class Router(Protocol):
    """What a router asks of whoever remembers its turns."""

    async def load(self, selector: Selector, *, history: bool = False, token: Token | None = None) -> Answer:
        """Answer ``Found``, ``Missing`` or ``Gone``; with ``history``, ``Found`` carries all items.

        Raises ``Unavailable`` rather than a wrong ``Missing``, ``InvalidInput``, and ``NativeHistory`` for the history
        of a native turn.
        """
        ...

    async def commit(self, turn: Turn) -> Verdict:
        """Make a turn durable and return the verdict; the same ``event_id`` again has no second effect.

        Raises ``InvalidInput`` before anything is written, ``Unavailable`` when nothing was written, and ``Unknown``
        when that cannot be told: retry with the same ``event_id`` or abandon.
        """
        ...

    async def abandon(self, scope: Scope, event_id: str) -> Verdict | None:
        """Give up a commit; None: it could not be written yet and will be retried."""
        ...


class LedgerRouter:
    """The ledger in this process."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def load(self, selector: Selector, *, history: bool = False, token: Token | None = None) -> Answer:
        return await self._ledger.reader.load(selector, history=history, token=token)

    async def commit(self, turn: Turn) -> Verdict:
        return await self._ledger.committer.commit(turn)

    async def abandon(self, scope: Scope, event_id: str) -> Verdict | None:
        return await self._ledger.committer.abandon(scope, event_id)


class LocalRouter:
    """This process's memory: the same fold without a log, so the same verdicts; gone when the process ends.

    ``store`` is a fresh in-memory view. Its one partition is bounded by the policy like any other.
    """

    def __init__(
        self,
        store: ViewStore,
        *,
        policy: Policy | None = None,
        settings: LedgerSettings | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._rows = Rows(store, Partition(0))
        self._contents: dict[bytes, list[bytes]] = {}
        self._alias_key = AliasKey(secrets.token_bytes(32))
        self._settings = settings or LedgerSettings()
        self._now_ms = now_ms
        self._fold(
            CONTROL_KEY,
            LedgerFormatted(
                ledger_id=secrets.token_bytes(16),
                partition=0,
                partition_count=1,
                digest_version=DIGEST_VERSION,
                key_check=self._alias_key.check_value(),
                format=codec.FORMAT,
                fold_version=codec.FOLD_VERSION,
                written_at_ms=now_ms(),
                policy=policy or Policy(),
            ),
        )

    async def load(self, selector: Selector, *, history: bool = False, token: Token | None = None) -> Answer:
        self._fold(CONTROL_KEY, ClockTicked(written_at_ms=self._now_ms()))
        answer = answer_from(self._rows, selector.kind, self._alias_key.alias(selector))
        if not history or not isinstance(answer, Found):
            return answer
        if answer.owner.native:
            raise NativeHistory("the ID names a native turn; its history is at its owner")
        nodes = walk(self._rows, answer.node) if answer.lineage else []
        entries = tuple(entry_of(self._rows, offset, node, self._document(node.content)) for offset, node in nodes)
        return replace(answer, history=History(entries=entries, revision=answer.revision))

    async def commit(self, turn: Turn) -> Verdict:
        now_ms = self._now_ms()
        content: ContentRef | None = None
        chunks: list[bytes] = []
        if turn.content is not None:
            chunks, size_bytes = encode_content(content_document(turn.content))
            content = ContentRef(
                scope=self._alias_key.scope(turn.scope),
                id=secrets.token_bytes(16),
                chunks=len(chunks),
                size_bytes=size_bytes,
                last_offset=0,
                oldest_at_ms=now_ms,
            )
        not_after_ms = turn.begun_at_ms + self._settings.commit_window_ms
        event = turn_event(self._alias_key, turn, content, now_ms, not_after_ms)
        key = record_key(turn.scope.namespace, lineage_of(event, self._rows))
        offset, outcome = self._fold(key, event)
        if content is not None and outcome.code is Code.ACCEPTED:
            self._contents[content.id] = chunks
        return verdict_of(self._rows, offset, outcome)

    async def abandon(self, scope: Scope, event_id: str) -> Verdict | None:
        event = abandonment(self._alias_key, scope, event_id, self._now_ms(), self._settings.commit_window_ms)
        offset, outcome = self._fold(record_key(scope.namespace, event.principal), event)
        return verdict_of(self._rows, offset, outcome)

    def _fold(self, key: bytes, event: Event) -> tuple[Offset, Outcome]:
        offset = Offset(self._rows.position)
        record = Record(
            partition=Partition(0), offset=offset, appended_at_ms=self._now_ms(), key=key, value=codec.encode(event)
        )
        outcome, facts = fold(self._rows, record)
        for fact in facts:
            if isinstance(fact, ContentUnneeded):
                self._contents.pop(fact.content.id, None)
        self._rows.store.write(self._rows.changes())
        self._rows.committed()
        return offset, outcome

    def _document(self, ref: ContentRef | None) -> dict[str, Any]:
        return {} if ref is None else decode_content(self._contents[ref.id])
