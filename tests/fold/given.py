"""Words for the tests of the fold: a world is one partition's log, its fold and its clock.

``world.turn("resp_a", parent="resp_b")`` appends the bytes of an event and folds them, as a replica does. Names are
turned into digests by the real alias key; content IDs and event IDs follow from the place in the log unless given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from ledger import codec
from ledger.adapters.memory import MemoryViewStore
from ledger.alias import CONTROL_KEY
from ledger.content import ContentRef
from ledger.event import (
    ClockTicked,
    ConversationCreated,
    ConversationDeleted,
    ConversationUpdated,
    Event,
    FormatRaised,
    ItemDeleted,
    ItemsAppended,
    PolicyChanged,
    PrincipalErased,
    ResponseDeleted,
    TurnAbandoned,
    TurnCompleted,
    TurnStarted,
)
from ledger.fold import fold
from ledger.log import Record
from ledger.policy import Policy
from ledger.rows import ConversationRow, ItemRow, LineageRow, NodeRow, PrincipalRow, ResponseRow
from ledger.table import Rows, folded_rows
from ledger.turn import Offset, Partition, Status
from ledger.verdict import ContentUnneeded, Fact, Outcome
from tests.fold.names import (
    P0,
    POLICY,
    SECOND_MS,
    T0_MS,
    content_ref,
    conversation_alias,
    event_digest,
    formatted,
    item_alias,
    key_digest,
    owner_ref,
    principal_digest,
    response_alias,
    turn_digest,
)

Row = TypeVar("Row")


@dataclass
class World:
    """One partition: what was appended, what the fold said, what time it is."""

    policy: Policy = POLICY
    partition: Partition = P0
    partition_count: int = 1
    is_formatted: bool = True
    now_ms: int = T0_MS
    """Append time of the next record, and the wall clock of who writes it."""
    store: MemoryViewStore = field(default_factory=MemoryViewStore)
    records: list[Record] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = Rows(self.store, self.partition)
        if self.is_formatted:
            self.append(formatted(self.policy, partition=self.partition, partition_count=self.partition_count))

    # Time and bytes

    def wait(self, seconds: float) -> None:
        """Let time pass; the fold learns of it with the next record."""
        self.now_ms += round(seconds * SECOND_MS)

    def tick(self) -> Outcome:
        """Append a ``ClockTicked``: it also makes the queue run."""
        return self.append(ClockTicked(written_at_ms=self.now_ms))

    def tick_after(self, seconds: float) -> None:
        """Let time pass, and let everything that is due then be done."""
        self.wait(seconds)
        self.settle()

    def settle(self) -> None:
        """Tick until nothing is due any more."""
        self.tick()
        while self.rows.meta.queue_due_ms <= self.rows.meta.clock_ms:
            self.tick()

    def append(self, event: Event, *, appended_at_ms: int | None = None) -> Outcome:
        return self.append_bytes(codec.encode(event), appended_at_ms=appended_at_ms)

    def append_bytes(
        self, value: bytes | None, *, key: bytes | None = CONTROL_KEY, appended_at_ms: int | None = None
    ) -> Outcome:
        record = Record(
            partition=self.partition,
            offset=Offset(self.next_offset),
            appended_at_ms=self.now_ms if appended_at_ms is None else appended_at_ms,
            key=key,
            value=value,
        )
        outcome, facts = fold(self.rows, record)
        self.records.append(record)
        self.outcomes.append(outcome)
        self.facts.extend(facts)
        return outcome

    def again(self, offset: int) -> Outcome:
        """Append the bytes of an earlier record once more."""
        return self.append_bytes(self.records[offset].value, key=self.records[offset].key)

    def change_policy(self, *, generation: int | None = None, **changes: int | bool) -> Outcome:
        policy = msgspec.structs.replace(self.rows.meta.policy, **changes)
        number = self.rows.meta.generation + 1 if generation is None else generation
        return self.append(PolicyChanged(generation=number, written_at_ms=self.now_ms, policy=policy))

    def raise_format(self, *, generation: int, record_format: int = 1, fold_version: int = 1) -> Outcome:
        return self.append(
            FormatRaised(
                generation=generation, written_at_ms=self.now_ms, format=record_format, fold_version=fold_version
            )
        )

    # Events of a principal

    def turn(
        self,
        response: str,
        *,
        parent: str | None = None,
        conversation: str | None = None,
        native: bool = False,
        target: str = "p1",
        status: Status = Status.COMPLETED,
        items: Iterable[str] = (),
        key: str | None = None,
        request: str = "request",
        turn_id: str | None = None,
        expected_revision: int | None = None,
        read_revision: int | None = None,
        content: ContentRef | None = None,
        size_bytes: int = 100,
        sealed: bytes = b"",
        begun_at_ms: int | None = None,
        principal: str = "alice",
        event_id: str | None = None,
        not_after_ms: int | None = None,
    ) -> Outcome:
        """A turn ended. Portable unless said otherwise, with a content of its own."""
        if content is None and not native and status.continuable:
            content = self.content(size_bytes=size_bytes, principal=principal)
        return self.append(
            TurnCompleted(
                **self._common(principal, event_id, not_after_ms),
                begun_at_ms=self.now_ms if begun_at_ms is None else begun_at_ms,
                status=status,
                response=response_alias(response, principal),
                parent=None if parent is None else response_alias(parent, principal),
                conversation=None if conversation is None else conversation_alias(conversation, principal),
                items=tuple(item_alias(item, principal) for item in items),
                owner=owner_ref(target, native=native),
                content=content,
                expected_revision=expected_revision,
                read_revision=read_revision,
                idempotency=None if key is None else key_digest(key, principal),
                request_digest=b"" if key is None else request.encode(),
                turn_id=None if turn_id is None else turn_digest(turn_id, principal),
                sealed=sealed,
            )
        )

    def start(
        self,
        turn_id: str,
        *,
        response: str | None = None,
        conversation: str | None = None,
        exclusive: bool = False,
        key: str | None = None,
        request: str = "request",
        lease_s: float = 5,
        begun_at_ms: int | None = None,
        principal: str = "alice",
        event_id: str | None = None,
    ) -> Outcome:
        """A turn was started, or its lease renewed."""
        return self.append(
            TurnStarted(
                **self._common(principal, event_id, None),
                begun_at_ms=self.now_ms if begun_at_ms is None else begun_at_ms,
                turn_id=turn_digest(turn_id, principal),
                lease_ms=round(lease_s * SECOND_MS),
                status=Status.IN_PROGRESS,
                response=None if response is None else response_alias(response, principal),
                conversation=None if conversation is None else conversation_alias(conversation, principal),
                exclusive=exclusive,
                idempotency=None if key is None else key_digest(key, principal),
                request_digest=b"" if key is None else request.encode(),
                sealed=b"",
            )
        )

    def abandon(self, event_id: str, *, principal: str = "alice") -> Outcome:
        """The router gave up the append that it named ``event_id``."""
        return self.append(
            TurnAbandoned(**self._common(principal, None, None), abandoned=event_digest(event_id, principal))
        )

    def delete(self, response: str, *, principal: str = "alice") -> Outcome:
        return self.append(
            ResponseDeleted(**self._common(principal, None, None), response=response_alias(response, principal))
        )

    def create_conversation(
        self,
        conversation: str,
        *,
        native: bool = False,
        target: str = "p1",
        metadata: ContentRef | None = None,
        items: Iterable[str] = (),
        content: ContentRef | None = None,
        begun_at_ms: int | None = None,
        principal: str = "alice",
        event_id: str | None = None,
    ) -> Outcome:
        return self.append(
            ConversationCreated(
                **self._common(principal, event_id, None),
                begun_at_ms=self.now_ms if begun_at_ms is None else begun_at_ms,
                conversation=conversation_alias(conversation, principal),
                owner=owner_ref(target, native=native),
                metadata=metadata,
                items=tuple(item_alias(item, principal) for item in items),
                content=content,
                sealed=b"",
            )
        )

    def update_conversation(
        self,
        conversation: str,
        *,
        metadata: ContentRef | None = None,
        expected_revision: int | None = None,
        begun_at_ms: int | None = None,
        principal: str = "alice",
    ) -> Outcome:
        return self.append(
            ConversationUpdated(
                **self._common(principal, None, None),
                begun_at_ms=self.now_ms if begun_at_ms is None else begun_at_ms,
                conversation=conversation_alias(conversation, principal),
                metadata=metadata,
                expected_revision=expected_revision,
            )
        )

    def delete_conversation(self, conversation: str, *, cascade: bool = False, principal: str = "alice") -> Outcome:
        return self.append(
            ConversationDeleted(
                **self._common(principal, None, None),
                conversation=conversation_alias(conversation, principal),
                cascade=cascade,
            )
        )

    def append_items(
        self,
        conversation: str,
        items: Iterable[str],
        *,
        content: ContentRef | None = None,
        size_bytes: int = 100,
        expected_revision: int | None = None,
        begun_at_ms: int | None = None,
        principal: str = "alice",
        event_id: str | None = None,
    ) -> Outcome:
        return self.append(
            ItemsAppended(
                **self._common(principal, event_id, None),
                begun_at_ms=self.now_ms if begun_at_ms is None else begun_at_ms,
                conversation=conversation_alias(conversation, principal),
                items=tuple(item_alias(item, principal) for item in items),
                content=self.content(size_bytes=size_bytes, principal=principal) if content is None else content,
                expected_revision=expected_revision,
            )
        )

    def delete_item(
        self,
        conversation: str,
        item: str,
        *,
        old: ContentRef,
        content: ContentRef | None = None,
        size_bytes: int = 50,
        principal: str = "alice",
    ) -> Outcome:
        return self.append(
            ItemDeleted(
                **self._common(principal, None, None),
                conversation=conversation_alias(conversation, principal),
                item=item_alias(item, principal),
                old_content=old.id,
                content=self.content(size_bytes=size_bytes, principal=principal) if content is None else content,
            )
        )

    def erase(self, *, principal: str = "alice") -> Outcome:
        return self.append(PrincipalErased(**self._common(principal, None, None)))

    def _common(self, principal: str, event_id: str | None, not_after_ms: int | None) -> dict[str, Any]:
        name = f"append-{self.next_offset}" if event_id is None else event_id
        return {
            "event_id": event_digest(name, principal),
            "principal": principal_digest(principal),
            "written_at_ms": self.now_ms,
            "not_after_ms": self.now_ms + 20 * SECOND_MS if not_after_ms is None else not_after_ms,
        }

    # What is there afterwards

    @property
    def next_offset(self) -> int:
        return self.rows.meta.position

    @property
    def last_offset(self) -> int:
        return self.records[-1].offset

    def content(
        self, *, size_bytes: int = 100, number: int | None = None, age_s: float = 0, principal: str = "alice"
    ) -> ContentRef:
        """Return the reference of a content that was written just now; its ID is the next offset."""
        return content_ref(
            self.next_offset if number is None else number,
            self.now_ms - round(age_s * SECOND_MS),
            size_bytes=size_bytes,
            principal=principal,
        )

    def unneeded(self) -> list[int]:
        """Return the numbers of the contents that were reported as unneeded, in that order."""
        return [int.from_bytes(fact.content.id, "big") for fact in self.facts if isinstance(fact, ContentUnneeded)]

    def response(self, name: str, principal: str = "alice") -> ResponseRow | None:
        return self.rows.response(response_alias(name, principal))

    def conversation(self, name: str, principal: str = "alice") -> ConversationRow | None:
        return self.rows.conversation(conversation_alias(name, principal))

    def item(self, name: str, principal: str = "alice") -> ItemRow | None:
        return self.rows.item(item_alias(name, principal))

    def node(self, offset: int) -> NodeRow | None:
        return self.rows.node(offset)

    def node_of(self, response: str, principal: str = "alice") -> NodeRow | None:
        row = self.response(response, principal)
        return None if row is None else self.rows.node(row.node)

    def lineage(self, alias: bytes) -> LineageRow | None:
        return self.rows.lineage(alias)

    def principal(self, principal: str = "alice") -> PrincipalRow:
        return self.rows.principal(principal_digest(principal))

    def history(self, response: str, principal: str = "alice") -> list[int]:
        """Return the offsets from the response's node to its root."""
        row = self.response(response, principal)
        offsets = []
        offset = 0 if row is None else row.node
        while offset:
            offsets.append(offset)
            node = self.rows.node(offset)
            assert node is not None, f"the ancestor at offset {offset} is missing"
            offset = node.parent
        return offsets

    def stored(self) -> dict[bytes, bytes]:
        """Write what was folded to the store and return all rows of the partition, without the partition prefix."""
        self.store.write(self.rows.changes())
        self.rows.committed()
        return {key[2:]: value for key, value in folded_rows(self.store, self.partition)}


def present(row: Row | None) -> Row:
    """Return a row that the test knows to be there."""
    assert row is not None, "the row is not there"
    return row
