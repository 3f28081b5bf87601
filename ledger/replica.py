"""One process's view: tails the log, folds it into rows, and lets reads and commits wait for what they need.

Place in the flow: log → **fold → view** → query. Rules kept here:

- Rows and position of a batch are one store write; after a failed write the fold is taken back and read again.
- A partition whose log is not the one that was folded (gap, divergence, recreation, unsupported upgrade) stops; the
  others go on. It never resets by itself: rebuilding is an explicit command.
- Between two batches the event loop runs: a batch is at most ``FOLD_BATCH_RECORDS_MAX`` records.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence

import structlog

from ledger.errors import LedgerError, NotHeld, StoreFailed, Unavailable
from ledger.fold import UnsupportedUpgrade, is_anchor
from ledger.holding import held_of
from ledger.log import EventLog, LogGap, Record, RecordBatch, Tail
from ledger.partition import Folded, Part, PartitionState, fold_part
from ledger.report import first_piece, is_crossing
from ledger.rows import LocalKind
from ledger.table import Rows, partition_prefix
from ledger.turn import Offset, Partition, Position
from ledger.verdict import Code, Fact, Outcome
from ledger.view import ViewStore

logger = structlog.get_logger("ledger.replica")

FOLD_BATCH_RECORDS_MAX = 64
"""Records folded before the event loop runs again: about 3 ms, which bounds what a read waits for it,"""
FOLD_BATCH_CHANGES_MAX = 2_000
"""or until about so many rows changed, since a tick may carry out a hundred due tasks: some 20 ms."""
TAIL_WAIT_S = 0.5
"""Longest wait of one read from the log: only how soon ``stop`` and the watchdog are noticed depends on it."""
RETRY_PAUSE_S = 0.2
"""Between attempts to reach the log or the disk again."""
SILENCE_MAX_S = 2.0
"""How long the end may lie beyond a position while nothing arrives at all before the tail is opened anew."""
PARTITION_SILENCE_MAX_S = 10.0
"""The same for one partition while others go on: in a rebuild the broker serves one after the other."""
MANIFEST_EVERY_S = 2.0
"""How often the log's identity is compared. A topic that was deleted and made again under the same name is noticed by
nothing else once it is longer than the position; its records are judged until then, so the view must be rebuilt."""


class Replica:
    """The rows of the partitions that are held, kept up to date by one task.

    ``partitions`` are those to hold; None: all. Whatever asks for another one gets ``NotHeld``.
    ``on_facts`` gets the lifecycle facts of each folded batch after it was written; ``on_outcome`` every outcome.
    """

    def __init__(
        self,
        log: EventLog,
        store: ViewStore,
        *,
        partitions: Collection[Partition] | None = None,
        on_facts: Callable[[Partition, Sequence[Fact]], None] | None = None,
        on_outcome: Callable[[Record, Outcome], None] | None = None,
    ) -> None:
        self._log = log
        self._wanted = partitions
        self.store = store
        self._on_facts = on_facts
        self._on_outcome = on_outcome
        self._partitions: dict[Partition, PartitionState] = {}
        self._expected: dict[bytes, list[asyncio.Future[tuple[Offset, Outcome]]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._reopen = asyncio.Event()
        self.log_id = ""
        """Identity of the log, as it was at the start."""
        self.on_aligned: Callable[[Partition], None] | None = None
        """Called between two rounds with a partition that is at an aligned place (``ledger.report``)."""
        self.partition_count = 0
        """Of the log at the start, whatever is held of it: it decides a principal's partition."""
        self.tail_reopened_count = 0

    async def start(self, *, timeout_s: float) -> None:
        """Compare the log with the rows, then start tailing.

        Raises ``Unavailable``, and ``InvalidInput`` for partitions that the log does not have.
        """
        manifest = await self._log.manifest(timeout_s=timeout_s)
        self.log_id = manifest.log_id
        self.partition_count = manifest.partition_count
        now_s = asyncio.get_running_loop().time()
        for partition in held_of(self._wanted, manifest.partition_count):
            state = PartitionState(rows=Rows(self.store, partition), progressed_at_s=now_s, caught_up_at_s=now_s)
            self._partitions[partition] = state
            self._check_log_id(partition, manifest.log_id)
        self._tasks = [asyncio.create_task(self._tail_forever()), asyncio.create_task(self._watch_forever())]
        for task in self._tasks:
            task.add_done_callback(self._on_task_end)

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        """A task that ends by itself has met a defect of ours: serve nothing from here on, and say so."""
        if task.cancelled() or task.exception() is None:
            return
        logger.critical("replica_task_failed", exc_info=task.exception())
        for partition, state in self._partitions.items():
            if state.stopped is None:
                message = (
                    f"the view met a defect ({type(task.exception()).__name__}); restart the process and report it"
                )
                self._stop_partition(partition, Unavailable("defect", message))

    async def stop(self) -> None:
        """Stop tailing; what waits is told that the ledger is closed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        closed = Unavailable("closed", "the ledger was closed")
        for state in self._partitions.values():
            self._fail_waiters(state, closed)
        for futures in self._expected.values():
            for future in futures:
                if not future.done():
                    future.set_exception(closed)

    @property
    def held(self) -> Collection[Partition]:
        """The partitions that are held, in order."""
        return self._partitions.keys()

    @property
    def is_partial(self) -> bool:
        """Whether there are partitions that are not held."""
        return len(self._partitions) < self.partition_count

    def require(self, partition: Partition) -> None:
        """Raise ``NotHeld`` for a partition that is not held."""
        if partition not in self._partitions:
            raise NotHeld(partition)

    def state(self, partition: Partition) -> PartitionState:
        """Return a partition's state; raises ``NotHeld``, or the ``Unavailable`` that stopped it."""
        state = self._partitions.get(partition)
        if state is None:
            raise NotHeld(partition)
        if state.stopped is not None:
            raise state.stopped
        return state

    def states(self) -> dict[Partition, PartitionState]:
        """Return the states of the partitions that are held, stopped ones too."""
        return self._partitions

    def rows(self, partition: Partition) -> Rows:
        """Return the rows of a partition; raises like ``state``."""
        return self.state(partition).rows

    async def reached(self, partition: Partition, position: Position, *, timeout_s: float) -> None:
        """Return when the view's position is at least ``position``; raises ``Unavailable`` when it is not in time."""
        state = self.state(partition)
        if state.rows.position >= position:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        state.end_seen = max(state.end_seen, position)
        state.waiters.append((position, future))
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            behind = position - state.rows.position
            raise Unavailable(
                "lagging", f"the view of partition {partition} is {behind} offsets behind after {timeout_s:.3f} s"
            ) from None
        finally:
            state.waiters = [waiter for waiter in state.waiters if waiter[1] is not future]

    def expect(self, event_id: bytes) -> asyncio.Future[tuple[Offset, Outcome]]:
        """Return a future of where this event ID is folded next, and how; give it back with ``forget``."""
        future: asyncio.Future[tuple[Offset, Outcome]] = asyncio.get_running_loop().create_future()
        self._expected.setdefault(event_id, []).append(future)
        return future

    def forget(self, event_id: bytes, future: asyncio.Future[tuple[Offset, Outcome]]) -> None:
        """Stop waiting."""
        futures = self._expected.get(event_id, [])
        if future in futures:
            futures.remove(future)
        if not futures:
            self._expected.pop(event_id, None)
        future.cancel()

    def pending_count(self) -> int:
        """Return how many commits and reads wait: none is leaked when it comes back to 0."""
        waiting = sum(len(state.waiters) for state in self._partitions.values())
        return waiting + sum(len(futures) for futures in self._expected.values())

    def _check_log_id(self, partition: Partition, log_id: str) -> None:
        key = partition_prefix(partition) + LocalKind.LOG_ID
        known = self.store.get(key)
        if known is None:
            self.store.write({key: log_id.encode()})
        elif known != log_id.encode():
            self._stop_partition(
                partition,
                Unavailable(
                    "log_diverged",
                    f"partition {partition} was folded from another log (its topic was recreated); "
                    "run 'turnledger view rebuild' once the new log is the right one",
                ),
            )

    def _stop_partition(self, partition: Partition, reason: Unavailable) -> None:
        state = self._partitions[partition]
        state.stopped = reason
        logger.error("partition_stopped", partition=partition, reason=reason.reason, message=str(reason))
        self._fail_waiters(state, reason)

    def _fail_waiters(self, state: PartitionState, reason: Unavailable) -> None:
        for _, future in state.waiters:
            if not future.done():
                future.set_exception(reason)
        state.waiters = []

    # The tail

    async def _tail_forever(self) -> None:
        while True:
            try:
                await self._tail_once()
            except LogGap as gap:
                self._stop_partition(gap.partition, gap_reason(gap))
            except UnsupportedUpgrade:
                continue  # The partition was stopped with its reason; the others go on.
            except (LedgerError, OSError) as error:
                logger.warning("tail_interrupted", message=str(error))
                await asyncio.sleep(RETRY_PAUSE_S)

    async def _tail_once(self) -> None:
        """Tail all partitions that are not stopped until something forces a new start."""
        self._reopen.clear()
        starts: dict[Partition, Position] = {}
        unchecked: set[Partition] = set()
        for partition, state in self._partitions.items():
            if state.stopped is None:
                meta = state.rows.meta
                starts[partition] = state.rows.position
                if meta.anchor_offset >= 0 and not state.rows.anchor_trimmed:
                    starts[partition] = Position(meta.anchor_offset)
                    unchecked.add(partition)
        if not starts:
            await self._reopen.wait()
            return
        tail = await self._log.tail(starts)
        try:
            await self._follow(tail, unchecked)
        except LogGap as gap:
            rows = self._partitions[gap.partition].rows
            if gap.partition in unchecked and gap.position < gap.first <= rows.position:
                # The anchor was trimmed with everything before the position: nothing is missing.
                rows.anchor_trimmed = True
                return
            raise
        finally:
            await tail.close()

    async def _follow(self, tail: Tail, unchecked: set[Partition]) -> None:
        while not self._reopen.is_set():
            batches = await tail.next(TAIL_WAIT_S)
            await self._fold_batches([self._behind_anchor(batch, unchecked) for batch in batches])

    def _behind_anchor(self, batch: RecordBatch, unchecked: set[Partition]) -> RecordBatch:
        """Check the anchor, the first record of a newly opened tail, and return the batch without what was folded."""
        state = self._partitions[batch.partition]
        if batch.partition in unchecked and batch.records:
            unchecked.discard(batch.partition)
            if not is_anchor(state.rows.meta, batch.records[0]):
                self._stop_partition(
                    batch.partition,
                    Unavailable(
                        "log_diverged",
                        f"partition {batch.partition}: the record at offset {state.rows.meta.anchor_offset} is not the "
                        "one that was folded; the log lost or replaced records that this view has seen",
                    ),
                )
        position = state.rows.position
        fresh = tuple(record for record in batch.records if record.offset >= position)
        return RecordBatch(partition=batch.partition, records=fresh, next_position=batch.next_position)

    async def _fold_batches(self, batches: Sequence[RecordBatch]) -> None:
        """Fold what one read has returned, in rounds of bounded size that end at aligned places."""
        left = deque(Part(batch.partition, batch.records, batch.next_position) for batch in batches)
        while left:
            left.extendleft(reversed(self._fold_parts(self._round(left))))
            if left:
                await asyncio.sleep(0)

    def _round(self, left: deque[Part]) -> list[Part]:
        """Take what is folded in one round: at most one part of a partition, so that its changes are told once."""
        parts: list[Part] = []
        room = FOLD_BATCH_RECORDS_MAX
        while left and room:
            part = left[0]
            if any(part.partition == taken.partition for taken in parts):
                break
            records = first_piece(part.records, 0, room)
            if records and self._is_crossing(part.partition, records[0].offset):
                if parts:
                    break
                self._tell_aligned(part.partition)
            left.popleft()
            if len(records) < len(part.records):
                left.appendleft(part._replace(records=part.records[len(records) :]))
                part = part._replace(records=records, next_position=None)
            parts.append(part)
            room -= len(records)
        return parts

    def _is_crossing(self, partition: Partition, offset: Offset) -> bool:
        """Return whether an aligned place lies between what was folded and a record."""
        return is_crossing(self._partitions[partition].rows.meta.anchor_offset, offset)

    def _tell_aligned(self, partition: Partition) -> None:
        if self.on_aligned is not None and self._partitions[partition].stopped is None:
            self.on_aligned(partition)

    def _fold_parts(self, parts: Sequence[Part]) -> list[Part]:
        """Fold one round, write its rows and positions at once, or take everything back; return what was left for
        another, because enough had changed.

        One write for all partitions: at a steady rate each has only a few records, and a write costs as much as some
        rows do.
        """
        folded: list[Folded] = []
        rest: list[Part] = []
        changes: dict[bytes, bytes | None] = {}
        states = [self._partitions[part.partition] for part in parts]
        try:
            for part, state in zip(parts, states, strict=True):
                if state.stopped is not None:
                    continue
                if rest:
                    rest.append(part)
                    continue
                done = fold_part(state, part, changes_max=FOLD_BATCH_CHANGES_MAX - len(changes))
                folded.append(done)
                if done.rest is not None:
                    rest.append(done.rest)
                if done.outcomes or state.rows.has_skipped:
                    changes |= state.rows.changes()
            if changes:
                self.store.write(changes)
        except StoreFailed:
            for state in states:
                state.rows.discard()
            raise
        for done in folded:
            done.state.rows.committed()
        for done in folded:
            self._announce(done.state.rows.partition, done.state, done.outcomes, done.facts)
        for done in folded:
            if done.upgrade is not None:
                self._stop_partition(done.state.rows.partition, Unavailable("upgrade", str(done.upgrade)))
        for done in folded:
            if done.upgrade is not None:
                raise done.upgrade
        return rest

    def _announce(
        self,
        partition: Partition,
        state: PartitionState,
        outcomes: list[tuple[Record, Outcome]],
        facts: list[Fact],
    ) -> None:
        """Wake what waits for the position or for one of the outcomes."""
        position = state.rows.position
        state.progressed_at_s = asyncio.get_running_loop().time()
        for record, outcome in outcomes:
            if outcome.event_id is not None and (futures := self._expected.pop(outcome.event_id, None)):
                for future in futures:
                    if not future.done():
                        future.set_result((record.offset, outcome))
            if outcome.code is Code.QUARANTINED:
                logger.error("record_quarantined", partition=partition, offset=record.offset, reason=outcome.reason)
            if self._on_outcome is not None:
                self._on_outcome(record, outcome)
        if state.waiters:
            for wanted, waiter in state.waiters:
                if wanted <= position and not waiter.done():
                    waiter.set_result(None)
        if facts and self._on_facts is not None:
            self._on_facts(partition, facts)

    # The watchdog

    async def _watch_forever(self) -> None:
        loop = asyncio.get_running_loop()
        manifest_at_s = loop.time() + MANIFEST_EVERY_S
        while True:
            await asyncio.sleep(TAIL_WAIT_S)
            now_s = loop.time()
            behind = [state for state in self._partitions.values() if self._is_behind(state, now_s)]
            newest_s = max((state.progressed_at_s for state in self._partitions.values()), default=now_s)
            limit_s = SILENCE_MAX_S if now_s - newest_s > SILENCE_MAX_S else PARTITION_SILENCE_MAX_S
            silent = [state for state in behind if now_s - max(state.progressed_at_s, state.caught_up_at_s) > limit_s]
            if silent:
                logger.warning("tail_silent", partitions=[state.rows.partition for state in silent])
                self.tail_reopened_count += 1
                self._reopen.set()
                for state in silent:
                    state.progressed_at_s = now_s
            if now_s >= manifest_at_s:
                manifest_at_s = now_s + MANIFEST_EVERY_S
                await self.compare_manifest()

    def _is_behind(self, state: PartitionState, now_s: float) -> bool:
        """Return whether records are known to be missing; a partition that has them all has just progressed."""
        if state.stopped is None and state.end_seen > state.rows.position:
            return True
        state.caught_up_at_s = now_s
        return False

    async def compare_manifest(self) -> None:
        """Stop every partition when the log is not the one that was opened, or has another number of partitions."""
        try:
            manifest = await self._log.manifest(timeout_s=RETRY_PAUSE_S * 10)
        except Unavailable:
            return
        for partition, state in self._partitions.items():
            if state.stopped is not None:
                continue
            if manifest.partition_count != self.partition_count:
                message = (
                    f"the log has {manifest.partition_count} partitions, the ledger was formatted for "
                    f"{self.partition_count}; principals would be split: go on in a ledger with new topics"
                )
                self._stop_partition(partition, Unavailable("manifest", message))
            elif manifest.log_id != self.log_id:
                self._check_log_id(partition, manifest.log_id)


def gap_reason(gap: LogGap) -> Unavailable:
    """Return what readers are told when the position is not in the log."""
    if gap.position < gap.first:
        return Unavailable(
            "log_gap",
            f"partition {gap.partition}: offsets {gap.position} to {gap.first - 1} were removed before they were "
            "folded here; run 'turnledger view rebuild --from tables', or copy the state directory of a replica that "
            "has folded them",
        )
    return Unavailable(
        "log_diverged",
        f"partition {gap.partition}: position {gap.position} lies beyond the log's end {gap.end}; the log lost "
        "records that this view has folded",
    )
