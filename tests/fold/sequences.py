"""Random logs of one partition, dense with collisions: few names, short lifetimes, clocks that jump.

A log is drawn as a list of steps, each a few small numbers, and written out by a function of them alone, without
folding: revisions and old contents are guessed from the offsets of earlier records, and often guessed right.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from hypothesis import note
from hypothesis import strategies as st
from msgspec.structs import replace

from ledger import codec
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
from ledger.log import Record
from ledger.policy import Policy
from ledger.turn import Offset, Partition, Status
from tests.fold.names import (
    P0,
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

SHORT = Policy(
    active_ttl_ms=6_000,
    tombstone_ttl_ms=4_000,
    commit_grace_ms=2_000,
    idempotency_ttl_ms=3_000,
    content_grace_ms=8_000,
    clock_step_max_ms=5_000,
    event_window_max_ms=5_000,
    lease_max_ms=3_000,
)
"""Lifetimes that a few steps outlast."""
TIGHT = replace(
    SHORT,
    tombstones_per_principal_max=2,
    lineage_turns_max=4,
    lineage_bytes_max=400,
    principal_records_max=3,
    principal_bytes_max=500,
)
"""Limits that a few turns reach."""
POLICIES = [SHORT, replace(SHORT, sliding=True), TIGHT, replace(TIGHT, sliding=True)]
UNLIMITED_POLICIES = POLICIES[:2]

EVENT_WINDOW_MS = 4_000
"""``not_after`` of the drawn events: within the policy's window, and soon passed."""
PRINCIPALS = ("alice", "bob")
RESPONSES = ("r0", "r1", "r2", "r3", "r4", "r5")
CONVERSATIONS = ("c0", "c1")
TARGETS = ("p1", "p2")


class Action(enum.IntEnum):
    """What happens in a step; the order is the order in which a failing log is simplified."""

    TURN = 0
    CHILD = enum.auto()
    CONVERSATION_TURN = enum.auto()
    TICK = enum.auto()
    KEYED_TURN = enum.auto()
    START = enum.auto()
    TERMINAL = enum.auto()
    ABANDON = enum.auto()
    RETRY = enum.auto()
    REDELIVER = enum.auto()
    DELETE = enum.auto()
    CREATE = enum.auto()
    UPDATE = enum.auto()
    APPEND_ITEMS = enum.auto()
    DELETE_ITEM = enum.auto()
    DELETE_CONVERSATION = enum.auto()
    ERASE = enum.auto()
    POLICY = enum.auto()
    FORMAT = enum.auto()
    GARBAGE = enum.auto()


class Step(NamedTuple):
    """One record to be: an action and the numbers from which its fields are chosen."""

    action: Action
    wait_ms: int
    a: int
    b: int
    c: int
    d: int


FREQUENT = [
    *[Action.TURN] * 3,
    *[Action.CHILD] * 6,
    *[Action.CONVERSATION_TURN] * 5,
    *[Action.TICK] * 3,
    *[Action.KEYED_TURN] * 2,
    *[Action.START] * 2,
    *[Action.TERMINAL] * 2,
    *[Action.ABANDON] * 3,
    Action.RETRY,
    Action.REDELIVER,
    *[Action.DELETE] * 2,
    *[Action.CREATE] * 2,
    Action.UPDATE,
    *[Action.APPEND_ITEMS] * 2,
    *[Action.DELETE_ITEM] * 2,
    *[Action.DELETE_CONVERSATION] * 2,
    Action.ERASE,
]
EVERYTHING = [*FREQUENT, Action.POLICY, Action.FORMAT, Action.GARBAGE]
WAITS_MS = [0, 0, 0, 1, 100, 100, 500, 1_000, 1_000, 2_000, 3_000, 7_000, -3_000, -100_000, 1_000_000]
"""A step of 1,000,000 ms is a broken clock: the writer's own does not agree with it."""

small = st.integers(0, 11)


def steps(actions: list[Action] = EVERYTHING, size_max: int = 60) -> st.SearchStrategy[list[Step]]:
    step = st.builds(Step, st.sampled_from(actions), st.sampled_from(WAITS_MS), small, small, small, small)
    return st.one_of(st.lists(step, max_size=12), st.lists(step, min_size=size_max // 2, max_size=size_max))


class Writer:
    """Writes steps out as records of one partition."""

    def __init__(
        self,
        policy: Policy,
        *,
        partition: Partition = P0,
        partition_count: int = 1,
        principals: tuple[str, ...] = PRINCIPALS,
    ) -> None:
        self.records: list[Record] = []
        self.events: list[Event] = []
        self._policy = policy
        self._partition = partition
        self._principals = principals
        self._now_ms = T0_MS
        self._generation = 0
        self._contents = 0
        self._append(formatted(policy, partition=partition, partition_count=partition_count), self._now_ms)

    def write(self, steps: list[Step]) -> list[Record]:
        """Return the whole log: ``LedgerFormatted`` and one record a step."""
        note(f"{self._policy}")
        note(f"{steps}")
        for step in steps:
            appended_at_ms = self._now_ms + step.wait_ms
            if abs(step.wait_ms) < 100_000:
                self._now_ms = appended_at_ms
            if step.action is Action.GARBAGE:
                self._append_bytes(self._garbage(step), appended_at_ms)
            else:
                self._append(self._event(step), appended_at_ms)
        return self.records

    def _append(self, event: Event, appended_at_ms: int) -> None:
        self.events.append(event)
        self._append_bytes(codec.encode(event), appended_at_ms)

    def _append_bytes(self, value: bytes, appended_at_ms: int) -> None:
        offset = Offset(len(self.records))
        self.records.append(
            Record(
                partition=self._partition,
                offset=offset,
                appended_at_ms=max(0, appended_at_ms),
                key=CONTROL_KEY,
                value=value,
            )
        )

    def _garbage(self, step: Step) -> bytes:
        value = self.records[step.a % len(self.records)].value or b""
        return [b"", b"\x01", b"\x02" + value[1:], value + b"\0", value[: len(value) // 2], b"\x01\xc1"][step.b % 6]

    def _event(self, step: Step) -> Event:
        match step.action:
            case Action.TICK:
                return ClockTicked(written_at_ms=self._now_ms)
            case Action.POLICY:
                return self._policy_changed(step)
            case Action.FORMAT:
                return FormatRaised(
                    generation=self._next_generation(step), written_at_ms=self._now_ms, format=1, fold_version=1
                )
            case Action.REDELIVER | Action.RETRY:
                return self._again(step)
            case _:
                return self._scoped(step)

    def _next_generation(self, step: Step) -> int:
        self._generation += 1 if step.b % 4 else 0
        return self._generation

    def _policy_changed(self, step: Step) -> PolicyChanged:
        policy = POLICIES[step.a % 4] if self._policy in (TIGHT, POLICIES[3]) else POLICIES[step.a % 2]
        if step.c % 3 == 0:
            policy = replace(policy, active_ttl_ms=policy.active_ttl_ms * 2, commit_grace_ms=500)
        return PolicyChanged(generation=self._next_generation(step), written_at_ms=self._now_ms, policy=policy)

    def _again(self, step: Step) -> Event:
        """Return an earlier event: the very same (redelivered), or a retry with the same event ID."""
        event = self.events[-1 - step.a % len(self.events)]
        if step.action is Action.REDELIVER:
            return event
        if isinstance(event, TurnCompleted) and event.content is not None:
            return replace(event, written_at_ms=self._now_ms, content=self._content(step))
        if isinstance(event, ItemsAppended | ItemDeleted):
            return replace(event, written_at_ms=self._now_ms, content=self._content(step))
        if isinstance(event, ConversationCreated | ConversationUpdated) and event.metadata is not None:
            event = replace(event, metadata=self._content(step))
        if isinstance(event, ConversationCreated) and event.content is not None:
            event = replace(event, content=self._content(step))
        return replace(event, written_at_ms=self._now_ms)

    def _content(self, step: Step, *, size_bytes: int = 100) -> ContentRef:
        self._contents += 1
        age_ms = 9_000 if step.d == 11 else 0
        return content_ref(self._contents, max(0, self._now_ms - age_ms), size_bytes=size_bytes)

    def _scoped(self, step: Step) -> Event:
        principal = self._principals[step.d % 4 == 3 and len(self._principals) > 1]
        offset = len(self.records)
        common: dict[str, Any] = {
            "event_id": event_digest(f"append-{offset}", principal),
            "principal": principal_digest(principal),
            "written_at_ms": self._now_ms,
            "not_after_ms": self._now_ms + (EVENT_WINDOW_MS if step.d != 10 else 1_000 * (step.c - 2)),
        }
        began: dict[str, Any] = {"begun_at_ms": max(0, self._now_ms - [0, 0, 500, 3_000][step.c % 4])}
        conversation = conversation_alias(CONVERSATIONS[step.a % len(CONVERSATIONS)], principal)
        expected: dict[str, Any] = {"expected_revision": None if step.b % 3 else max(0, offset - step.c)}
        match step.action:
            case Action.START:
                return self._started(step, principal, common | began)
            case Action.ABANDON:
                number = max(0, offset - step.a) if step.a else offset + 1
                abandoned = event_digest(f"append-{number}", principal)
                return TurnAbandoned(**common, abandoned=abandoned)
            case Action.DELETE:
                return ResponseDeleted(**common, response=self._response(step.a, principal))
            case Action.CREATE:
                native = step.b == 0
                content = None if native or step.b % 2 else self._content(step)
                return ConversationCreated(
                    **common,
                    **began,
                    conversation=conversation,
                    owner=owner_ref(TARGETS[step.c % 2], native=native),
                    metadata=None if native or step.c % 2 else self._content(step, size_bytes=10),
                    items=() if content is None else self._items(step, principal),
                    content=content,
                    sealed=b"",
                )
            case Action.UPDATE:
                metadata = None if step.d % 3 == 0 else self._content(step, size_bytes=20)
                return ConversationUpdated(**common, **began, **expected, conversation=conversation, metadata=metadata)
            case Action.DELETE_CONVERSATION:
                return ConversationDeleted(**common, conversation=conversation, cascade=step.b % 2 == 0)
            case Action.APPEND_ITEMS:
                return ItemsAppended(
                    **common,
                    **began,
                    **expected,
                    conversation=conversation,
                    items=self._items(step, principal),
                    content=self._content(step),
                )
            case Action.DELETE_ITEM:
                old = (max(1, self._contents - step.b // 2)).to_bytes(16, "big")
                return ItemDeleted(
                    **common,
                    conversation=conversation,
                    item=item_alias(f"i{step.c % 4}", principal),
                    old_content=old,
                    content=self._content(step, size_bytes=50),
                )
            case Action.ERASE:
                return PrincipalErased(**common)
            case _:
                return self._completed(step, principal, common | began, expected)

    def _completed(self, step: Step, principal: str, common: dict[str, Any], expected: dict[str, Any]) -> TurnCompleted:
        native = step.c % 4 == 0
        status = [*[Status.COMPLETED] * 8, Status.INCOMPLETE, Status.FAILED, Status.CANCELLED, Status.COMPLETED][step.c]
        has_content = not native and status.continuable and step.d != 9
        with_turn = step.action is Action.TERMINAL
        with_key = step.action is Action.KEYED_TURN or (with_turn and step.b % 2 == 0)
        in_conversation = step.action is Action.CONVERSATION_TURN or (with_turn and step.b % 3 == 0)
        fields: dict[str, Any] = {
            **common,
            "status": status,
            "response": self._response(step.a, principal),
            "parent": self._response(step.b, principal) if step.action is Action.CHILD else None,
            "conversation": conversation_alias(CONVERSATIONS[step.a % 2], principal) if in_conversation else None,
            "items": self._items(step, principal),
            "owner": owner_ref(TARGETS[step.d % 2], native=native),
            "content": self._content(step) if has_content else None,
            "expected_revision": expected["expected_revision"] if in_conversation else None,
            "read_revision": None,
            "idempotency": key_digest(f"k{step.b % 2}", principal) if with_key else None,
            "request_digest": [b"x", b"x", b"y"][step.d % 3] if with_key else b"",
            "turn_id": turn_digest(f"t{step.a % 3}", principal) if with_turn else None,
            "sealed": b"s" * step.b,
        }
        return TurnCompleted(**fields)

    def _started(self, step: Step, principal: str, common: dict[str, Any]) -> TurnStarted:
        with_key = step.b % 2 == 0
        fields: dict[str, Any] = {
            **common,
            "turn_id": turn_digest(f"t{step.a % 3}", principal),
            "lease_ms": [0, 1_000, 2_500, 10_000][step.c % 4],
            "status": Status.IN_PROGRESS,
            "response": self._response(step.a, principal) if step.b % 4 else None,
            "conversation": None if step.b % 3 else conversation_alias(CONVERSATIONS[step.a % 2], principal),
            "exclusive": step.d % 2 == 0,
            "idempotency": key_digest(f"k{step.b % 2}", principal) if with_key else None,
            "request_digest": [b"x", b"x", b"y"][step.d % 3] if with_key else b"",
            "sealed": b"",
        }
        return TurnStarted(**fields)

    def _response(self, number: int, principal: str) -> bytes:
        return response_alias(RESPONSES[number % len(RESPONSES)], principal)

    def _items(self, step: Step, principal: str) -> tuple[bytes, ...]:
        return tuple(item_alias(f"i{step.c % 4 + more}", principal) for more in range(step.b % 3))
