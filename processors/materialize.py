"""The materialize service: the log folded once more, into tables from which new replicas start.

Place in the flow: log → fold → **tables**. Several processes share the partitions; each partition is one ``Lane``,
which only the latest writer can write for. This loop gives lanes their partitions, reads one tail for all, and ticks
the clock of idle partitions whose queue is due.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from ledger import codec
from ledger.alias import CONTROL_KEY
from ledger.errors import LedgerError, Unavailable
from ledger.event import ClockTicked
from ledger.log import AppendUncertain, EventLog, LogGap, Tail
from ledger.replica import gap_reason
from ledger.tables import PartitionLost, WriterFenced
from ledger.turn import Partition, Position
from processors.lane import Lane, LaneParts, LaneStopped
from processors.ports import Membership
from processors.slot import LaneStatus, Phase, Slot

logger = structlog.get_logger("processors.materialize")

TAIL_WAIT_S = 0.1
"""Longest wait of one read: how soon a restored lane or a lost partition is noticed."""
TAIL_MIN_S = 0.5
"""How long a tail serves before it is opened anew for lanes that were restored meanwhile."""
BACKLOG_RECORDS_MAX = 4_000
"""Records read and not folded yet, in all: one or two seconds of work."""
RETRY_PAUSE_S = 0.5
"""Before a lane is restored again after a failure,"""
RETRY_PAUSE_MAX_S = 5.0
"""growing up to this."""
RESTORES_AT_ONCE = 4
TICK_INTERVAL_S = 0.25
"""Between two ticks of one idle partition: each carries out a bounded part of what is due."""
TICK_TIMEOUT_S = 5.0
ENDS_INTERVAL_S = 2.0
"""How often the ends of the log are asked for, to show the lag and to notice a silent tail."""
ENDS_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 5.0
"""How long lanes may take to finish what they write when the service stops."""
RECOVERABLE = (LedgerError, WriterFenced, AppendUncertain, PartitionLost, OSError)


class Materializer:
    """The service. ``run`` it until it is cancelled; ``close`` it then."""

    def __init__(self, parts: LaneParts, join: Callable[[Callable[[frozenset[Partition]], None]], Membership]) -> None:
        """``join`` makes the membership; it is told whom to call with the partitions that are assigned."""
        self._parts = parts
        self._log: EventLog = parts.log
        self._membership = join(self._on_assigned)
        self._slots: dict[Partition, Slot] = {}
        self._assigned: frozenset[Partition] = frozenset()
        self._closing: dict[Partition, asyncio.Task[None]] = {}
        self._restoring = asyncio.Semaphore(RESTORES_AT_ONCE)
        self._tail: Tail | None = None
        self._tailed: dict[Partition, int] = {}
        self._tailed_at_s = 0.0
        self._dry_at_s = 0.0
        """When the tail last had nothing at all."""
        self._ends_at_s = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._has_joined = False
        self._is_closing = False
        self._has_ended = asyncio.Event()
        self._has_ended.set()
        self.records_count = 0
        """Records folded and written since the start; a metric."""
        self.restores_count = 0
        self.fenced_count = 0
        self.ticks_count = 0

    async def run(self) -> None:
        """Work until cancelled or closed. Raises ``Unavailable`` only when the group cannot be joined."""
        self._has_ended.clear()
        try:
            if not self._has_joined:
                await self._membership.start()
                self._has_joined = True
            await self._work()
        finally:
            self._has_ended.set()

    async def _work(self) -> None:
        while not self._is_closing:
            self._share_out()
            try:
                await self._read_once()
            except LogGap as gap:
                self._on_gap(gap)
                await self._drop_tail()
            except (LedgerError, OSError) as error:
                logger.warning("reading_interrupted", message=str(error))
                await self._drop_tail()
                await asyncio.sleep(RETRY_PAUSE_S)
            self._tick_due()
            self._ask_ends()

    async def close(self) -> None:
        """Finish what is being written, give up every partition and leave the group."""
        self._is_closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._has_ended.wait()
        tasks = [slot.task for slot in self._slots.values() if slot.task is not None and slot.phase is Phase.RUNNING]
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)
        for slot in list(self._slots.values()):
            self._release(slot)
        await _ended(*self._closing.values())
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._drop_tail()
        await self._membership.close()

    def statuses(self) -> list[LaneStatus]:
        """Return where each assigned partition is."""
        return [slot.status() for _, slot in sorted(self._slots.items())]

    def lanes(self) -> dict[Partition, Lane]:
        """Return the lanes that are running."""
        return {
            partition: slot.lane
            for partition, slot in self._slots.items()
            if slot.lane is not None and slot.phase is Phase.RUNNING
        }

    def held(self) -> set[Partition]:
        """Return the partitions that are this worker's, or are about to be."""
        return set(self._slots) | self._assigned

    async def discard(self, partition: Partition, remove: Callable[[], None]) -> bool:
        """Remove what this worker keeps of a partition that is not its own; return whether it was not.

        ``remove`` runs in a thread; what it raises is raised here. Should the partition come back meanwhile, its lane
        is opened after that.
        """
        if partition in self.held():
            return False
        removing = asyncio.create_task(_remove(remove, self._closing.get(partition)))
        self._closing[partition] = removing
        await asyncio.shield(removing)
        return True

    # Partitions come and go

    def _on_assigned(self, partitions: frozenset[Partition]) -> None:
        logger.info("partitions_assigned", partitions=sorted(partitions))
        self._assigned = partitions

    def _share_out(self) -> None:
        """Begin with partitions that are new here, and give up those that are not ours any more."""
        for partition in set(self._slots) - self._assigned:
            self._release(self._slots[partition])
        for partition in self._assigned - set(self._slots):
            slot = self._slots[partition] = Slot(partition)
            self._start(slot, self._restore(slot))

    def _start(self, slot: Slot, work: Coroutine[Any, Any, None]) -> None:
        task = slot.task = asyncio.create_task(work)
        task.add_done_callback(lambda done: self._on_task_end(slot, done))

    def _on_task_end(self, slot: Slot, task: asyncio.Task[None]) -> None:
        """A task that ends with an error that nobody expected has met a defect of ours: that partition stops."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        logger.critical("lane_failed", partition=slot.partition, exc_info=error)
        message = f"the worker met a defect ({type(error).__name__}); restart it and report it"
        self._stop(slot, Unavailable("defect", message))

    def _release(self, slot: Slot) -> None:
        """Give a partition up; its lane is closed in the background, and before it is opened again."""
        self._slots.pop(slot.partition, None)
        slot.phase = Phase.STOPPED
        self._closing[slot.partition] = asyncio.create_task(self._close_slot(slot, self._closing.get(slot.partition)))

    async def _close_slot(self, slot: Slot, earlier: asyncio.Task[None] | None) -> None:
        for task in (slot.task, slot.ticking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if slot.lane is not None:
            await self._close_lane(slot.lane, earlier)
        elif earlier is not None:
            await _ended(earlier)

    async def _close_lane(self, lane: Lane, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await _ended(earlier)
        try:
            await lane.close()
        except Exception as error:
            # Whoever waits for the end of this asks only whether it has ended.
            message = f"{type(error).__name__}: {error}"
            logger.warning("lane_not_closed", partition=lane.partition, message=message)
            raise

    async def _restore(self, slot: Slot) -> None:
        """Restore a lane, trying until it runs or is stopped for good."""
        while True:
            try:
                await self._restore_once(slot)
            except LaneStopped as stopped:
                self._stop(slot, stopped.reason)
                return
            except RECOVERABLE as error:
                slot.failures += 1
                slot.problem = f"{type(error).__name__}: {error}"
                logger.warning("lane_not_restored", partition=slot.partition, message=slot.problem)
                await asyncio.sleep(min(RETRY_PAUSE_S * slot.failures, RETRY_PAUSE_MAX_S))
            else:
                slot.task = None
                return

    async def _restore_once(self, slot: Slot) -> None:
        async with self._restoring:
            if slot.lane is not None:
                lane, slot.lane = slot.lane, None
                closing = self._close_lane(lane, self._closing.get(slot.partition))
                self._closing[slot.partition] = asyncio.create_task(closing)
            if slot.partition in self._closing:
                await _ended(self._closing[slot.partition])
            # Whoever is no member any more must not fence the one that is.
            await self._membership.confirm(slot.partition, slot.read_to)
            slot.lane = Lane(self._parts, slot.partition)
            await slot.lane.restore()
        self.restores_count += 1
        slot.epoch += 1
        slot.failures = 0
        slot.backlog.clear()
        slot.read_to = slot.lane.start
        slot.progressed_at_s = time.monotonic()
        slot.phase = Phase.RUNNING

    def _stop(self, slot: Slot, reason: Unavailable) -> None:
        logger.error("partition_stopped", partition=slot.partition, reason=reason.reason, message=str(reason))
        slot.phase = Phase.STOPPED
        slot.problem = str(reason)
        slot.backlog.clear()
        slot.task = None

    # Reading

    async def _read_once(self) -> None:
        """Read what has arrived and hand it to the lanes."""
        running = {slot.partition: slot.epoch for slot in self._slots.values() if slot.phase is Phase.RUNNING}
        if self._tail is not None and running != self._tailed:
            # Lanes are restored one after the other: those that only came in addition wait a little for the next ones.
            is_longer = running.items() >= self._tailed.items()
            if not is_longer or time.monotonic() - self._tailed_at_s >= TAIL_MIN_S:
                await self._drop_tail()
        busy = [slot.task for slot in self._slots.values() if slot.task is not None and slot.phase is Phase.RUNNING]
        waiting = sum(slot.backlog_records for slot in self._slots.values())
        if not running or waiting >= BACKLOG_RECORDS_MAX:
            if busy:
                await asyncio.wait(busy, timeout=TAIL_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(TAIL_WAIT_S)
            return
        if self._tail is None:
            self._tail = await self._log.tail({partition: self._slots[partition].read_to for partition in running})
            self._tailed = running
            self._tailed_at_s = time.monotonic()
        batches = await self._tail.next(TAIL_WAIT_S)
        if not batches:
            self._dry_at_s = time.monotonic()
        for batch in batches:
            slot = self._slots.get(batch.partition)
            if slot is None or slot.phase is not Phase.RUNNING or slot.epoch != self._tailed.get(batch.partition):
                continue
            slot.backlog.append(batch)
            slot.read_to = batch.next_position
            slot.progressed_at_s = time.monotonic()
            if slot.task is None:
                self._start(slot, self._fold(slot))

    async def _drop_tail(self) -> None:
        if self._tail is not None:
            tail, self._tail = self._tail, None
            await tail.close()
        # What was read and not folded is folded all the same: ``read_to`` lies behind it.

    def _on_gap(self, gap: LogGap) -> None:
        slot = self._slots.get(gap.partition)
        if slot is None or slot.lane is None or slot.phase is not Phase.RUNNING:
            return
        if gap.position < gap.first and slot.lane.anchor_trimmed(gap.first):
            # Only the anchor was trimmed: nothing is missing.
            slot.read_to = slot.lane.start
            return
        self._stop(slot, gap_reason(gap))

    # Folding

    async def _fold(self, slot: Slot) -> None:
        """Fold what waits for a lane until nothing does; after a failure restore the lane."""
        try:
            while slot.backlog:
                assert slot.lane is not None, "a running slot has a lane"
                batches = slot.take()
                count = await slot.lane.fold(batches)
                self.records_count += count
        except LaneStopped as stopped:
            self._stop(slot, stopped.reason)
        except RECOVERABLE as error:
            if isinstance(error, WriterFenced):
                self.fenced_count += 1
            slot.problem = f"{type(error).__name__}: {error}"
            logger.warning("lane_interrupted", partition=slot.partition, message=slot.problem)
            slot.phase = Phase.RESTORING
            slot.backlog.clear()
            self._start(slot, self._restore(slot))
        else:
            slot.task = None

    # Ticks and ends

    def _tick_due(self) -> None:
        """Tick the clock of idle partitions whose queue is due: without traffic nothing else would."""
        now_s = time.monotonic()
        for slot in self._slots.values():
            if not slot.is_idle or slot.ticking is not None or now_s - slot.ticked_at_s < TICK_INTERVAL_S:
                continue
            assert slot.lane is not None, "a running slot has a lane"
            if slot.lane.rows.meta.queue_due_ms <= self._parts.now_ms():
                slot.ticked_at_s = now_s
                slot.ticking = asyncio.create_task(self._tick(slot))

    async def _tick(self, slot: Slot) -> None:
        assert slot.lane is not None, "a running slot has a lane"
        event = ClockTicked(written_at_ms=self._parts.now_ms())
        value = codec.encode(event, slot.lane.rows.meta.format)
        try:
            await self._log.append(slot.partition, CONTROL_KEY, value, timeout_s=TICK_TIMEOUT_S)
            self.ticks_count += 1
        except (Unavailable, AppendUncertain) as error:
            logger.warning("tick_failed", partition=slot.partition, message=str(error))
        finally:
            slot.ticking = None

    def _ask_ends(self) -> None:
        now_s = time.monotonic()
        if now_s - self._ends_at_s < ENDS_INTERVAL_S or (self._asking is not None and not self._asking.done()):
            return
        self._ends_at_s = now_s
        self._asking = asyncio.create_task(self._learn_ends(list(self._slots.values())))

    async def _learn_ends(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            try:
                end = await self._log.end(slot.partition, timeout_s=ENDS_TIMEOUT_S)
            except Unavailable:
                continue
            slot.learn_end(end, time.monotonic())
            await self._leave_hint(slot)
            if slot.is_silent(time.monotonic(), self._dry_at_s):
                logger.warning("tail_silent", partition=slot.partition)
                slot.progressed_at_s = time.monotonic()
                # The tail is compared with the epochs, so this opens it anew.
                slot.epoch += 1

    async def _leave_hint(self, slot: Slot) -> None:
        """Commit where the table is, for whoever watches the group's lag."""
        marker = None if slot.lane is None else slot.lane.marker
        if slot.phase is not Phase.RUNNING or marker is None or marker.position == slot.hinted:
            return
        try:
            await self._membership.confirm(slot.partition, Position(marker.position))
            slot.hinted = marker.position
        except (PartitionLost, Unavailable) as error:
            logger.info("hint_not_left", partition=slot.partition, message=str(error))


async def _ended(*tasks: asyncio.Task[None]) -> None:
    """Return when tasks have ended, however; they go on when this is cancelled, or a lane would be left half closed and
    its rows could not be opened again."""
    await asyncio.shield(asyncio.gather(*tasks, return_exceptions=True))


async def _remove(remove: Callable[[], None], earlier: asyncio.Task[None] | None) -> None:
    if earlier is not None:
        await _ended(earlier)
    await asyncio.to_thread(remove)
