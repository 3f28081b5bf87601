"""Port ``ViewStore``: sorted rows with atomic batches; where the fold's row changes and the position go together.

Adapters: ``memory`` (reference) and ``rocks`` (RocksDB). One contract suite, ``tests/contracts/test_view_store.py``,
runs on both. Keys sort as unsigned bytes. The first two bytes of a key are its partition, the third its kind
(``rows.Kind``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol


class ViewStore(Protocol):
    """One process's rows. Synchronous: every call is local and takes microseconds."""

    def get(self, key: bytes) -> bytes | None:
        """Return the row's bytes, or None. Raises ``StoreFailed``."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the rows' bytes in the order of ``keys``, None where there is none. Raises ``StoreFailed``."""
        ...

    def scan(self, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with ``lower <= key < upper`` in ascending order, as they were when the scan began.

        Exhaust or close the iterator before ``close()``: RocksDB keeps its lock while an iterator lives.
        """
        ...

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Apply all changes or none, in the face of a crash too; None deletes.

        Visible to every later read of this process at once. After a crash the store is as of some earlier ``write``,
        never between two. Raises ``StoreFailed`` with nothing applied.
        """
        ...

    def close(self) -> None: ...


class PurgeableStore(ViewStore, Protocol):
    """Rows on a disk."""

    def purge(self) -> None:
        """Take the bytes of deleted rows off the disk. Rewrites every row; lets other threads run meanwhile.

        Raises ``StoreFailed`` unless all of them are gone, also when an open scan keeps some: purge again later. Raises
        ``PurgeStopped`` once ``stop_purging`` was called.
        """
        ...

    def stop_purging(self) -> None:
        """Let a purge in another thread end soon, with ``PurgeStopped``, and every later one at once.

        For a store that is closed soon: until then it takes writes, but no more than a few MiB of them. Closing while a
        purge runs would wait for it. Raises ``StoreFailed``.
        """
        ...
