"""Index entries that follow from a row: a pure function of its key and its bytes, and of nothing else.

They are what makes scans possible: the nodes of a lineage, the living responses of a principal, what is to be forgotten
when. Since a row has always exactly these, nobody has to be told of them: the fold does not write them one by one, and
a table does not carry them (more than half of what a turn changes are such entries). Whoever has the rows has them too.

The queue also holds tasks that follow from no row (releases, sweeps, removals, lineages): those are rows of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ledger.rows import (
    INDEX_KINDS,
    ConversationRow,
    EventRow,
    Fate,
    ItemRow,
    KeyRow,
    Kind,
    LineageRow,
    NodeRow,
    ResponseRow,
    Task,
    ordered,
)
from ledger.turn import RUNNING

Entry = tuple[bytes, bytes]
"""Key (kind and rest, without the partition) and value of an index entry."""

_DERIVED_TASKS = frozenset({Task.FORGET_EVENT, Task.FORGET_KEY, Task.FORGET_TOMBSTONE, Task.END_RESPONSE})
"""Of the queue, the tasks whose entries follow from rows; of the other index kinds all do."""
_DERIVED_KINDS = frozenset(kind[0] for kind in INDEX_KINDS - {Kind.QUEUE})
_NONE: tuple[Entry, ...] = ()
_QUEUE, _TASK_AT = Kind.QUEUE[0], 9


def is_derived(key: bytes, start: int = 0) -> bool:
    """Return whether the row whose key (kind and rest) begins at ``start`` is an entry that follows from another."""
    kind = key[start]
    return kind in _DERIVED_KINDS or (kind == _QUEUE and key[start + _TASK_AT : start + _TASK_AT + 1] in _DERIVED_TASKS)


def forgets_event_at_ms(row: EventRow) -> int:
    """Return when an event ID is forgotten."""
    return row.until_ms + 1


def _of_response(key: bytes, row: ResponseRow) -> tuple[Entry, ...]:
    if row.fate != Fate.LIVING:
        return _of_tombstone(key, row)
    if row.status in RUNNING:
        return _NONE
    living = (Kind.LIVING + row.principal + ordered(row.node), key[1:])
    if not row.end_at_ms:
        return (living,)
    return (living, (Kind.QUEUE + ordered(row.end_at_ms) + Task.END_RESPONSE + key[1:], b""))


def _of_alias(key: bytes, row: ConversationRow | ItemRow) -> tuple[Entry, ...]:
    return _NONE if row.fate == Fate.LIVING else _of_tombstone(key, row)


def _of_tombstone(key: bytes, row: ResponseRow | ConversationRow | ItemRow) -> tuple[Entry, ...]:
    forget_at = ordered(row.forget_at_ms)
    return (
        (Kind.TOMBSTONE + row.principal + forget_at + key, b""),
        (Kind.QUEUE + forget_at + Task.FORGET_TOMBSTONE + key, b""),
    )


def _of_node(key: bytes, row: NodeRow) -> tuple[Entry, ...]:
    return ((Kind.MEMBER + row.lineage + key[1:], b""),)


def _of_lineage(key: bytes, row: LineageRow) -> tuple[Entry, ...]:
    if not row.active_offset:
        return _NONE
    return ((Kind.ACTIVITY + row.principal + ordered(row.active_offset), key[1:]),)


def _of_event(key: bytes, row: EventRow) -> tuple[Entry, ...]:
    return ((Kind.QUEUE + ordered(forgets_event_at_ms(row)) + Task.FORGET_EVENT + key[1:], b""),)


def _of_key(key: bytes, row: KeyRow) -> tuple[Entry, ...]:
    return ((Kind.QUEUE + ordered(row.until_ms) + Task.FORGET_KEY + key[1:], b""),)


derivations: dict[int, Callable[[bytes, Any], tuple[Entry, ...]]] = {
    Kind.RESPONSE[0]: _of_response,
    Kind.CONVERSATION[0]: _of_alias,
    Kind.ITEM[0]: _of_alias,
    Kind.NODE[0]: _of_node,
    Kind.LINEAGE[0]: _of_lineage,
    Kind.EVENT[0]: _of_event,
    Kind.KEY[0]: _of_key,
}
"""By the first byte of its key (kind and rest): the entries of a row; other kinds have none."""
