"""Adapter of ``ContentStore``: the compacted topic ``<prefix>.content``, and this replica's own copy of it.

A put produces the chunks; an erasure produces null records, which compaction turns into a real deletion. A background
task copies every partition into local rows, and a read waits until the copy has passed its reference.

Compaction removes a null record ``delete.retention.ms`` after it has removed what the record erased. So a copy that did
not follow the log for so long may have missed erasures for good: it is thrown away and made again, and serves nothing
until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from ledger.adapters.kafka_copy import ContentCopy, CopyState
from ledger.adapters.kafka_leader import KafkaLeaders
from ledger.adapters.kafka_producer import KafkaAppender
from ledger.adapters.kafka_settings import CONTENT, KafkaSettings
from ledger.adapters.kafka_tail import KafkaTail
from ledger.content import ContentRef, chunk_key
from ledger.errors import ContentLost, NotHeld, StoreFailed, Unavailable
from ledger.holding import held_of
from ledger.log import Appended, AppendUncertain, LogGap, RecordBatch
from ledger.purged import Purged
from ledger.turn import Partition, Position
from ledger.view import ViewStore

CHECK_INTERVAL_S = 10.0
"""How often the copy is compared with the log's ends: it bounds how long a silent tail goes unnoticed, and how old the
moment is at which an idle partition is known to be complete."""
ASK_TIMEOUT_S = 5.0
"""For questions to the leaders that no caller waits for."""
RETRY_S = 0.2
"""Pause before following the log again after a failure."""
WAIT_S = 0.5
"""How long one read waits for new records; then the copy looks whether it must begin again."""
RECORDS_MAX = 32
"""Records of one read: 16 MiB of chunks at most."""
DELETE_RETENTION_DEFAULT_MS = 24 * 60 * 60 * 1000
"""Kafka's default of ``delete.retention.ms``, for a client that may not see the topic's configuration."""
SAFE_FRACTION = 0.5
"""The part of ``delete.retention.ms`` after which a copy is given up; the rest is for clocks that differ."""

_log = logging.getLogger(__name__)


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentCopyStatus:
    """What metrics show of the copy."""

    positions: dict[Partition, Position]
    """How far each partition was copied; one that is being made again is missing."""
    ends: dict[Partition, Position]
    """Where each ended when it was last looked at, at most ``CHECK_INTERVAL_S`` ago while all is well."""
    rebuilt_count: int
    """Partitions whose copy was thrown away and made again."""
    problem: str | None
    """Why the log is not followed at the moment."""


@dataclass(slots=True)
class _Copied:
    """One partition."""

    state: CopyState | None = None
    """None while there is nothing that may be served."""
    purged: Purged | None = None
    """None before the copy was looked at for the first time."""
    waiters: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)
    """Offsets that must be passed, and who waits for that."""

    def passed(self, offset: int) -> bool:
        return self.state is not None and self.state.position > offset

    def put(self, state: CopyState | None) -> None:
        self.state = state
        if self.waiters and state is not None:
            for offset, waiter in self.waiters:
                if offset < state.position and not waiter.done():
                    waiter.set_result(None)
            self.waiters = [pair for pair in self.waiters if not pair[1].done()]


class _BeginAgain(Exception):
    """The present tail is of no more use; says why."""


class KafkaContentStore:
    """Contents on Kafka. ``start`` it before the first ``get``."""

    def __init__(
        self,
        settings: KafkaSettings,
        store: ViewStore,
        *,
        partitions: Collection[Partition] | None = None,
        now_ms: Callable[[], int] = _wall_clock_ms,
    ) -> None:
        """``store`` is for this copy alone. ``partitions`` are those that are held, None: all; a call for another one
        raises ``NotHeld``. ``now_ms`` is a wall clock, and decides only when a copy is too old."""
        self._partitions = partitions
        self._settings = dataclasses.replace(settings, tail_records_max=RECORDS_MAX)
        self._topic = settings.topic(CONTENT)
        self._now_ms = now_ms
        self._copy = ContentCopy(store)
        self._leaders = KafkaLeaders(settings, self._topic)
        self._appender = KafkaAppender(settings, self._topic)
        self._store = store
        self._copied: dict[Partition, _Copied] = {}
        self._ends: dict[Partition, Position] = {}
        self._log_id = ""
        self._too_old_ms = int(DELETE_RETENTION_DEFAULT_MS * SAFE_FRACTION)
        self._rebuilt_count = 0
        self._problem: str | None = "not started"
        self._begin_again: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    async def start(self) -> None:
        """Begin copying. Returns at once; reads wait until the copy has come far enough."""
        assert not self._tasks, "a content store is started once"
        self._tasks = [asyncio.create_task(self._keep_copying()), asyncio.create_task(self._keep_checking())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def put(
        self, partition: Partition, scope: bytes, content_id: bytes, chunks: Sequence[bytes], *, timeout_s: float
    ) -> ContentRef:
        """See ``ContentStore.put``."""
        self._require(partition)
        records = [(chunk_key(scope, content_id, number), chunk) for number, chunk in enumerate(chunks)]
        appended = await self._append(partition, records, timeout_s)
        return ContentRef(
            scope=scope,
            id=content_id,
            chunks=len(chunks),
            size_bytes=0,
            last_offset=max(one.offset for one in appended),
            oldest_at_ms=min(one.appended_at_ms for one in appended),
        )

    async def get(self, partition: Partition, ref: ContentRef, *, timeout_s: float) -> list[bytes]:
        """See ``ContentStore.get``."""
        self._require(partition)
        keys = [chunk_key(ref.scope, ref.id, number) for number in range(ref.chunks)]
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    state = await self._passed(partition, ref.last_offset)
                    chunks = await self._copy.read(partition, keys)
                    # While it was read, the copy may have been thrown away.
                    if self._copied[partition].passed(ref.last_offset):
                        break
        except TimeoutError:
            raise Unavailable("content_lag", f"the copy of partition {partition} has not come to the content") from None
        present = [chunk for chunk in chunks if chunk is not None]
        if len(present) < ref.chunks:
            missing = chunks.index(None)
            raise ContentLost(
                f"chunk {missing} of {ref.chunks} is not in partition {partition}, copied to {state.position}"
            )
        return present

    async def erase(self, partition: Partition, refs: Sequence[ContentRef], *, timeout_s: float) -> None:
        """See ``ContentStore.erase``."""
        self._require(partition)
        keys = [chunk_key(ref.scope, ref.id, number) for ref in refs for number in range(ref.chunks)]
        await self._append(partition, [(key, None) for key in keys], timeout_s)

    def status(self) -> ContentCopyStatus:
        """Return what metrics show of the copy."""
        positions = {
            number: Position(copied.state.position)
            for number, copied in self._copied.items()
            if copied.state is not None
        }
        return ContentCopyStatus(
            positions=positions, ends=dict(self._ends), rebuilt_count=self._rebuilt_count, problem=self._problem
        )

    async def close(self) -> None:
        """See ``ContentStore.close``; the local rows stay, and are not closed."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for copied in self._copied.values():
            for _, waiter in copied.waiters:
                if not waiter.done():
                    waiter.set_exception(Unavailable("closed", "the content store was closed"))
        with contextlib.suppress(StoreFailed):
            # What is not stored is purged once more after the next start.
            for purged, position in self.copies().values():
                purged.at(position)
                purged.save()
        await self._appender.close()
        await self._leaders.close()

    def copies(self) -> dict[Partition, tuple[Purged, Position | None]]:
        """Return what of each partition's copy is purged, and its position; None: the copy is being made again."""
        return {
            number: (copied.purged, None if copied.state is None else Position(copied.state.position))
            for number, copied in self._copied.items()
            if copied.purged is not None
        }

    def _require(self, partition: Partition) -> None:
        if self._partitions is not None and partition not in self._partitions:
            raise NotHeld(partition)

    async def _append(
        self, partition: Partition, records: Sequence[tuple[bytes, bytes | None]], timeout_s: float
    ) -> list[Appended]:
        try:
            return await self._appender.append_all(partition, records, timeout_s=timeout_s)
        except AppendUncertain as error:
            raise Unavailable("broker", f"not every chunk of a content was acknowledged: {error}") from error

    async def _passed(self, partition: Partition, offset: int) -> CopyState:
        """Wait until the copy has passed the offset, and return its state."""
        if self._closed:
            raise Unavailable("closed", "the content store was closed")
        copied = self._copied.setdefault(partition, _Copied())
        while True:
            if copied.state is not None and copied.state.position > offset:
                if self._is_fresh(copied.state):
                    return copied.state
                raise Unavailable("content_lag", f"the copy of partition {partition} is too old to be served")
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            copied.waiters.append((offset, waiter))
            try:
                await waiter
            finally:
                waiter.cancel()
                copied.waiters = [pair for pair in copied.waiters if not pair[1].done()]

    def _is_fresh(self, state: CopyState) -> bool:
        return self._now_ms() - state.fresh_at_ms < self._too_old_ms

    async def _keep_copying(self) -> None:
        """Follow the log for ever; whatever ends it, begin again from the stored positions."""
        while True:
            try:
                await self._follow()
            except (Unavailable, StoreFailed, _BeginAgain) as error:
                self._problem = str(error)
            _log.warning("The copy of %s begins again: %s", self._topic, self._problem)
            await asyncio.sleep(RETRY_S)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Show a defect of ours: these tasks end only when they are cancelled."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._problem = f"stopped by {type(error).__name__}; restart the process"
            _log.error("The copy of %s has stopped", self._topic, exc_info=error)

    async def _follow(self) -> None:
        manifest = await self._leaders.manifest(timeout_s=ASK_TIMEOUT_S)
        retention_ms = await self._leaders.topic_config("delete.retention.ms", timeout_s=ASK_TIMEOUT_S)
        self._too_old_ms = int(int(retention_ms or DELETE_RETENTION_DEFAULT_MS) * SAFE_FRACTION)
        self._log_id = manifest.log_id
        positions = {}
        for partition in held_of(self._partitions, manifest.partition_count):
            positions[partition] = await self._resume(partition)
        tail = await KafkaTail.start(self._settings, self._topic, positions, self._leaders)
        self._problem = self._begin_again = None
        try:
            while self._begin_again is None:
                for batch in await tail.next(WAIT_S):
                    self._apply(batch)
                    # A batch holds up to 16 MiB; others on this loop come first.
                    await asyncio.sleep(0)
        except LogGap as gap:
            self._lose(gap.partition)
            raise _BeginAgain(str(gap)) from gap
        finally:
            await tail.close()
        raise _BeginAgain(self._begin_again)

    async def _resume(self, partition: Partition) -> Position:
        """Return where to go on reading; from the first record, on an empty copy, if the present one is of no use."""
        copied = self._copied.setdefault(partition, _Copied())
        state = self._copy.load(partition)
        is_new = False
        if copied.purged is None:
            copied.purged = Purged(self._store, partition, Position(0 if state is None else state.position))
            is_new = copied.purged.is_new and self._copy.is_empty(partition)
        if state is None or state.log_id != self._log_id or not self._is_fresh(state):
            copied.put(None)
            if not is_new:
                # What is read again may have been erased before.
                copied.purged.reset()
            if await self._copy.wipe(partition):
                self._rebuilt_count += 1
            # Whatever compaction removes from now on was either not read yet or is followed by its null record.
            fresh_at_ms = self._now_ms()
            first = await self._leaders.first(partition, timeout_s=ASK_TIMEOUT_S)
            state = CopyState(position=first, fresh_at_ms=fresh_at_ms, log_id=self._log_id)
            self._copy.save({partition: state})
        copied.put(state)
        return Position(state.position)

    def _apply(self, batch: RecordBatch) -> None:
        copied = self._copied[batch.partition]
        state = copied.state
        assert state is not None, "a partition that is followed has a state"
        if not self._is_fresh(state):
            self._lose(batch.partition)
            raise _BeginAgain(f"the copy of partition {batch.partition} is too old to go on from")
        fresh_at_ms = state.fresh_at_ms
        if batch.records:
            # A broker's clock that is ahead must not make the copy seem fresh for longer.
            fresh_at_ms = max(fresh_at_ms, min(batch.records[-1].appended_at_ms, self._now_ms()))
        state = CopyState(position=batch.next_position, fresh_at_ms=fresh_at_ms, log_id=self._log_id)
        self._copy.apply(batch, state)
        if copied.purged is not None and any(record.value is None for record in batch.records):
            copied.purged.erased()
        copied.put(state)

    def _lose(self, partition: Partition) -> None:
        """Give up the copy of a partition: it serves nothing from now on, and is wiped before it is made again."""
        self._copied[partition].put(None)
        self._copy.lose(partition)

    async def _keep_checking(self) -> None:
        """Compare the copy with the log at intervals, for ever."""
        behind: dict[Partition, Position] = {}
        while True:
            try:
                behind = await self._check(behind)
            except (Unavailable, StoreFailed) as error:
                _log.info("The copy of %s could not be checked: %s", self._topic, error)
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _check(self, behind: dict[Partition, Position]) -> dict[Partition, Position]:
        """Mark complete partitions as fresh; return the positions of those that are behind.

        ``behind`` is what the check before returned: whoever is still there has not moved since.
        """
        asked_at_ms = self._now_ms()
        manifest = await self._leaders.manifest(timeout_s=ASK_TIMEOUT_S)
        if self._log_id and manifest.log_id != self._log_id:
            self._begin_again = "the topic was recreated"
            return {}
        partitions = [number for number, copied in self._copied.items() if copied.state is not None]
        ends = await asyncio.gather(*(self._leaders.end(number, timeout_s=ASK_TIMEOUT_S) for number in partitions))
        self._ends = dict(zip(partitions, ends, strict=True))
        fresh: dict[Partition, CopyState] = {}
        still_behind: dict[Partition, Position] = {}
        for number, end in self._ends.items():
            state = self._copied[number].state
            if state is None:
                continue
            if state.position >= end:
                fresh[number] = msgspec.structs.replace(state, fresh_at_ms=max(state.fresh_at_ms, asked_at_ms))
            else:
                still_behind[number] = Position(state.position)
        self._copy.save(fresh)
        for number, state in fresh.items():
            self._copied[number].put(state)
        if any(behind.get(number) == position for number, position in still_behind.items()):
            self._begin_again = "the log grew and the copy did not"
        return still_behind
