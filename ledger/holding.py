"""Which partitions a replica holds: all, or some, so that a fleet outgrows one machine's disk.

A replica that holds some tails only these, and keeps rows and contents of these only. What it kept of others from an
earlier configuration is taken off its disk before it serves: an erasure would never reach it there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

import structlog

from ledger import codec
from ledger.alias import record_key
from ledger.errors import InvalidInput, ManifestMismatch, Unavailable
from ledger.log import AppendUncertain, EventLog
from ledger.outbox import Outbox
from ledger.rows import LocalKind
from ledger.table import Rows, partition_prefix
from ledger.turn import Partition
from ledger.view import PurgeableStore, ViewStore

logger = structlog.get_logger("ledger.holding")

PARTITIONS_MAX = 65_536
"""Partitions that a row's key can name, in its first two bytes."""
ABANDON_TIMEOUT_S = 10.0
"""For one abandonment that must be in the log before its partition is given up."""
_KINDS_END = b"\xff"
_RANGE = re.compile(r"(0|[1-9][0-9]{0,4})(?:-(0|[1-9][0-9]{0,4}))?")


class RangedStore(PurgeableStore, Protocol):
    """Rows on a disk, of which whole ranges go at once."""

    def delete_range(self, lower: bytes, upper: bytes) -> None:
        """Delete the rows with ``lower <= key < upper``. Raises ``StoreFailed``."""
        ...


def parse_range(text: str, field: str) -> range:
    """Return the partitions of ``7`` or ``0-7``, both ends among them. Raises ``InvalidInput`` of ``field``."""
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(field, f"'{text.strip()}' is no range of partitions; write it as 7 or 0-7")
    first = int(found[1])
    last = first if found[2] is None else int(found[2])
    if last < first:
        raise InvalidInput(field, f"the range {text.strip()} ends before it begins")
    if last >= PARTITIONS_MAX:
        raise InvalidInput(field, f"partition {last} is above {PARTITIONS_MAX - 1}, the last that there can be")
    return range(first, last + 1)


def parse_partitions(text: str, field: str) -> frozenset[Partition]:
    """Return the partitions of ``0-7,12``. Raises ``InvalidInput`` of ``field``."""
    partitions: set[Partition] = set()
    for part in text.split(","):
        for number in parse_range(part, field):
            if number in partitions:
                raise InvalidInput(field, f"partition {number} is given twice")
            partitions.add(Partition(number))
    return frozenset(partitions)


def partitions_text(partitions: Iterable[int]) -> str:
    """Return partitions as a person writes them: ``0-7,12``."""
    ranges: list[list[int]] = []
    for number in sorted(partitions):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ",".join("-".join(map(str, ends)) for ends in ranges)


def held_of(partitions: Collection[Partition] | None, partition_count: int) -> list[Partition]:
    """Return the partitions to hold of a log with so many, in order; None: all. Raises ``InvalidInput``."""
    if partitions is None:
        return [Partition(number) for number in range(partition_count)]
    if not partitions:
        raise InvalidInput("partitions", "must name at least one partition; leave it out to hold all")
    unknown = [number for number in partitions if not 0 <= number < partition_count]
    if unknown:
        reason = f"the log has the partitions 0 to {partition_count - 1}, not {partitions_text(unknown)}"
        raise InvalidInput("partitions", reason)
    return sorted(partitions)


def stored_partitions(store: ViewStore) -> Iterator[Partition]:
    """Yield the partitions that a store has any row of, in order."""
    number = 0
    while number < PARTITIONS_MAX:
        first = next(store.scan(partition_prefix(Partition(number)), _KINDS_END * 3), None)
        if first is None:
            return
        number = int.from_bytes(first[0][:2], "big")
        yield Partition(number)
        number += 1


async def release(
    view: RangedStore, contents: RangedStore, log: EventLog, log_id: str, held: Collection[Partition] | None
) -> list[Partition]:
    """Take what the stores have of other partitions than ``held`` off their disks; return these partitions.

    With None nothing is given up, and only what was begun earlier is finished. Abandonments that wait are written to
    the log first. Interrupted, it goes on at the next start, whatever is held then. Nothing else may use the stores
    meanwhile. Raises ``Unavailable``, ``StoreFailed``, and ``ManifestMismatch``, with nothing changed, for rows of
    another log than ``log_id``: they are given up by nobody's configuration of this one.
    """
    released: set[Partition] = set()
    if held is None:
        held = {*stored_partitions(view), *stored_partitions(contents)}
    left = [partition for partition in stored_partitions(view) if partition not in held]
    for partition in left:
        _check_log(view, partition, log_id)
    for partition in left:
        await _abandon(view, log, partition)
    for store in (view, contents):
        stored = list(stored_partitions(store))
        given_up = [partition for partition in stored if partition not in held or _is_released(store, partition)]
        for partition in given_up:
            _delete(store, partition)
        if given_up:
            await asyncio.to_thread(store.purge)
            store.write({partition_prefix(partition) + LocalKind.RELEASED: None for partition in given_up})
        released.update(given_up)
    if released:
        logger.info("partitions_released", partitions=partitions_text(released))
    return sorted(released)


def _check_log(view: ViewStore, partition: Partition, log_id: str) -> None:
    known = view.get(partition_prefix(partition) + LocalKind.LOG_ID)
    if known is not None and known != log_id.encode():
        raise ManifestMismatch(
            f"the state directory holds partition {partition} of another log (topic {known.decode()}, not {log_id}), "
            "so nothing was deleted; look at prefix, brokers and directory"
        )


def _is_released(store: ViewStore, partition: Partition) -> bool:
    return store.get(partition_prefix(partition) + LocalKind.RELEASED) is not None


def _delete(store: RangedStore, partition: Partition) -> None:
    prefix = partition_prefix(partition)
    # Written first: whoever finds it knows that the bytes may still be there, although no row is.
    store.write({prefix + LocalKind.RELEASED: b""})
    store.delete_range(prefix, prefix + LocalKind.RELEASED)
    store.delete_range(prefix + LocalKind.RELEASED + b"\0", prefix + _KINDS_END)


async def _abandon(view: ViewStore, log: EventLog, partition: Partition) -> None:
    """Write the abandonments that wait; whoever holds the partition judges them."""
    record_format = Rows(view, partition).meta.format
    for _, event in Outbox(view).entries([partition]):
        value = codec.encode(event, record_format)
        try:
            await log.append(partition, record_key("", event.principal), value, timeout_s=ABANDON_TIMEOUT_S)
        except AppendUncertain as error:
            message = f"an abandonment of partition {partition}, which is given up, may not be in the log: {error}"
            raise Unavailable("broker", message) from None
