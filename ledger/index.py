"""One index kind of one partition as the fold sees it: uncommitted changes over what is stored, in order.

Scans cost what they return, not what changed: the keys put since the last commit are kept sorted once somebody scans,
and a *floor* remembers below which key nothing is left, so that a queue that is worked off from its front does not
walk over what it has deleted, neither here nor in the store, where deleted rows stay until they are merged out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from ledger.view import ViewStore

FLOORS_MAX = 4096
"""Floors remembered per kind: one for each principal or lineage that was scanned lately."""


class Index:
    """Entries of one kind. Used by one task at a time."""

    def __init__(self, store: ViewStore, prefix: bytes, *, group_bytes: int) -> None:
        """``prefix`` is that of all keys here, which are the stored ones. Entries whose keys agree in it and the next
        ``group_bytes`` bytes are scanned together."""
        self._store = store
        self._prefix = prefix
        self._group_bytes = len(prefix) + group_bytes
        self.changed: dict[bytes, bytes | None] = {}
        """What differs from the store; None: deleted."""
        self._sorted: list[bytes] = []
        """Keys that were put and sorted, some of them deleted again or named twice,"""
        self._unsorted: list[bytes] = []
        """and those put since the last scan."""
        self._floors: dict[bytes, tuple[bytes, bytes]] = {}
        """By group (lower, floor): no entry has a key with ``lower <= key < floor``."""

    def put(self, key: bytes, value: bytes) -> None:
        """Write an entry."""
        self.changed[key] = value
        self._unsorted.append(key)
        if self._floors:
            group = key[: self._group_bytes]
            known = self._floors.get(group)
            if known is not None and known[0] <= key < known[1]:
                self._floors[group] = (known[0], key)

    def delete(self, key: bytes) -> None:
        """Delete an entry."""
        self.changed[key] = None

    def scan(self, lower: bytes, upper: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` entries with ``lower <= key < upper``, ascending, all three without the prefix; both
        bounds lie in one group."""
        prefix = self._prefix
        found = self._scan(prefix + lower, prefix + upper, limit)
        return [(key[len(prefix) :], value) for key, value in found]

    def _scan(self, lower: bytes, upper: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        group = lower[: self._group_bytes]
        begin, floor = self._floors.get(group, (lower, lower))
        if not begin <= lower <= floor:
            begin = floor = lower
        found = self._found(max(lower, floor), upper, limit)
        if len(self._floors) >= FLOORS_MAX:
            self._floors.clear()
        self._floors[group] = (begin, found[0][0] if found else max(upper, floor))
        return found

    def _found(self, lower: bytes, upper: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        if lower >= upper:
            return found
        stored = self._store.scan(lower, upper)
        try:
            for entry in _merged(self._fresh(lower, upper), self._kept(stored)):
                found.append(entry)
                if len(found) == limit:
                    break
        finally:
            close = getattr(stored, "close", None)
            if close is not None:
                close()
        return found

    def _fresh(self, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries that were put since the last commit."""
        if self._unsorted:
            living = {key for key in self._sorted if self.changed.get(key) is not None}
            self._sorted = sorted(living.union(self._unsorted))
            self._unsorted = []
        for position in range(bisect_left(self._sorted, lower), len(self._sorted)):
            key = self._sorted[position]
            if key >= upper:
                return
            value = self.changed.get(key)
            if value is not None:
                yield key, value

    def _kept(self, stored: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """Yield the stored entries that were not changed since the last commit."""
        for key, value in stored:
            if key not in self.changed:
                yield key, value

    def committed(self) -> None:
        """The store has taken what changed."""
        self.changed.clear()
        self._sorted.clear()
        self._unsorted.clear()

    def discard(self) -> None:
        """Go back to what is stored."""
        self.committed()
        self._floors.clear()


def _merged(left: Iterator[tuple[bytes, bytes]], right: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield two ascending, disjoint iterators as one."""
    a, b = next(left, None), next(right, None)
    while a is not None or b is not None:
        if b is None or (a is not None and a[0] < b[0]):
            assert a is not None
            yield a
            a = next(left, None)
        else:
            yield b
            b = next(right, None)
