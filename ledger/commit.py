"""Commits: write contents, append the event, wait until the fold has judged it.

A commit answers only what it knows (design rule 8). Its verdict comes from the fold of this process's own view, which
holds only durable records; so an append whose acknowledgement was lost still gets its verdict, and one that failed is
``Unknown`` until the deadline, never "not written".

A retry with the same event ID writes its contents again. Whichever copy the fold did not take is deleted here: nobody
can refer to it, because a remembered event ID is never accepted twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from msgspec.structs import replace

from ledger import codec
from ledger.alias import AliasKey, partition_of, record_key
from ledger.answer import Token, Verdict
from ledger.content import ContentRef, ContentStore, encode_content
from ledger.errors import InvalidInput, StoreFailed, TooLarge, Unavailable, Unknown
from ledger.event import (
    OwnerRef,
    PrincipalErased,
    PrincipalEvent,
    ResponseDeleted,
    TurnAbandoned,
    TurnCompleted,
    TurnStarted,
)
from ledger.fold_rules import duplicate_of
from ledger.log import AppendUncertain, EventLog
from ledger.outbox import Outbox
from ledger.replica import Replica
from ledger.settings import LedgerSettings
from ledger.table import Rows
from ledger.turn import (
    ID_BYTES_MAX,
    INT64_MAX,
    Content,
    Offset,
    Owner,
    Partition,
    Revision,
    Scope,
    SelectorKind,
    Status,
    Turn,
    check_record,
    check_request_digest,
    checked_int,
    checked_text,
)
from ledger.verdict import Code, Outcome

logger = structlog.get_logger("ledger.commit")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStart:
    """A turn that others must see before it ends; the same call again with a new ``event_id`` renews its lease."""

    scope: Scope
    event_id: str
    """The router's name for this append."""
    turn_id: str
    """The router's name for the turn, given again with its ``Turn``."""
    begun_at_ms: int
    """Wall clock of the router when the request arrived."""
    lease_ms: int
    """From the append on; at most the policy's ``lease_max_ms`` counts."""
    response_id: str | None = None
    """Set for background responses, so that any replica can be asked about them."""
    conversation_id: str | None = None
    exclusive: bool = False
    """Refuse every other turn on the conversation while leased."""
    idempotency_key: str | None = None
    request_digest: bytes = b""
    queued: bool = False
    """Status ``queued`` rather than ``in_progress``."""
    record: bytes = b""
    """The router's record of a turn that has not ended, as far as other replicas need it; at most
    ``RECORD_BYTES_MAX`` bytes."""

    def __post_init__(self) -> None:
        checked_text("event_id", self.event_id, ID_BYTES_MAX)
        checked_text("turn_id", self.turn_id, ID_BYTES_MAX)
        checked_text("response_id", self.response_id, ID_BYTES_MAX, optional=True)
        checked_text("conversation_id", self.conversation_id, ID_BYTES_MAX, optional=True)
        checked_text("idempotency_key", self.idempotency_key, ID_BYTES_MAX, optional=True)
        checked_int("begun_at_ms", self.begun_at_ms, 0, INT64_MAX)
        checked_int("lease_ms", self.lease_ms, 1, INT64_MAX)
        check_request_digest(self.idempotency_key, self.request_digest)
        check_record(self.record)
        if self.exclusive and self.conversation_id is None:
            raise InvalidInput("exclusive", "needs a conversation_id")


class Committer:
    """Appends events of principals and waits for their verdicts. One per process."""

    def __init__(
        self,
        log: EventLog,
        contents: ContentStore,
        replica: Replica,
        alias_key: AliasKey,
        settings: LedgerSettings,
        now_ms: Callable[[], int],
        new_id: Callable[[], bytes],
    ) -> None:
        self._log = log
        self._contents = contents
        self._replica = replica
        self._alias_key = alias_key
        self._settings = settings
        self._now_ms = now_ms
        self._new_id = new_id
        self._outbox = Outbox(replica.store)
        self._background: set[asyncio.Task[None]] = set()
        self._abandoning: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Retry abandonments that an earlier process could not write."""
        self._abandoning = asyncio.create_task(self._abandon_forever())

    async def close(self) -> None:
        """Stop background work; unwritten abandonments stay on disk."""
        tasks = [*self._background, *([self._abandoning] if self._abandoning else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def partition(self, scope: Scope) -> Partition:
        """Return the partition of a scope's principal."""
        return partition_of(self._alias_key.principal(scope), self._replica.partition_count)

    def not_after_ms(self, begun_at_ms: int) -> int:
        """Return until when a commit that began then may be retried; the same for every attempt."""
        return begun_at_ms + self._settings.commit_window_ms

    async def commit(self, turn: Turn, *, timeout_s: float | None = None) -> Verdict:
        """Append one turn; return its verdict. Raises ``NotHeld``, ``Unavailable`` (both: certainly not written) or
        ``Unknown``."""
        scope = turn.scope
        event_digest = self._alias_key.event_id(scope, turn.event_id)

        sealed_part(turn)

        def build(content: ContentRef | None) -> PrincipalEvent:
            return turn_event(self._alias_key, turn, content, self._now_ms(), self.not_after_ms(turn.begun_at_ms))

        document = None if turn.content is None else content_document(turn.content)
        return await self.submit(scope, turn.event_id, event_digest, build, document, timeout_s=timeout_s)

    async def begin(self, start: TurnStart, *, timeout_s: float | None = None) -> Verdict:
        """Announce a turn or renew its lease; ``key_in_progress`` and ``conversation_locked`` mean: wait.

        A ``duplicate`` by idempotency key names the response that answers the request. Raises like ``commit``.
        """
        alias, scope = self._alias_key, start.scope
        event = TurnStarted(
            event_id=alias.event_id(scope, start.event_id),
            principal=alias.principal(scope),
            written_at_ms=self._now_ms(),
            not_after_ms=self.not_after_ms(self._now_ms()),
            begun_at_ms=start.begun_at_ms,
            turn_id=alias.turn_id(scope, start.turn_id),
            lease_ms=start.lease_ms,
            status=Status.QUEUED if start.queued else Status.IN_PROGRESS,
            response=optional_alias(alias, scope, SelectorKind.RESPONSE, start.response_id),
            conversation=optional_alias(alias, scope, SelectorKind.CONVERSATION, start.conversation_id),
            exclusive=start.exclusive,
            idempotency=optional_key(alias, scope, start.idempotency_key),
            request_digest=start.request_digest,
            sealed=codec.encode_sealed(
                codec.SealedPart(
                    response_id=start.response_id, conversation_id=start.conversation_id, record=start.record
                )
            ),
        )
        return await self.submit(scope, start.event_id, event.event_id, lambda _: event, None, timeout_s=timeout_s)

    async def abandon(self, scope: Scope, event_id: str, *, timeout_s: float | None = None) -> Verdict | None:
        """Give up a commit whose outcome is unknown: it never takes effect, or is undone.

        Returns ``accepted``, or ``kept`` when something was built on the turn meanwhile. When the abandonment cannot be
        written now, it is kept on disk, retried until it is, and None is returned.
        """
        checked_text("event_id", event_id, ID_BYTES_MAX)
        event = abandonment(self._alias_key, scope, event_id, self._now_ms(), self._settings.commit_window_ms)
        partition = self.partition(scope)
        self._replica.require(partition)
        self._outbox.put(partition, event)
        try:
            verdict = await self.submit(scope, event_id, event.event_id, lambda _: event, None, timeout_s=timeout_s)
        except (Unknown, Unavailable):
            return None
        # One that stays is written once more, as a duplicate.
        with contextlib.suppress(StoreFailed):
            self._outbox.remove(partition, event.event_id)
        return verdict

    async def submit(
        self,
        scope: Scope,
        event_id: str,
        event_digest: bytes,
        build: Callable[[ContentRef | None], PrincipalEvent],
        document: dict[str, Any] | None,
        *,
        timeout_s: float | None = None,
    ) -> Verdict:
        """Write the content, append what ``build`` makes of its reference, and wait for the verdict.

        An event ID that this view remembers is answered without writing anything.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + (self._settings.commit_timeout_s if timeout_s is None else timeout_s)
        partition = self.partition(scope)
        rows = self._replica.rows(partition)
        if not rows.meta.ledger_id:
            raise Unavailable("manifest", "the ledger is not formatted; run 'turnledger topics create'")
        known = rows.event(event_digest)
        if known is not None and rows.meta.clock_ms <= known.until_ms:
            return verdict_of(rows, known.offset, duplicate_of(event_digest, known))
        content: ContentRef | None = None
        if document is not None:
            content = await self.put_content(scope, partition, document, deadline_s)
        event = build(content)
        key = record_key(scope.namespace, lineage_of(event, rows))
        try:
            offset, outcome = await self._append(partition, event_id, event, key, deadline_s)
        except Unavailable:
            if content is not None:
                self._erase_soon(partition, content)
            raise
        try:
            if content is not None and not is_taken(rows, outcome, content):
                self._erase_soon(partition, content)
            return verdict_of(rows, offset, outcome)
        except StoreFailed as error:
            raise Unknown(event_id, f"its verdict cannot be read: {error}") from None

    async def put_content(
        self, scope: Scope, partition: Partition, document: dict[str, Any], deadline_s: float
    ) -> ContentRef:
        """Write a content durably; what can never fit is refused before."""
        chunks, size_bytes = encode_content(document)
        policy = self._replica.rows(partition).meta.policy
        for name in ("lineage_bytes_max", "principal_bytes_max"):
            if size_bytes > getattr(policy, name):
                raise TooLarge("content", f"has {size_bytes} bytes, above the policy's {name}")
        timeout_s = max(0.001, deadline_s - asyncio.get_running_loop().time())
        scope_digest = self._alias_key.scope(scope)
        ref = await self._contents.put(partition, scope_digest, self._new_id(), chunks, timeout_s=timeout_s)
        return replace(ref, size_bytes=size_bytes)

    async def _append(
        self, partition: Partition, event_id: str, event: PrincipalEvent, key: bytes, deadline_s: float
    ) -> tuple[Offset, Outcome]:
        """Append and return where it was folded and how; the waiter is set before the record can be."""
        now_s = asyncio.get_running_loop().time()
        value = codec.encode(event, self._replica.rows(partition).meta.format)
        waiter = self._replica.expect(event.event_id)
        try:
            try:
                await self._log.append(partition, key, value, timeout_s=max(0.001, deadline_s - now_s))
            except AppendUncertain as error:
                logger.warning("append_uncertain", partition=partition, message=str(error))
            return await self._folded(event_id, partition, waiter, deadline_s)
        finally:
            self._replica.forget(event.event_id, waiter)

    async def _folded(
        self, event_id: str, partition: Partition, waiter: asyncio.Future[tuple[Offset, Outcome]], deadline_s: float
    ) -> tuple[Offset, Outcome]:
        """Wait for the verdict. Whatever ends the wait, the record may be in the log by now: ``Unknown``."""
        try:
            async with asyncio.timeout_at(deadline_s):
                return await waiter
        except TimeoutError:
            raise Unknown(event_id, f"no verdict from partition {partition} before the deadline") from None
        except Unavailable as error:
            raise Unknown(event_id, str(error)) from None

    def _erase_soon(self, partition: Partition, content: ContentRef) -> None:
        task = asyncio.create_task(self._erase(partition, content))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _erase(self, partition: Partition, content: ContentRef) -> None:
        try:
            await self._contents.erase(partition, [content], timeout_s=self._settings.commit_timeout_s)
        except Unavailable as error:
            # An orphan that is swept once it is older than the policy's content_grace_ms.
            logger.info("orphan_left", partition=partition, message=str(error))

    # Abandonments that could not be written

    def abandonments_waiting(self) -> int:
        """Return how many abandonments are kept on disk."""
        return sum(1 for _ in self._outbox.entries(self._replica.held))

    async def _abandon_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.abandon_retry_s)
            try:
                kept = list(self._outbox.entries(self._replica.held))
            except StoreFailed:
                continue
            for partition, event in kept:
                deadline_s = asyncio.get_running_loop().time() + self._settings.commit_timeout_s
                try:
                    key = record_key("", event.principal)
                    await self._append(partition, "", event, key, deadline_s)
                    self._outbox.remove(partition, event.event_id)
                except (Unknown, Unavailable, StoreFailed):
                    continue


def owner_ref(owner: Owner) -> OwnerRef:
    """Return an owner as the log has it."""
    return OwnerRef(native=owner.native, target=owner.target, digest=owner.digest)


def turn_event(
    alias: AliasKey, turn: Turn, content: ContentRef | None, written_at_ms: int, not_after_ms: int
) -> TurnCompleted:
    """Return the event of a turn. Raises ``TooLarge`` when its raw IDs and record do not fit the sealed part."""
    scope = turn.scope
    return TurnCompleted(
        event_id=alias.event_id(scope, turn.event_id),
        principal=alias.principal(scope),
        written_at_ms=written_at_ms,
        not_after_ms=not_after_ms,
        begun_at_ms=turn.begun_at_ms,
        status=turn.status,
        response=alias.alias_of(scope, SelectorKind.RESPONSE, turn.response_id),
        parent=optional_alias(alias, scope, SelectorKind.RESPONSE, turn.previous_response_id),
        conversation=optional_alias(alias, scope, SelectorKind.CONVERSATION, turn.conversation_id),
        items=tuple(alias.alias_of(scope, SelectorKind.ITEM, item_id) for item_id in turn.item_ids),
        owner=owner_ref(turn.owner),
        content=content,
        expected_revision=turn.expected_revision,
        read_revision=turn.read_revision,
        idempotency=optional_key(alias, scope, turn.idempotency_key),
        request_digest=turn.request_digest,
        turn_id=None if turn.turn_id is None else alias.turn_id(scope, turn.turn_id),
        sealed=sealed_part(turn),
    )


def sealed_part(turn: Turn) -> bytes:
    """Return the sealed part of a turn; raises ``TooLarge``, so that it can be called before a content is written."""
    return codec.encode_sealed(
        codec.SealedPart(response_id=turn.response_id, conversation_id=turn.conversation_id, record=turn.record)
    )


def abandonment(alias: AliasKey, scope: Scope, event_id: str, now_ms: int, commit_window_ms: int) -> TurnAbandoned:
    """Return the event that gives up the commit ``event_id``."""
    return TurnAbandoned(
        event_id=alias.abandonment(scope, event_id),
        principal=alias.principal(scope),
        written_at_ms=now_ms,
        not_after_ms=now_ms + commit_window_ms,
        abandoned=alias.event_id(scope, event_id),
    )


def is_taken(rows: Rows, outcome: Outcome, content: ContentRef) -> bool:
    """Return whether the fold took this copy of a content, rather than that of another attempt, and still needs it.

    A refusal that is not remembered (``invalid``: its window lies too far ahead) counts as taken: the same record may
    land again and be accepted then.
    """
    if not outcome.node:
        return outcome.code in (Code.ACCEPTED, Code.INVALID)
    node = rows.node(outcome.node)
    return node is not None and node.content is not None and node.content.id == content.id


def verdict_of(rows: Rows, offset: int, outcome: Outcome) -> Verdict:
    """Return an outcome as callers see it; ``rows`` are as of the outcome or later."""
    response_id: str | None = None
    if outcome.code is Code.DUPLICATE:
        offset = outcome.first_offset
        node = rows.node(outcome.node) if outcome.node else None
        row = None if node is None or node.response is None else rows.response(node.response)
        # Its alias may be another turn's by now.
        response_id = None if row is None or row.node != outcome.node else codec.decode_sealed(row.sealed).response_id
    return Verdict(
        code=outcome.code,
        token=Token(rows.partition, Offset(offset)),
        first=outcome.first,
        revision=Revision(outcome.revision),
        reason=outcome.reason,
        response_id=response_id,
    )


def optional_alias(alias: AliasKey, scope: Scope, kind: SelectorKind, opaque_id: str | None) -> bytes | None:
    """Return the alias of an ID that may be absent."""
    return None if opaque_id is None else alias.alias_of(scope, kind, opaque_id)


def optional_key(alias: AliasKey, scope: Scope, key: str | None) -> bytes | None:
    """Return the digest of an idempotency key that may be absent."""
    return None if key is None else alias.idempotency_key(scope, key)


def content_document(content: Content) -> dict[str, Any]:
    """Return a content as the JSON document that is stored; ``content_of`` reads it."""
    return {
        "input": content.input,
        "output": content.output,
        "metadata": content.metadata,
        "record": content.record,
    }


def lineage_of(event: PrincipalEvent, rows: Rows) -> bytes:
    """Return the lineage for the record's key, as far as this view knows; no verdict depends on it."""
    match event:
        case TurnCompleted():
            if event.conversation is not None:
                return event.conversation
            parent = None if event.parent is None else rows.response(event.parent)
            return parent.lineage if parent is not None and parent.lineage else event.response
        case TurnStarted():
            return event.conversation or event.response or event.principal
        case ResponseDeleted():
            row = rows.response(event.response)
            return row.lineage if row is not None and row.lineage else event.response
        case TurnAbandoned() | PrincipalErased():
            return event.principal
        case _:
            return event.conversation
