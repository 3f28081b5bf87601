"""Reads: who owns an ID, and what its history is.

Design §5. A *continuation look-up* of a response that is found and alive is answered at once if the view confirmed the
end of its partition within ``max_staleness_s``: an owner never changes, only a very recent deletion can be missed.
Everything else passes the barrier first, so that a view that lags answers ``Unavailable`` and never ``Missing``. A row
that looks due by the wall clock while the fold says alive is decided by one appended clock tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from msgspec.structs import replace

from ledger import codec
from ledger.alias import CONTROL_KEY, AliasKey, partition_of
from ledger.answer import Answer, Entry, Found, Gone, History, Missing, Token, gone_reason
from ledger.barrier import Barrier
from ledger.content import ContentRef, ContentStore, decode_content
from ledger.errors import AncestorMissing, CallerError, ContentLost, InvalidInput, Unavailable
from ledger.event import ClockTicked, OwnerRef
from ledger.fates import Gone as FoldGone
from ledger.fates import conversation_fate, item_fate, response_fate
from ledger.log import AppendUncertain, EventLog
from ledger.replica import Replica
from ledger.rows import NodeRow, ResponseRow
from ledger.settings import LedgerSettings
from ledger.table import Rows
from ledger.turn import Offset, Owner, Partition, Position, Revision, Scope, Selector, SelectorKind, Status

logger = structlog.get_logger("ledger.query")

HISTORY_LOADS_MAX = 16
"""Contents of one history that are read before others on the event loop get their turn: about a millisecond."""
KEY_POLL_S = 0.02
"""Between two looks at a key that is held: a row of the local view, some microseconds."""


class NativeHistory(CallerError):
    """The ID names a native turn: its history is at its owner, the ledger has none."""

    advice = "ask the owner named in the look-up"


class Reader:
    """Answers reads from this process's view. One per process."""

    def __init__(
        self,
        log: EventLog,
        contents: ContentStore,
        replica: Replica,
        barrier: Barrier,
        alias_key: AliasKey,
        settings: LedgerSettings,
        now_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._contents = contents
        self._replica = replica
        self._barrier = barrier
        self._alias_key = alias_key
        self._settings = settings
        self._now_ms = now_ms
        self._ticks: dict[Partition, tuple[float, asyncio.Task[Position]]] = {}
        self._confirming: dict[Partition, asyncio.Task[None]] = {}

    def partition(self, scope: Scope) -> Partition:
        """Return the partition of a scope's principal."""
        return partition_of(self._alias_key.principal(scope), self._replica.partition_count)

    async def load(
        self,
        selector: Selector,
        *,
        history: bool = False,
        strong: bool = False,
        token: Token | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Answer who owns an ID, with its history on request.

        ``strong`` passes the barrier whatever the answer; so does ``token``, and the answer is not older than that
        commit. Raises ``Unavailable`` when the truth cannot be told in time, ``NativeHistory`` for the history of a
        native turn, ``InvalidInput`` for a token of another log.
        """
        loop = asyncio.get_running_loop()
        partition = self.partition(selector.scope)
        state = self._replica.state(partition)
        alias = self._alias_key.alias(selector)
        is_continuation = selector.kind is SelectorKind.RESPONSE and token is None and not (strong or history)
        age_s = loop.time() - state.confirmed_at_s
        if is_continuation and age_s <= self._settings.max_staleness_s:
            if age_s > self._settings.max_staleness_s / 2:
                self._confirm_soon(partition)
            answer = answer_from(state.rows, selector.kind, alias)
            # A turn that has not ended has no lineage yet, and its owner may still change.
            if isinstance(answer, Found) and answer.lineage and not self._looks_due(answer):
                return answer
        deadline_s = loop.time() + (self._settings.read_timeout_s if timeout_s is None else timeout_s)
        answer = await self._through_barrier(partition, selector.kind, alias, deadline_s)
        # The barrier's end lies beyond every acknowledged record, so a commit's own token is seen behind it.
        if token is not None and token.partition == partition and state.rows.position <= token.offset:
            raise InvalidInput("token", "names a record that the log does not have")
        if history and isinstance(answer, Found):
            return await self._with_history(partition, selector.kind, alias, answer, deadline_s)
        return answer

    def _confirm_soon(self, partition: Partition) -> None:
        """Confirm the end of a partition in the background, before a continuation has to wait for it."""
        if partition not in self._confirming:
            self._confirming[partition] = asyncio.create_task(self._confirm(partition))

    async def _confirm(self, partition: Partition) -> None:
        try:
            await self._barrier.pass_through(partition, timeout_s=self._settings.read_timeout_s)
        except Unavailable as error:
            # The next look-up finds the confirmation too old, asks itself, and tells its caller.
            logger.info("confirmation_failed", partition=partition, reason=error.reason)
        finally:
            del self._confirming[partition]

    async def _through_barrier(
        self, partition: Partition, kind: SelectorKind, alias: bytes, deadline_s: float
    ) -> Answer:
        loop = asyncio.get_running_loop()
        await self._barrier.pass_through(partition, timeout_s=max(0.0, deadline_s - loop.time()))
        answer = answer_from(self._replica.rows(partition), kind, alias)
        if isinstance(answer, Found) and self._looks_due(answer):
            await self._tick(partition, deadline_s)
            answer = answer_from(self._replica.rows(partition), kind, alias)
        return answer

    def _looks_due(self, found: Found) -> bool:
        return found.expires_at_ms <= self._now_ms()

    # Clock ticks

    async def _tick(self, partition: Partition, deadline_s: float) -> None:
        """Have one clock tick folded that was appended within the last interval, by whichever reader came first."""
        loop = asyncio.get_running_loop()
        shared = self._ticks.get(partition)
        if shared is None or loop.time() - shared[0] >= self._settings.tick_interval_s:
            shared = (loop.time(), asyncio.create_task(self._append_tick(partition)))
            self._ticks[partition] = shared
        try:
            async with asyncio.timeout_at(deadline_s):
                position = await asyncio.shield(shared[1])
        except TimeoutError:
            raise Unavailable("deadline", f"a clock tick of partition {partition} was not appended in time") from None
        await self._replica.reached(partition, position, timeout_s=max(0.0, deadline_s - loop.time()))

    async def _append_tick(self, partition: Partition) -> Position:
        event = ClockTicked(written_at_ms=self._now_ms())
        value = codec.encode(event, self._replica.rows(partition).meta.format)
        try:
            appended = await self._log.append(partition, CONTROL_KEY, value, timeout_s=self._settings.read_timeout_s)
        except AppendUncertain as error:
            self._ticks.pop(partition, None)
            raise Unavailable("deadline", f"a clock tick may not be in the log: {error}") from None
        except Unavailable:
            self._ticks.pop(partition, None)
            raise
        return Position(appended.offset + 1)

    async def tick_due(self) -> int:
        """Append a tick to every partition whose queue is due by the wall clock; return how many.

        The embedded ledger calls this on a schedule, so that it expires and erases without traffic.
        """
        ticked = 0
        loop = asyncio.get_running_loop()
        for partition, state in self._replica.states().items():
            if state.stopped is None and state.rows.meta.queue_due_ms <= self._now_ms():
                await self._tick(partition, loop.time() + self._settings.read_timeout_s)
                ticked += 1
        return ticked

    async def close(self) -> None:
        """End what is under way in the background."""
        tasks = [*(task for _, task in self._ticks.values()), *self._confirming.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Histories

    async def _with_history(
        self, partition: Partition, kind: SelectorKind, alias: bytes, found: Found, deadline_s: float
    ) -> Answer:
        for _ in range(2):
            if found.owner.native:
                raise NativeHistory("the ID names a native turn; its history is at its owner")
            if not found.lineage:
                return replace(found, history=History(entries=()))
            rows = self._replica.rows(partition)
            nodes = walk(rows, found.node)
            try:
                entries = await self._load_entries(partition, rows, nodes, deadline_s)
            except ContentLost:
                # Deleted or erased while it was read; the rows know, unless it is lost in earnest.
                answer = await self._through_barrier(partition, kind, alias, deadline_s)
                if not isinstance(answer, Found) or (answer == found and nodes == walk(rows, answer.node)):
                    if isinstance(answer, Found):
                        raise
                    return answer
                found = answer
                continue
            return replace(found, history=History(entries=entries, revision=found.revision))
        raise Unavailable("content_lag", "the history changed while it was read; retry")

    async def entry(self, selector: Selector, *, timeout_s: float | None = None) -> tuple[Answer, Entry | None]:
        """Answer who owns an ID, as of now, and what its own turn or item batch adds; its ancestors are not read.

        None without a living ID, of a native turn, of one that has not ended and of an empty conversation. Raises like
        ``load``.
        """
        deadline_s = asyncio.get_running_loop().time() + (
            self._settings.read_timeout_s if timeout_s is None else timeout_s
        )
        partition, alias = self.partition(selector.scope), self._alias_key.alias(selector)
        answer = await self._through_barrier(partition, selector.kind, alias, deadline_s)
        for _ in range(2):
            rows = self._replica.rows(partition)
            node = rows.node(answer.node) if isinstance(answer, Found) and not answer.owner.native else None
            if node is None or not isinstance(answer, Found):
                return answer, None
            name = _living_response_id(rows, answer.node, node)
            try:
                return answer, await self._load_entry(partition, answer.node, node, name, deadline_s)
            except ContentLost:
                # Deleted or erased while it was read; the rows know, unless it is lost in earnest.
                again = await self._through_barrier(partition, selector.kind, alias, deadline_s)
                if isinstance(again, Found) and self._replica.rows(partition).node(again.node) == node:
                    raise
                answer = again
        raise Unavailable("content_lag", "the turn changed while it was read; retry")

    async def key_settled(self, scope: Scope, idempotency_key: str, *, timeout_s: float) -> bool:
        """Wait until no started turn holds a key: it is bound to a turn, free, or its lease has passed.

        False: it is still held after ``timeout_s``. Reads rows of this view only, so that waiting costs the log
        nothing; whoever goes on asks the log again.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        rows = self._replica.rows(self.partition(scope))
        key = self._alias_key.idempotency_key(scope, idempotency_key)
        while True:
            row = rows.key(key)
            if row is None or row.node or row.until_ms <= max(rows.meta.clock_ms, self._now_ms()):
                return True
            if loop.time() >= deadline_s:
                return False
            await asyncio.sleep(KEY_POLL_S)

    def turn_has_ended(self, scope: Scope, turn_id: str) -> bool:
        """Return whether this view has folded the end of a started turn; one that is not known counts as ended."""
        row = self._replica.rows(self.partition(scope)).turn(self._alias_key.turn_id(scope, turn_id))
        return row is None or row.ended

    async def _load_entries(
        self, partition: Partition, rows: Rows, nodes: list[tuple[int, NodeRow]], deadline_s: float
    ) -> tuple[Entry, ...]:
        # Named before anything is awaited: the rows are those of one moment.
        described = [(offset, node, _living_response_id(rows, offset, node)) for offset, node in nodes]
        entries: list[Entry] = []
        # One after the other: contents are local, and a task for each took longer than reading it.
        for offset, node, name in described:
            entries.append(await self._load_entry(partition, offset, node, name, deadline_s))
            if len(entries) % HISTORY_LOADS_MAX == 0:
                await asyncio.sleep(0)
        return tuple(entries)

    async def _load_entry(
        self, partition: Partition, offset: int, node: NodeRow, response_id: str | None, deadline_s: float
    ) -> Entry:
        document = {} if node.content is None else await self.document(partition, node.content, deadline_s)
        return entry_from(offset, node, response_id, document)

    async def document(self, partition: Partition, ref: ContentRef, deadline_s: float) -> dict[str, Any]:
        """Return the JSON document of a content."""
        timeout_s = max(0.001, deadline_s - asyncio.get_running_loop().time())
        return decode_content(await self._contents.get(partition, ref, timeout_s=timeout_s))


def answer_from(rows: Rows, kind: SelectorKind, alias: bytes) -> Answer:
    """Return what the rows say about an alias, by the partition clock."""
    clock_ms = rows.meta.clock_ms
    found: Found | FoldGone | None
    match kind:
        case SelectorKind.RESPONSE:
            found = _response(rows, alias, clock_ms)
        case SelectorKind.CONVERSATION:
            found = _conversation(rows, alias, clock_ms)
        case SelectorKind.ITEM:
            found = _item(rows, alias, clock_ms)
    if found is None:
        return Missing(kind=kind)
    if isinstance(found, Found):
        return found
    if clock_ms >= found.forget_at_ms:
        return Missing(kind=kind)
    return Gone(kind=kind, reason=gone_reason(found.fate), at_ms=found.at_ms)


def walk(rows: Rows, offset: int) -> list[tuple[int, NodeRow]]:
    """Return the chain of nodes from the root to ``offset``. Raises ``AncestorMissing``; 0 is an empty chain."""
    nodes: list[tuple[int, NodeRow]] = []
    while offset:
        node = rows.node(offset)
        if node is None:
            raise AncestorMissing(offset)
        nodes.append((offset, node))
        offset = node.parent
    nodes.reverse()
    return nodes


def entry_of(rows: Rows, offset: int, node: NodeRow, document: dict[str, Any]) -> Entry:
    """Return the history's entry of a node and its content's document."""
    return entry_from(offset, node, _living_response_id(rows, offset, node), document)


def entry_from(offset: int, node: NodeRow, response_id: str | None, document: dict[str, Any]) -> Entry:
    """Return the history's entry of a node whose response ID was read when the node was."""
    return Entry(
        node=Offset(offset),
        status=Status(node.status),
        accepted_at_ms=node.accepted_at_ms,
        response_id=response_id,
        content=node.content,
        input=document.get("input") or [],
        output=document.get("output") or [],
        metadata=document.get("metadata") or {},
        record=document.get("record"),
    )


def _response_row(rows: Rows, offset: int, node: NodeRow) -> ResponseRow | None:
    """Return the row of a node's response, unless its alias is another turn's by now."""
    row = None if node.response is None else rows.response(node.response)
    return row if row is not None and row.node == offset else None


def _living_response_id(rows: Rows, offset: int, node: NodeRow) -> str | None:
    row = _response_row(rows, offset, node)
    return codec.decode_sealed(row.sealed).response_id if row is not None and row.sealed else None


def _owner(owner: OwnerRef) -> Owner:
    return Owner(native=owner.native, target=owner.target, digest=owner.digest)


def _response(rows: Rows, alias: bytes, clock_ms: int) -> Found | FoldGone | None:
    row = rows.response(alias)
    if row is None:
        return None
    lineage = rows.lineage(row.lineage) if row.lineage else None
    gone = response_fate(row, lineage, rows.principal(row.principal), clock_ms, rows.meta.policy)
    if gone is not None:
        return gone
    sealed = codec.decode_sealed(row.sealed)
    status = Status(row.status)
    expires_at_ms = row.expires_at_ms
    if row.lease_until_ms:
        # A started turn whose replica died counts as failed from the end of its lease on.
        status = Status.FAILED if clock_ms >= row.lease_until_ms else status
        expires_at_ms = row.lease_until_ms + rows.meta.policy.event_window_max_ms
    elif not expires_at_ms and lineage is not None:
        expires_at_ms = lineage.expires_at_ms
    return Found(
        kind=SelectorKind.RESPONSE,
        owner=_owner(row.owner),
        status=status,
        node=Offset(row.node),
        lineage=row.lineage,
        created_at_ms=row.accepted_at_ms,
        expires_at_ms=expires_at_ms,
        record=sealed.record,
        response_id=sealed.response_id,
        conversation_id=sealed.conversation_id,
        turn_id_digest=row.turn_id,
    )


def _conversation(rows: Rows, alias: bytes, clock_ms: int) -> Found | FoldGone | None:
    row = rows.conversation(alias)
    if row is None:
        return None
    lineage = rows.lineage(alias)
    gone = conversation_fate(row, lineage, rows.principal(row.principal), clock_ms, rows.meta.policy)
    if gone is not None:
        return gone
    sealed = codec.decode_sealed(row.sealed)
    return Found(
        kind=SelectorKind.CONVERSATION,
        owner=_owner(row.owner),
        status=Status.COMPLETED,
        node=Offset(row.head),
        lineage=alias,
        created_at_ms=row.created_at_ms,
        expires_at_ms=0 if lineage is None else lineage.expires_at_ms,
        revision=Revision(row.revision),
        record=sealed.record,
        conversation_id=sealed.conversation_id,
        metadata=row.metadata,
    )


def _item(rows: Rows, alias: bytes, clock_ms: int) -> Found | FoldGone | None:
    row = rows.item(alias)
    if row is None:
        return None
    gone = item_fate(rows, row, clock_ms)
    if gone is not None:
        return gone
    node = rows.node(row.node)
    if node is None:
        return None
    response = _response_row(rows, row.node, node)
    lineage = rows.lineage(node.lineage)
    return Found(
        kind=SelectorKind.ITEM,
        owner=Owner(native=node.native, target="ledger") if response is None else _owner(response.owner),
        status=Status(node.status),
        node=Offset(row.node),
        lineage=node.lineage,
        created_at_ms=node.accepted_at_ms,
        expires_at_ms=0 if lineage is None else lineage.expires_at_ms,
        response_id=_living_response_id(rows, row.node, node),
    )
