"""A full recount of one partition's rows: counters, holds, indexes and queue, each from the rows that it stands for.

The fold keeps them by increments; here they are counted from nothing, so a wrong increment shows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ledger.fates import NEVER_MS
from ledger.rows import (
    INDEX_KINDS,
    ROW_TYPES,
    ConversationRow,
    ItemRow,
    Kind,
    LineageRow,
    MetaRow,
    NodeRow,
    PrincipalRow,
    ResponseRow,
    Task,
    ordered,
)
from ledger.turn import TERMINAL

_decoders = {kind: msgspec.msgpack.Decoder(row_type) for kind, row_type in ROW_TYPES.items()}


@dataclass
class Table:
    """All rows of a partition, by kind."""

    points: dict[bytes, dict[bytes, Any]] = field(default_factory=lambda: {kind: {} for kind in ROW_TYPES})
    indexes: dict[bytes, dict[bytes, bytes]] = field(default_factory=lambda: {kind: {} for kind in INDEX_KINDS})

    @classmethod
    def of(cls, rows: dict[bytes, bytes]) -> Table:
        """Take rows as ``World.stored`` returns them."""
        table = cls()
        for key, value in rows.items():
            kind, rest = key[:1], key[1:]
            if kind in INDEX_KINDS:
                table.indexes[kind][rest] = value
            else:
                table.points[kind][rest] = _decoders[kind].decode(value)
        return table

    @property
    def meta(self) -> MetaRow:
        meta: MetaRow = self.points[Kind.META][b""]
        return meta

    @property
    def responses(self) -> dict[bytes, ResponseRow]:
        return self.points[Kind.RESPONSE]

    @property
    def conversations(self) -> dict[bytes, ConversationRow]:
        return self.points[Kind.CONVERSATION]

    @property
    def items(self) -> dict[bytes, ItemRow]:
        return self.points[Kind.ITEM]

    @property
    def lineages(self) -> dict[bytes, LineageRow]:
        return self.points[Kind.LINEAGE]

    @property
    def principals(self) -> dict[bytes, PrincipalRow]:
        return self.points[Kind.PRINCIPAL]

    @property
    def nodes(self) -> dict[int, NodeRow]:
        return {int.from_bytes(key, "big"): row for key, row in self.points[Kind.NODE].items()}

    @property
    def living(self) -> dict[bytes, ResponseRow]:
        """Responses that have ended well or badly and were not ended by the lifecycle."""
        return {alias: row for alias, row in self.responses.items() if not row.fate and row.status in TERMINAL}

    def contents(self) -> set[bytes]:
        """Return the IDs of all contents that something refers to."""
        nodes = {node.content.id for node in self.nodes.values() if node.content is not None}
        return nodes | {row.metadata.id for row in self.conversations.values() if row.metadata is not None}

    def queued(self, task: bytes) -> Counter[tuple[int, bytes]]:
        """Return (due, subject) of all queued tasks of a kind."""
        return Counter(
            (int.from_bytes(key[:8], "big"), key[9:]) for key in self.indexes[Kind.QUEUE] if key[8:9] == task
        )


def check(table: Table) -> None:
    """Assert everything that must hold between the rows of a partition after any record."""
    _check_indexes(table)
    _check_holds(table)
    _check_counters(table)
    _check_queue(table)
    _check_ancestors(table)


def _check_indexes(table: Table) -> None:
    living = {row.principal + ordered(row.node): alias for alias, row in table.living.items()}
    assert table.indexes[Kind.LIVING] == living, "LIVING is not the living responses"
    members = {node.lineage + ordered(offset) for offset, node in table.nodes.items()}
    assert set(table.indexes[Kind.MEMBER]) == members, "MEMBER is not the nodes"
    active = {
        row.principal + ordered(row.active_offset): digest
        for digest, row in table.lineages.items()
        if row.active_offset
    }
    assert table.indexes[Kind.ACTIVITY] == active, "ACTIVITY is not the active lineages"
    assert set(table.indexes[Kind.TOMBSTONE]) == _tombstones(table), "TOMBSTONE is not the tombstones"


def _tombstones(table: Table) -> set[bytes]:
    kinds: list[tuple[bytes, dict[bytes, Any]]] = [
        (Kind.RESPONSE, table.responses),
        (Kind.CONVERSATION, table.conversations),
        (Kind.ITEM, table.items),
    ]
    return {
        row.principal + ordered(row.forget_at_ms) + kind + alias
        for kind, rows in kinds
        for alias, row in rows.items()
        if row.fate
    }


def _check_holds(table: Table) -> None:
    nodes = table.nodes
    children = Counter(node.parent for node in nodes.values() if node.parent)
    heads = Counter(row.head for row in table.conversations.values() if not row.fate and row.head)
    heads += Counter(int.from_bytes(subject, "big") for _, subject in table.queued(Task.RELEASE_HEAD).elements())
    responses = Counter(row.node for row in table.living.values())
    responses += Counter(
        int.from_bytes(subject, "big") for _, subject in table.queued(Task.RELEASE_RESPONSE).elements()
    )
    removals = {int.from_bytes(subject, "big") for _, subject in table.queued(Task.REMOVE_NODE)}
    for offset, node in nodes.items():
        found = (node.response_hold, node.head_hold, node.child_holds)
        assert found == (responses[offset], heads[offset], children[offset]), f"holds of node {offset} are {found}"
        assert any(found) or offset in removals, f"node {offset} has no hold and is not queued for removal"
    for alias, row in table.living.items():
        assert nodes[row.node].response == alias, "a living response's node is another's"
        assert row.lineage in table.lineages, "a living response has no lineage"


def _check_counters(table: Table) -> None:
    nodes: Counter[bytes] = Counter()
    records: Counter[bytes] = Counter()
    sizes: Counter[bytes] = Counter()
    all_records: Counter[bytes] = Counter()
    all_sizes: Counter[bytes] = Counter()

    def cut_of(principal: bytes) -> int:
        return table.principals[principal].cut_offset if principal in table.principals else 0

    def add_size(digest: bytes, principal: bytes, offset: int, size_bytes: int) -> None:
        if offset >= table.lineages[digest].cut_offset:
            sizes[digest] += size_bytes
            if offset >= cut_of(principal):
                all_sizes[principal] += size_bytes

    for offset, node in table.nodes.items():
        nodes[node.lineage] += 1
        add_size(node.lineage, node.principal, offset, node.size_bytes)
    for alias, conversation in table.conversations.items():
        if conversation.metadata is not None:
            add_size(alias, conversation.principal, conversation.created_offset, conversation.metadata.size_bytes)
    for row in table.living.values():
        if row.node >= table.lineages[row.lineage].cut_offset:
            records[row.lineage] += 1
            if row.node >= cut_of(row.principal):
                all_records[row.principal] += 1
    for digest, lineage in table.lineages.items():
        counted = (nodes[digest], records[digest], sizes[digest])
        assert (lineage.nodes, lineage.records, lineage.size_bytes) == counted, f"a lineage counts {counted} wrongly"
    tombstones = Counter(key[:20] for key in _tombstones(table))
    for digest, principal in table.principals.items():
        counted = (all_records[digest], all_sizes[digest], tombstones[digest])
        found = (principal.records, principal.size_bytes, principal.tombstones)
        assert found == counted, f"a principal's counters are {found}, recounted {counted}"
    assert table.meta.quarantined == len(table.points[Kind.QUARANTINE]), "quarantined records are counted wrongly"


def _check_queue(table: Table) -> None:
    """Everything that must end one day has a task that will end it."""
    due = min((int.from_bytes(key[:8], "big") for key in table.indexes[Kind.QUEUE]), default=NEVER_MS)
    assert table.meta.queue_due_ms <= due, "a task is due before the queue is looked at"
    _check_queued(table, Task.FORGET_EVENT, {key: row.until_ms + 1 for key, row in table.points[Kind.EVENT].items()})
    _check_queued(table, Task.FORGET_KEY, {key: row.until_ms for key, row in table.points[Kind.KEY].items()})
    tombstones = {key[28:]: int.from_bytes(key[20:28], "big") for key in _tombstones(table)}
    _check_queued(table, Task.FORGET_TOMBSTONE, tombstones)
    endings = {alias: row.end_at_ms for alias, row in table.living.items() if row.expires_at_ms}
    _check_queued(table, Task.END_RESPONSE, endings)
    turns = {subject for _, subject in table.queued(Task.FORGET_TURN)}
    assert turns >= set(table.points[Kind.TURN]), "a started turn is never forgotten"
    for locked, lock in table.points[Kind.LOCK].items():
        turn = table.points[Kind.TURN].get(lock.turn_id)
        assert turn is not None, "a lock without its turn is never released"
        assert turn.conversation == locked, "a lock is not its turn's"
    for alias, row in table.responses.items():
        if not row.fate and row.status not in TERMINAL:
            turn = table.points[Kind.TURN].get(row.turn_id or b"")
            assert turn is not None, "a response in progress without its turn never ends"
            assert turn.response == alias, "a response in progress is not its turn's"
    lineage_endings = {subject for _, subject in table.queued(Task.END_LINEAGE)}
    sweeps = {subject[:20] for _, subject in table.queued(Task.SWEEP_LINEAGE)}
    for alias, row in table.living.items():
        ended_by_lineage = row.lineage in lineage_endings | sweeps
        assert (alias in endings) if row.expires_at_ms else ended_by_lineage, "a living response never ends"
    for alias, conversation in table.conversations.items():
        assert conversation.fate or alias in lineage_endings | sweeps, "a living conversation never ends"
    for digest, lineage in table.lineages.items():
        assert not lineage.queued or digest in lineage_endings, "a lineage says that it is queued and is not"


def _check_queued(table: Table, task: bytes, wanted: dict[bytes, int]) -> None:
    expected = Counter((due_ms, subject) for subject, due_ms in wanted.items())
    assert table.queued(task) == expected, f"the queue's tasks {task!r} are not those of the rows"


def _check_ancestors(table: Table) -> None:
    """Walking the parents of any kept node reaches a root (design rule 5)."""
    nodes = table.nodes
    for offset, node in nodes.items():
        assert node.parent == 0 or node.parent in nodes, f"node {offset} has lost its parent {node.parent}"
        assert node.parent < offset, "a parent is older than its child"
