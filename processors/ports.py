"""What the processors need of the outside: one writer per partition, and a group that shares the partitions out.

Adapters: ``kafka_transactions`` and ``kafka_group``. The event log, the tables and the contents come through the
library's own ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ledger.turn import Offset, Partition, Position

Records = Mapping[str, Sequence[tuple[bytes, bytes | None]]]
"""Keys and values by topic, named without its prefix."""


class Writer(Protocol):
    """The only process that can write a partition's table: starting one fences all that were started before."""

    async def write(self, records: Records) -> Mapping[str, Offset]:
        """Make all records visible at once; return the offset of each topic's last one.

        Raises ``WriterFenced`` when a later writer was started, ``AppendUncertain`` when the records may have been
        written or not. After either, nothing but ``close`` may be called.
        """
        ...

    async def close(self) -> None: ...


class StartWriter(Protocol):
    """Starts a partition's writer. Raises ``Unavailable``."""

    async def __call__(self, partition: Partition) -> Writer: ...


class Membership(Protocol):
    """This process's place among those that share the partitions."""

    async def start(self) -> None: ...

    async def confirm(self, partition: Partition, position: Position) -> None:
        """Return when the partition is this process's now; leave ``position`` as a hint for whoever watches.

        Raises ``PartitionLost`` when it is not, ``Unavailable`` when nobody can tell.
        """
        ...

    async def close(self) -> None: ...
