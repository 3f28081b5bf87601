"""Formatting and the manifest: which ledger a log belongs to, and whether this process may serve it.

The first record of each partition is ``LedgerFormatted``. Partition 0 is formatted first and its ID is canonical, so
two processes that format at once agree: the log's order decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from ledger import codec
from ledger.alias import CONTROL_KEY, DIGEST_VERSION, AliasKey
from ledger.barrier import Barrier
from ledger.errors import (
    CallerError,
    InvalidInput,
    ManifestMismatch,
    NeedsEveryPartition,
    Unavailable,
    UndecodableRecord,
)
from ledger.event import Event, LedgerFormatted, PolicyChanged
from ledger.holding import partitions_text
from ledger.log import AppendUncertain, EventLog, Record
from ledger.policy import Policy, check
from ledger.reading import read
from ledger.replica import Replica
from ledger.rows import Kind, MetaRow
from ledger.turn import Partition, Position

ADMIN_ATTEMPTS_MAX = 5
"""How often an admin record is appended again when its fate is unknown; the fold takes the first."""
LEADER_PAUSE_S = 0.2
"""Between two requests for the end of a partition whose leader did not answer."""
FORMATTED_WITHIN_RECORDS = 1_000
"""Records of a partition among which the one that formats it is looked for: it is the first, but for what a foreign
producer wrote before."""
TABLE_TAIL_RECORDS = 256
"""The end of a table that is read first for its last meta row; then four times as much, until there is one."""
CANONICAL = Partition(0)
"""Formatted first; the ID that it has is the ledger's."""


class PolicyConflict(CallerError):
    """Another change of the policy at the same time stands."""

    advice = "read the policy, then change it again"


class Formatter:
    """Writes the records that concern whole partitions."""

    def __init__(
        self,
        log: EventLog,
        tables: EventLog | None,
        replica: Replica,
        barrier: Barrier,
        alias_key: AliasKey,
        now_ms: Callable[[], int],
        new_id: Callable[[], bytes],
    ) -> None:
        """``tables`` are asked whose ledger it is when partition 0 is not held and its first record was trimmed."""
        self._log = log
        self._tables = tables
        self._replica = replica
        self._barrier = barrier
        self._alias_key = alias_key
        self._now_ms = now_ms
        self._new_id = new_id

    async def format(self, policy: Policy, *, timeout_s: float) -> bytes:
        """Format every partition that is not; return the ledger ID. Can be run again to finish.

        Raises ``NeedsEveryPartition`` on a replica that holds some.
        """
        check(policy)
        self.require_every_partition("formatting")
        count = self._replica.partition_count
        ledger_id = await self._format_partition(CANONICAL, self._new_id(), policy, timeout_s)
        for number in range(1, count):
            await self._format_partition(Partition(number), ledger_id, policy, timeout_s)
        return ledger_id

    async def _format_partition(
        self, partition: Partition, ledger_id: bytes, policy: Policy, timeout_s: float
    ) -> bytes:
        await self._pass_barrier(partition, timeout_s)
        if not self._replica.rows(partition).meta.ledger_id:
            event = LedgerFormatted(
                ledger_id=ledger_id,
                partition=partition,
                partition_count=self._replica.partition_count,
                digest_version=DIGEST_VERSION,
                key_check=self._alias_key.check_value(),
                format=codec.FORMAT,
                fold_version=codec.FOLD_VERSION,
                written_at_ms=self._now_ms(),
                policy=policy,
            )
            await self._append(partition, event, timeout_s)
        return self._replica.rows(partition).meta.ledger_id

    async def set_policy(self, policy: Policy, *, timeout_s: float) -> int:
        """Write a policy to every partition; return its generation. Running it again finishes an interrupted change.

        Of two changes at once the one that partition 0 has last stands; the other raises ``PolicyConflict``. Raises
        ``NeedsEveryPartition`` on a replica that holds some: what the others have decides the generation.
        """
        check(policy)
        self.require_every_partition("a change of the policy")
        partitions = [Partition(number) for number in range(self._replica.partition_count)]
        for _ in range(ADMIN_ATTEMPTS_MAX):
            for partition in partitions:
                await self._pass_barrier(partition, timeout_s)
            metas = [self._replica.rows(partition).meta for partition in partitions]
            newest = max(meta.generation for meta in metas)
            done = [meta.policy == policy and meta.generation == newest for meta in metas]
            if all(done) and newest:
                return newest
            # Where another change took the newest generation, only a higher one can be the same everywhere.
            others = any(meta.generation == newest and meta.policy != policy for meta in metas)
            generation = newest if newest and not others else newest + 1
            for partition, meta in zip(partitions, metas, strict=True):
                if meta.generation < generation:
                    event = PolicyChanged(generation=generation, written_at_ms=self._now_ms(), policy=policy)
                    await self._append(partition, event, timeout_s)
            if self._replica.rows(CANONICAL).meta.policy != policy:
                raise PolicyConflict("another policy change came first; look at it, then change it again if need be")
        raise Unavailable("policy", "other policy changes are under way; run it again")

    def require_every_partition(self, what: str) -> None:
        """Raise ``NeedsEveryPartition`` on a replica that holds some."""
        if self._replica.is_partial:
            held = partitions_text(self._replica.held)
            raise NeedsEveryPartition(f"{what} concerns every partition, and this replica holds {held} only")

    async def _pass_barrier(self, partition: Partition, timeout_s: float) -> None:
        """Pass the barrier, asking again while there is time: a process may start before its broker answers well."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            try:
                await self._barrier.pass_through(partition, timeout_s=max(0.0, deadline_s - loop.time()))
            except Unavailable as error:
                if error.reason != "leader" or loop.time() + LEADER_PAUSE_S >= deadline_s:
                    raise
                await asyncio.sleep(LEADER_PAUSE_S)
            else:
                return

    async def _append(self, partition: Partition, event: Event, timeout_s: float) -> None:
        """Append and wait for the fold; the caller reads the rows to see what came of it."""
        value = codec.encode(event, self._replica.rows(partition).meta.format)
        for _ in range(ADMIN_ATTEMPTS_MAX):
            try:
                appended = await self._log.append(partition, CONTROL_KEY, value, timeout_s=timeout_s)
            except AppendUncertain:
                await self._pass_barrier(partition, timeout_s)
                continue
            await self._replica.reached(partition, Position(appended.offset + 1), timeout_s=timeout_s)
            return
        raise Unavailable("broker", f"partition {partition}: an admin record could not be written; run it again")

    async def verify(self, *, timeout_s: float) -> bytes:
        """Compare the log's own description with this process; return the ledger ID.

        Raises ``ManifestMismatch`` naming what differs, ``Unavailable`` when the log cannot be read.
        """
        await asyncio.gather(*(self._pass_barrier(partition, timeout_s) for partition in self._replica.held))
        if CANONICAL in self._replica.held:
            ledger_id = self._replica.rows(CANONICAL).meta.ledger_id
        else:
            ledger_id = await canonical_ledger_id(self._log, self._tables, timeout_s=timeout_s)
        for partition, state in self._replica.states().items():
            meta = state.rows.meta
            if not meta.ledger_id:
                raise ManifestMismatch(
                    f"partition {partition} is not formatted; run 'turnledger topics create' to finish"
                )
            if meta.ledger_id != ledger_id:
                raise ManifestMismatch(
                    f"partition {partition} belongs to ledger {meta.ledger_id.hex()}, partition 0 to {ledger_id.hex()}"
                )
            if meta.partition_count != self._replica.partition_count:
                raise ManifestMismatch(
                    f"the ledger was formatted for {meta.partition_count} partitions, the log has "
                    f"{self._replica.partition_count}; principals would be split"
                )
            if meta.digest_version != DIGEST_VERSION:
                raise ManifestMismatch(
                    f"the ledger uses digest version {meta.digest_version}, this build {DIGEST_VERSION}"
                )
            if meta.key_check != self._alias_key.check_value():
                raise ManifestMismatch(
                    "the alias key of this process is not the one the ledger was formatted with; "
                    "every ID would be unknown"
                )
        return ledger_id


async def canonical_ledger_id(log: EventLog, tables: EventLog | None, *, timeout_s: float) -> bytes:
    """Return the ledger ID of partition 0 as the log says, or where that was trimmed the last meta row of its table.

    Raises ``ManifestMismatch`` when it is not formatted, ``Unavailable`` when it cannot be read.
    """
    end = await log.end(CANONICAL, timeout_s=timeout_s)
    upto = Position(min(end, FORMATTED_WITHIN_RECORDS))
    try:
        async with aclosing(read(log, CANONICAL, Position(0), upto)) as records:
            ledger_id = await _formatted_id(records)
    except Unavailable as error:
        if error.reason != "log_gap" or tables is None:
            raise
        ledger_id = await _ledger_id_of_table(tables, timeout_s)
    if not ledger_id:
        raise ManifestMismatch(f"partition {CANONICAL} is not formatted; run 'turnledger topics create' to finish")
    return ledger_id


async def _formatted_id(records: AsyncGenerator[Record, None]) -> bytes:
    async for record in records:
        try:
            event = codec.decode(record.value)
        except UndecodableRecord:
            # The fold refuses it too, and goes on.
            continue
        if isinstance(event, LedgerFormatted) and event.partition == CANONICAL:
            return event.ledger_id
    return b""


async def _ledger_id_of_table(tables: EventLog, timeout_s: float) -> bytes:
    """Return the ledger ID of the last meta row in the table of partition 0: each of its batches has one."""
    end = await tables.end(CANONICAL, timeout_s=timeout_s)
    length = TABLE_TAIL_RECORDS
    while True:
        start, found = Position(max(0, end - length)), b""
        async with aclosing(read(tables, CANONICAL, start, end)) as records:
            async for record in records:
                if record.key == Kind.META and record.value is not None:
                    found = msgspec.msgpack.decode(record.value, type=MetaRow).ledger_id
        if found or not start:
            return found
        length *= 4


def policy_from(current: Policy, changes: dict[str, int | bool]) -> Policy:
    """Return ``current`` with some fields replaced. Raises ``InvalidInput`` naming a field that does not exist."""
    values = {name: getattr(current, name) for name in Policy.__struct_fields__}
    for name, value in changes.items():
        if name not in values:
            raise InvalidInput(name, f"is not a policy field; there are {', '.join(sorted(values))}")
        values[name] = value
    policy = Policy(**values)
    check(policy)
    return policy
