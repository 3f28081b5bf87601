"""An independent reading of the log: what each ID's answer may be at each position.

It takes the verdicts as given and derives everything else from the raw events by the words of the design, without rows,
holds or queues: it looks back at the whole log for every question. What it finds contradictory while it reads the log
(an accepted record that should not have been) is kept in ``contradictions``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ledger import codec
from ledger.alias import AliasKey
from ledger.answer import Answer, Found, Gone, Missing
from ledger.errors import UndecodableRecord
from ledger.event import (
    ConversationCreated,
    ConversationDeleted,
    ConversationUpdated,
    Event,
    ItemDeleted,
    ItemsAppended,
    LedgerFormatted,
    OwnerRef,
    PolicyChanged,
    PrincipalErased,
    PrincipalEvent,
    ResponseDeleted,
    TurnAbandoned,
    TurnCompleted,
    TurnStarted,
)
from ledger.log import Record
from ledger.policy import Policy
from ledger.turn import Partition, SelectorKind, Status
from ledger.verdict import Code
from tests.simulation.evidence import Evidence

BOUNDLESS = 2**30
"""Limits from here on are never reached in a run."""


class End(NamedTuple):
    """Why something is gone, since when, and whether a turn may still build on it for the grace."""

    at_ms: int
    reason: str
    has_grace: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One state of a conversation, valid from a record on."""

    since: int
    """Offset of the record that made this state."""
    created: int
    head: int
    revision: int
    owner: OwnerRef
    principal: bytes
    end: End | None = None


class Model:
    """All partitions."""

    def __init__(self, evidence: Evidence, alias_key: AliasKey) -> None:
        self.evidence = evidence
        self.alias_key = alias_key
        self.partitions = {
            partition: PartitionModel(partition, records, evidence) for partition, records in evidence.records.items()
        }


@dataclass(slots=True)
class Places:
    """Offsets by what they concern."""

    claims: dict[bytes, list[int]] = field(default_factory=dict)
    starts: dict[bytes, list[int]] = field(default_factory=dict)
    deletions: dict[bytes, list[int]] = field(default_factory=dict)
    cascades: dict[bytes, list[int]] = field(default_factory=dict)
    erasures: dict[bytes, list[int]] = field(default_factory=dict)
    item_claims: dict[bytes, list[int]] = field(default_factory=dict)
    item_deletions: dict[bytes, list[int]] = field(default_factory=dict)
    keys: dict[bytes, list[int]] = field(default_factory=dict)
    children: dict[int, list[int]] = field(default_factory=dict)
    turns_of: dict[bytes, list[int]] = field(default_factory=dict)
    """By principal."""


class PartitionModel:
    """One partition, read once from the beginning."""

    def __init__(self, partition: Partition, records: Sequence[Record], evidence: Evidence) -> None:
        self.partition = partition
        self.evidence = evidence
        self.events: list[Event | None] = []
        self.codes: list[Code | None] = []
        self.clocks_ms: list[int] = [0]
        """By position."""
        self.policies: list[Policy] = [Policy()]
        """By position."""
        self.places = Places()
        self.parents: dict[int, int] = {}
        self.lineages: dict[int, bytes] = {}
        self.undone: dict[int, int] = {}
        """Offset of an accepted commit → offset of the abandonment that took it back."""
        self.accepted_events: dict[bytes, int] = {}
        self.contradictions: list[str] = []
        self._is_vague = False
        self._touches: dict[bytes, list[tuple[int, int]]] = {}
        self._lapses: dict[bytes, list[tuple[int, int]]] = {}
        self._conversations: dict[bytes, list[Conversation]] = {}
        for record in records:
            self._take(record)

    # Reading the log

    def _take(self, record: Record) -> None:
        judged = self.evidence.outcomes.get((self.partition, record.offset))
        code = None if judged is None else judged[1].code
        event: Event | None = None
        try:
            event = codec.decode(record.value)
        except UndecodableRecord:
            if code is not Code.QUARANTINED:
                self._contradict(record.offset, f"is unreadable, but its verdict is {code}")
        self.events.append(event)
        self.codes.append(code)
        clock_ms, policy = self.clocks_ms[-1], self.policies[-1]
        if event is not None and (len(self.policies) > 1 or isinstance(event, LedgerFormatted)):
            step_ms = record.appended_at_ms - clock_ms
            is_plausible = event.written_at_ms >= record.appended_at_ms - policy.clock_step_max_ms
            if step_ms > 0 and (step_ms <= policy.clock_step_max_ms or is_plausible):
                clock_ms = record.appended_at_ms
        self.clocks_ms.append(clock_ms)
        if isinstance(event, LedgerFormatted | PolicyChanged) and code is Code.ACCEPTED:
            policy = event.policy
        self.policies.append(policy)
        if event is not None and code is Code.ACCEPTED:
            self._accept(record.offset, event)

    def _contradict(self, offset: int, message: str) -> None:
        self.contradictions.append(f"the record at {self.partition}:{offset} {message}")

    def _accept(self, offset: int, event: Event) -> None:
        places = self.places
        if not isinstance(event, PrincipalEvent):
            return
        first = self.accepted_events.setdefault(event.event_id, offset)
        if first != offset:
            self._contradict(offset, f"has its effect a second time; the first was at {first}")
        if self.clocks_ms[offset + 1] > event.not_after_ms:
            self._contradict(offset, "was accepted after its not_after")
        begun_at_ms = getattr(event, "begun_at_ms", None)
        for erasure in places.erasures.get(event.principal, []):
            if begun_at_ms is not None and begun_at_ms < self.clocks_ms[erasure + 1]:
                self._contradict(offset, f"began before the erasure at {erasure}, and was accepted after it")
        match event:
            case TurnStarted():
                if event.response is not None:
                    places.starts.setdefault(event.response, []).append(offset)
            case TurnCompleted():
                self._turn_completed(offset, event)
            case TurnAbandoned():
                self._turn_abandoned(offset, event)
            case ResponseDeleted():
                if not (claims := places.claims.get(event.response)):
                    if event.response not in places.starts:
                        self._contradict(offset, "deletes a response that nobody claimed")
                elif ends := self.response_ends(claims[-1], offset, self.clocks_ms[offset + 1]):
                    self._contradict(offset, f"deletes a response that is gone: {ends}")
                places.deletions.setdefault(event.response, []).append(offset)
            case ConversationCreated():
                self._conversation_created(offset, event)
            case ConversationUpdated():
                if found := self._continued(offset, event.conversation, event.expected_revision):
                    self._store(event.conversation, replace(found, since=offset, revision=offset))
            case ItemsAppended():
                self._items_appended(offset, event)
            case ItemDeleted():
                if found := self._continued(offset, event.conversation, None):
                    self._store(event.conversation, replace(found, since=offset, revision=offset))
                places.item_deletions.setdefault(event.item, []).append(offset)
            case ConversationDeleted():
                if found := self._continued(offset, event.conversation, None):
                    end = End(self.clocks_ms[offset + 1], "deleted", has_grace=True)
                    self._store(event.conversation, replace(found, since=offset, end=end))
                if event.cascade:
                    places.cascades.setdefault(event.conversation, []).append(offset)
            case PrincipalErased():
                places.erasures.setdefault(event.principal, []).append(offset)

    def _turn_completed(self, offset: int, event: TurnCompleted) -> None:
        places, clock_ms = self.places, self.clocks_ms[offset + 1]
        if claims := places.claims.get(event.response):
            self._judge_second_claim(offset, claims[-1])
        if event.idempotency is not None:
            self._judge_key(offset, event.idempotency)
        parent, lineage = 0, event.response
        if event.conversation is not None:
            lineage = event.conversation
            found = self._continued(offset, lineage, event.expected_revision, may_be_new=True)
            if found is not None:
                parent = found.head
                if not _same_owner(found.owner, event.owner):
                    self._contradict(offset, f"extends a conversation of {found.owner} as {event.owner}")
            if event.status in (Status.COMPLETED, Status.INCOMPLETE):
                state = Conversation(
                    since=offset,
                    created=offset if found is None else found.created,
                    head=offset,
                    revision=offset,
                    owner=event.owner if found is None else found.owner,
                    principal=event.principal,
                )
                self._store(lineage, state)
        elif event.parent is not None:
            found_parent = self._judge_parent(offset, event)
            if found_parent:
                parent, lineage = found_parent, self.lineages[found_parent]
        places.claims.setdefault(event.response, []).append(offset)
        places.turns_of.setdefault(event.principal, []).append(offset)
        self._add_node(offset, lineage, parent, event.items, clock_ms)

    def _add_node(self, offset: int, lineage: bytes, parent: int, items: tuple[bytes, ...], clock_ms: int) -> None:
        self.parents[offset], self.lineages[offset] = parent, lineage
        self.places.children.setdefault(parent, []).append(offset)
        for item in items:
            self.places.item_claims.setdefault(item, []).append(offset)
        self._touch(offset, lineage, clock_ms)

    def _touch(self, offset: int, lineage: bytes, clock_ms: int) -> None:
        policy = self.policies[offset]
        touches = self._touches.setdefault(lineage, [])
        if touches and touches[-1][1] + policy.commit_grace_ms <= clock_ms:
            self._lapses.setdefault(lineage, []).append((offset, touches[-1][1]))
        touches.append((offset, clock_ms + policy.active_ttl_ms))

    def _judge_second_claim(self, offset: int, first: int) -> None:
        if self.is_evictable(first, offset):
            return
        clock_ms = self.clocks_ms[offset + 1]
        ends = self.response_ends(first, offset, clock_ms)
        if not ends:
            self._contradict(offset, f"claims a response that lives since {first}")
        elif not self._few_tombstones and clock_ms < min(ends).at_ms + self.policies[offset].tombstone_ttl_ms:
            self._contradict(offset, f"revives a response whose end is remembered: {ends}")

    def _judge_key(self, offset: int, key: bytes) -> None:
        earlier = self.places.keys.setdefault(key, [])
        for first in earlier:
            event = self._turn(first)
            is_free = first in self.undone or any(
                erasure > first for erasure in self.places.erasures.get(event.principal, [])
            )
            bound_until_ms = self.clocks_ms[first + 1] + self.policies[first].idempotency_ttl_ms
            if not is_free and self.clocks_ms[offset + 1] < bound_until_ms:
                self._contradict(offset, f"takes an idempotency key that is bound to the turn at {first}")
        earlier.append(offset)

    def _judge_parent(self, offset: int, event: TurnCompleted) -> int:
        """Return the parent's offset, 0 if it is unknown."""
        assert event.parent is not None
        claims = self.places.claims.get(event.parent)
        is_portable = not event.owner.native
        clock_ms, policy = self.clocks_ms[offset + 1], self.policies[offset]
        if not claims:
            if is_portable:
                self._contradict(offset, "is portable and continues a response that nobody claimed")
            return 0
        claim = self._turn(claims[-1])
        ends = sorted(self.response_ends(claims[-1], offset, clock_ms))
        if ends and clock_ms >= ends[0].at_ms + policy.tombstone_ttl_ms and not is_portable:
            return 0
        if self.is_evictable(claims[-1], offset):
            return claims[-1]
        if ends and self._few_tombstones and not is_portable:
            # Whether the parent is remembered decides the lineage, and cannot be told from here.
            self._is_vague = True
            return 0
        if ends and (clock_ms >= ends[0].at_ms + policy.commit_grace_ms or not all(end.has_grace for end in ends)):
            self._contradict(offset, f"continues a response that is gone: {ends}")
        if claim.status not in (Status.COMPLETED, Status.INCOMPLETE):
            self._contradict(offset, "continues a response that did not complete")
        if is_portable and claim.owner.native:
            self._contradict(offset, "is portable and continues a native response")
        return claims[-1]

    def _conversation_created(self, offset: int, event: ConversationCreated) -> None:
        clock_ms = self.clocks_ms[offset + 1]
        if self._continued(offset, event.conversation, None, may_be_new=True) is not None:
            self._contradict(offset, "creates a conversation that exists")
        head = 0
        if event.content is not None:
            head = offset
            self._add_node(offset, event.conversation, 0, event.items, clock_ms)
        else:
            self._touch(offset, event.conversation, clock_ms)
        state = Conversation(
            since=offset, created=offset, head=head, revision=offset, owner=event.owner, principal=event.principal
        )
        self._store(event.conversation, state)

    def _items_appended(self, offset: int, event: ItemsAppended) -> None:
        found = self._continued(offset, event.conversation, event.expected_revision)
        if found is None:
            return
        if found.owner.native:
            self._contradict(offset, "appends items to a native conversation")
        self._add_node(offset, event.conversation, found.head, event.items, self.clocks_ms[offset + 1])
        self._store(event.conversation, replace(found, since=offset, head=offset, revision=offset))

    def _continued(
        self, offset: int, alias: bytes, expected_revision: int | None, *, may_be_new: bool = False
    ) -> Conversation | None:
        """Return the conversation that an accepted record continues; None when it makes a new one."""
        policy, clock_ms = self.policies[offset], self.clocks_ms[offset + 1]
        found, end = self.conversation(alias, offset, clock_ms)
        if not self.is_exact:
            return None if may_be_new else found
        if found is not None and end is not None:
            is_in_grace = end.reason == "expired" and clock_ms < end.at_ms + policy.commit_grace_ms
            if not is_in_grace:
                is_forgotten = clock_ms >= end.at_ms + policy.tombstone_ttl_ms or self._few_tombstones
                if not is_forgotten:
                    self._contradict(offset, f"names a conversation that is gone: {end}")
                found = None
        if found is None and not may_be_new:
            self._contradict(offset, "changes a conversation that does not exist")
        revision = 0 if found is None else found.revision
        if expected_revision is not None and expected_revision != revision:
            self._contradict(offset, f"expected revision {expected_revision}, the conversation was at {revision}")
        return found

    def _store(self, alias: bytes, state: Conversation) -> None:
        self._conversations.setdefault(alias, []).append(state)

    def _turn_abandoned(self, offset: int, event: TurnAbandoned) -> None:
        target = self.accepted_events.get(event.abandoned)
        if target is None or target == offset:
            return
        commit, clock_ms = self.events[target], self.clocks_ms[offset + 1]
        assert isinstance(commit, PrincipalEvent)
        if clock_ms > commit.not_after_ms:
            return
        if not isinstance(commit, TurnCompleted | ItemsAppended | ConversationCreated):
            self._contradict(offset, f"takes back what cannot be taken back: {type(commit).__name__}")
            return
        self.undone[target] = offset
        for child in self.places.children.get(target, []):
            is_living_turn = isinstance(self.events[child], TurnCompleted) and not self.response_ends(
                child, offset, clock_ms
            )
            if child not in self.undone and is_living_turn and not self.is_evictable(child, offset):
                self._contradict(offset, f"takes back the turn at {target}, on which the one at {child} was built")
        if commit.conversation is None:
            return
        found, end = self.conversation(commit.conversation, offset, clock_ms)
        if found is None or end is not None or found.head != target:
            return
        if found.revision != target and self.is_exact:
            self._contradict(offset, f"takes back the turn at {target} although the conversation changed after it")
        if found.created == target:
            gone = End(clock_ms, "vanished", has_grace=False)
            self._store(commit.conversation, replace(found, since=offset, end=gone))
        else:
            back = replace(found, since=offset, head=self.parents[target], revision=offset)
            self._store(commit.conversation, back)

    # Questions

    @property
    def is_exact(self) -> bool:
        """Whether nothing is ever evicted whole, so that a conversation's state follows from its records alone."""
        return not self._is_vague and all(policy.principal_bytes_max >= BOUNDLESS for policy in self.policies)

    @property
    def _few_tombstones(self) -> bool:
        return any(policy.tombstones_per_principal_max < 100 for policy in self.policies)

    def is_evictable(self, offset: int, position: int) -> bool:
        """Whether a budget may have taken the turn at ``offset`` by then."""
        if not self.is_exact:
            return True
        records_max = min(policy.principal_records_max for policy in self.policies)
        turns = self.places.turns_of.get(self._turn(offset).principal, [])
        return sum(1 for turn in turns if turn < position) > records_max

    def _turn(self, offset: int) -> TurnCompleted:
        event = self.events[offset]
        assert isinstance(event, TurnCompleted)
        return event

    def response_ends(self, offset: int, position: int, clock_ms: int) -> list[End]:
        """Return everything that has ended the response claimed at ``offset`` before ``position``."""
        event, lineage, places = self._turn(offset), self.lineages[offset], self.places
        policy = self.policies[offset]
        ends = []
        if self.undone.get(offset, position) < position:
            ends.append(End(self.clocks_ms[self.undone[offset] + 1], "deleted", has_grace=False))
        following = [claim for claim in places.claims[event.response] if claim > offset]
        until = min([position, *following])
        ends += [
            End(self.clocks_ms[deletion + 1], "deleted", has_grace=True)
            for deletion in places.deletions.get(event.response, [])
            if offset < deletion < until
        ]
        ends += [
            End(self.clocks_ms[cascade + 1], "deleted", has_grace=True)
            for cascade in places.cascades.get(lineage, [])
            if offset < cascade < position
        ]
        ends += self._erasures(event.principal, offset, position)
        if not policy.sliding:
            expires_at_ms = self.clocks_ms[offset + 1] + policy.active_ttl_ms
            if clock_ms >= expires_at_ms:
                ends.append(End(expires_at_ms, "expired", has_grace=True))
        else:
            ends += self._lapse(lineage, offset, position, clock_ms)
        return ends

    def _erasures(self, principal: bytes, offset: int, position: int) -> list[End]:
        return [
            End(self.clocks_ms[erasure + 1], "deleted", has_grace=False)
            for erasure in self.places.erasures.get(principal, [])
            if offset < erasure < position
        ]

    def _lapse(self, lineage: bytes, offset: int, position: int, clock_ms: int) -> list[End]:
        """Return the sliding expiry of what was written at ``offset``, if it has come."""
        lapses = [at_ms for touch, at_ms in self._lapses.get(lineage, []) if offset < touch < position]
        if lapses:
            return [End(lapses[0], "expired", has_grace=True)]
        touches = [at_ms for touch, at_ms in self._touches.get(lineage, []) if touch < position]
        if touches and clock_ms >= touches[-1]:
            return [End(touches[-1], "expired", has_grace=True)]
        return []

    def conversation(self, alias: bytes, position: int, clock_ms: int) -> tuple[Conversation | None, End | None]:
        """Return a conversation's state before ``position``, and its end if it has ended."""
        states = [state for state in self._conversations.get(alias, []) if state.since < position]
        if not states:
            return None, None
        found = states[-1]
        if found.end is not None:
            return (None, None) if found.end.reason == "vanished" else (found, found.end)
        ends = self._erasures(found.principal, found.created, position)
        ends += self._lapse(alias, found.created, position, clock_ms)
        return found, min(ends) if ends else None

    def chain(self, offset: int) -> list[int]:
        """Return the nodes from the root to ``offset``."""
        nodes: list[int] = []
        while offset:
            nodes.append(offset)
            offset = self.parents[offset]
        return nodes[::-1]

    def items(self, offset: int, position: int) -> list[Any]:
        """Return the items of a node before ``position``."""
        event = self.events[offset]
        assert isinstance(event, TurnCompleted | ItemsAppended | ConversationCreated)
        deleted = set()
        for item, deletions in self.places.item_deletions.items():
            if min(deletions) < position and item in event.items:
                deleted.add(self.evidence.alias_names[item])
        given = self.evidence.documents.get(event.event_id, ([], []))
        return [item for part in given for item in part if item["id"] not in deleted]

    # Answers

    def problem(self, kind: SelectorKind, alias: bytes, answer: Answer, position: int) -> str:
        """Return what is wrong with an answer as of ``position``, or nothing."""
        match kind:
            case SelectorKind.RESPONSE:
                problem = self._response_problem(alias, answer, position)
            case SelectorKind.CONVERSATION:
                problem = self._conversation_problem(alias, answer, position)
            case SelectorKind.ITEM:
                problem = self._item_problem(alias, answer, position)
        if not problem and isinstance(answer, Found) and answer.history is not None:
            problem = self._history_problem(answer, position)
        return problem

    def _response_problem(self, alias: bytes, answer: Answer, position: int) -> str:
        claims = [claim for claim in self.places.claims.get(alias, []) if claim < position]
        starts = [start for start in self.places.starts.get(alias, []) if start < position]
        if starts and (not claims or starts[-1] > claims[-1]):
            return ""
        if not claims:
            return "" if isinstance(answer, Missing) else "nobody claimed it"
        claim, clock_ms = claims[-1], self.clocks_ms[position]
        ends = sorted(self.response_ends(claim, position, clock_ms))
        if isinstance(answer, Found):
            event = self._turn(claim)
            if ends:
                return f"it is gone: {ends}"
            if (answer.node, answer.status) != (claim, event.status):
                return f"the turn that claimed it is {event.status} at {claim}"
            if (answer.owner.native, answer.owner.target, answer.owner.digest) != (
                event.owner.native,
                event.owner.target,
                event.owner.digest,
            ):
                return f"its owner is {event.owner}"
            return ""
        return self._absence_problem(answer, ends, position, is_evictable=self.is_evictable(claim, position))

    def _absence_problem(self, answer: Answer, ends: list[End], position: int, *, is_evictable: bool) -> str:
        clock_ms, ttl_ms = self.clocks_ms[position], self.policies[position].tombstone_ttl_ms
        if is_evictable:
            return ""
        if not ends:
            return "it lives"
        if isinstance(answer, Gone):
            if answer.reason not in {end.reason for end in ends}:
                return f"it is gone for another reason: {ends}"
            return f"its end is forgotten: {ends}" if clock_ms >= ends[0].at_ms + ttl_ms else ""
        is_remembered = clock_ms < ends[0].at_ms + ttl_ms and not self._few_tombstones
        return f"its end is remembered: {ends}" if is_remembered else ""

    def _conversation_problem(self, alias: bytes, answer: Answer, position: int) -> str:
        if not self.is_exact:
            return ""
        found, end = self.conversation(alias, position, self.clocks_ms[position])
        if found is None:
            return "" if isinstance(answer, Missing) else "it does not exist"
        if not isinstance(answer, Found):
            return self._absence_problem(answer, [] if end is None else [end], position, is_evictable=False)
        if end is not None:
            return f"it is gone: {end}"
        if (answer.node, answer.revision) != (found.head, found.revision):
            return f"its head is {found.head}, its revision {found.revision}"
        owner = answer.owner
        if not _same_owner(OwnerRef(native=owner.native, target=owner.target, digest=owner.digest), found.owner):
            return f"its owner is {found.owner}"
        return ""

    def _item_problem(self, alias: bytes, answer: Answer, position: int) -> str:
        claims = [claim for claim in self.places.item_claims.get(alias, []) if claim < position]
        if len(claims) > 1 or not self.is_exact:
            return ""
        if not claims:
            return "" if isinstance(answer, Missing) else "nobody claimed it"
        claim, clock_ms = claims[0], self.clocks_ms[position]
        event = self.events[claim]
        assert isinstance(event, TurnCompleted | ItemsAppended | ConversationCreated)
        is_deleted = any(deletion < position for deletion in self.places.item_deletions.get(alias, []))
        lives = not is_deleted and self.undone.get(claim, position) >= position and self._holds_items(claim, position)
        if isinstance(event, TurnCompleted) and self.is_evictable(claim, position):
            return ""
        if lives:
            return "" if isinstance(answer, Found) else "it lives"
        if isinstance(answer, Found):
            return "it was deleted" if is_deleted else f"its turn and its conversation are gone at {clock_ms}"
        return ""

    def _holds_items(self, claim: int, position: int) -> bool:
        """Whether the response or the conversation of a node lives."""
        event, clock_ms = self.events[claim], self.clocks_ms[position]
        assert isinstance(event, TurnCompleted | ItemsAppended | ConversationCreated)
        if isinstance(event, TurnCompleted) and not self.response_ends(claim, position, clock_ms):
            return True
        is_part = not isinstance(event, TurnCompleted) or event.status in (Status.COMPLETED, Status.INCOMPLETE)
        if event.conversation is None or not is_part:
            return False
        found, end = self.conversation(event.conversation, position, clock_ms)
        return found is not None and end is None and found.created <= claim

    def _history_problem(self, answer: Found, position: int) -> str:
        assert answer.history is not None
        if not self.is_exact:
            return ""
        chain = self.chain(answer.node)
        entries = answer.history.entries
        if [entry.node for entry in entries] != chain:
            return f"its history is {chain}, not {[entry.node for entry in entries]}"
        for entry in entries:
            if [*entry.input, *entry.output] != self.items(entry.node, position):
                return f"the entry at {entry.node} has {self.items(entry.node, position)}"
        return ""


def _same_owner(left: OwnerRef, right: OwnerRef) -> bool:
    if left.native and right.native:
        return left == right
    return left.native == right.native
