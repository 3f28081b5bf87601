"""Appends to one Kafka topic: own batches, one in flight per partition, and a producer that is replaced when it fails.

aiokafka's idempotent producer repeats a batch for ever, and a batch that it gives up has used its sequence number: from
then on the broker refuses every batch of that partition, while the producer looks alive. So a producer that failed one
batch is replaced. What was handed to it is uncertain from then on; what still waited here was certainly not written.

Batches are built here and not by aiokafka, so that what waited and what was sent can be told apart at a
deadline, and a record whose caller has given up is dropped instead of landing late.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, ProducerClosed
from aiokafka.structs import RecordMetadata

from ledger.adapters.kafka_settings import KafkaSettings
from ledger.errors import Unavailable
from ledger.log import Appended, AppendUncertain
from ledger.turn import Offset, Partition

BATCH_BYTES_MAX = 768 * 1024
"""One batch: below the broker's default limit of 1 MiB for it, and above one content chunk."""
RETIRED_DRAIN_S = 2.0
"""How long a replaced producer may go on with what it was given."""
RETIRED_START_S = 5.0
"""How long a producer that is given up while it starts may go on with that: three request timeouts, which bound the
connection to a broker; what comes after it can be cancelled."""
RETIRED_STOP_S = 10.0
"""How long closing its connections may take; ``stop()`` hangs on a paused broker."""
START_BACKOFF_S = 0.2
"""Pause before the next attempt to start a producer."""
_LOG_APPEND_TIME = 1

_log = logging.getLogger(__name__)


class Entry:
    """One record on its way."""

    __slots__ = ("appended", "key", "sent", "value")

    def __init__(self, key: bytes, value: bytes | None, appended: asyncio.Future[Appended]) -> None:
        self.key = key
        self.value = value
        self.appended = appended
        self.sent = False


class KafkaAppender:
    """Appends records to the partitions of one topic; started by the first append."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self._waiting: dict[Partition, deque[Entry]] = {}
        self._lanes: dict[Partition, asyncio.Task[None]] = {}
        self._producer: AIOKafkaProducer | None = None
        self._starting: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._closed = False
        self.retired_count = 0
        """Producers given up so far; a metric."""

    async def append(self, partition: Partition, key: bytes, value: bytes | None, *, timeout_s: float) -> Appended:
        """Append one record. Raises ``Unavailable`` if it was certainly not written, else ``AppendUncertain``."""
        entry = self._enqueue(partition, key, value)
        try:
            async with asyncio.timeout(timeout_s):
                return await entry.appended
        except TimeoutError:
            raise _late([entry]) from None
        finally:
            if entry.appended.cancelled():
                self._forget(partition, [entry])

    async def append_all(
        self, partition: Partition, records: Sequence[tuple[bytes, bytes | None]], *, timeout_s: float
    ) -> list[Appended]:
        """Append records in their order, under one deadline; raises as ``append`` does, for the first that fails."""
        entries = [self._enqueue(partition, key, value) for key, value in records]
        try:
            async with asyncio.timeout(timeout_s):
                return [await entry.appended for entry in entries]
        except TimeoutError:
            raise _late(entries) from None
        finally:
            self._forget(partition, entries)

    async def close(self) -> None:
        """Fail what waits, give what was sent a bounded time, and close the producers."""
        self._closed = True
        tasks = [*self._lanes.values(), *([self._starting] if self._starting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for entries in self._waiting.values():
            for entry in entries:
                if not entry.appended.done():
                    entry.appended.set_exception(Unavailable("closed", "the log was closed"))
        self._waiting.clear()
        if self._producer is not None:
            self._retire(self._producer)
            self._producer = None
        await asyncio.gather(*self._retiring)

    def _enqueue(self, partition: Partition, key: bytes, value: bytes | None) -> Entry:
        if self._closed:
            raise Unavailable("closed", "the log was closed")
        entry = Entry(key, value, asyncio.get_running_loop().create_future())
        waiting = self._waiting.get(partition)
        if waiting is None:
            waiting = self._waiting[partition] = deque()
        waiting.append(entry)
        if partition not in self._lanes:
            self._lanes[partition] = asyncio.create_task(self._run_lane(partition, waiting))
        return entry

    async def _run_lane(self, partition: Partition, waiting: deque[Entry]) -> None:
        """Send what waits for one partition, one batch after the other, until nothing does."""
        try:
            while waiting:
                producer = self._producer
                if producer is None:
                    await asyncio.shield(self._start_producer())
                else:
                    await self._send_batch(producer, partition, waiting)
                while waiting and waiting[0].appended.done():
                    waiting.popleft()
        finally:
            del self._lanes[partition]

    async def _send_batch(self, producer: AIOKafkaProducer, partition: Partition, waiting: deque[Entry]) -> None:
        try:
            known = await producer.partitions_for(self._topic)
        except KafkaError as error:
            # Nothing was sent, so what waits may go on waiting, each until its own deadline.
            self._replace(producer, error)
            return
        if partition not in known:
            _fail(list(waiting), lambda: Unavailable("manifest", f"the topic has {len(known)} partitions"))
            return
        batch = producer.create_batch()
        entries: list[Entry] = []
        while waiting:
            entry = waiting[0]
            if not entry.appended.done():
                if batch.append(timestamp=None, key=entry.key, value=entry.value) is None:
                    break
                entry.sent = True
                entries.append(entry)
            waiting.popleft()
        if not entries:
            return
        try:
            sent = await producer.send_batch(batch, self._topic, partition=partition)
            metadata = await self._answer(producer, sent)
        except KafkaError as error:
            self._replace(producer, error)
            cause = type(error).__name__
            _fail(entries, lambda: AppendUncertain(f"the producer failed: {cause}"))
        except asyncio.CancelledError:
            _fail(entries, lambda: AppendUncertain("the log was closed before the answer came"))
            raise
        else:
            settle(entries, metadata)

    async def _answer(self, producer: AIOKafkaProducer, sent: asyncio.Future[RecordMetadata]) -> RecordMetadata:
        try:
            while True:
                await asyncio.wait([sent], timeout=self._settings.producer_stall_s)
                if sent.done():
                    return sent.result()
                # The broker may be away, or this producer may be stuck. Once another one has connected, it is the
                # latter or as good as; this one is then retired, which ends the wait.
                if self._producer is producer:
                    self._start_producer()
        finally:
            # Without effect on the batch; whatever becomes of it now is nobody's.
            sent.cancel()

    def _replace(self, producer: AIOKafkaProducer, error: KafkaError) -> None:
        if self._producer is producer:
            _log.warning("The producer for %s is replaced after %s", self._topic, type(error).__name__)
            self._producer = None
            self._retire(producer)

    def _start_producer(self) -> asyncio.Task[None]:
        if self._starting is None:
            self._starting = asyncio.create_task(self._next_producer())
        return self._starting

    async def _next_producer(self) -> None:
        """Start a producer, trying until one connects, and put it in the place of the present one."""
        try:
            while True:
                producer = await self._started()
                if producer is not None:
                    break
                await asyncio.sleep(START_BACKOFF_S)
            if self._producer is not None:
                self._retire(self._producer)
            self._producer = producer
        finally:
            self._starting = None

    async def _started(self) -> AIOKafkaProducer | None:
        options = self._settings.client_options()
        producer = AIOKafkaProducer(
            enable_idempotence=True, acks="all", linger_ms=0, max_batch_size=BATCH_BYTES_MAX, **options
        )
        starting = asyncio.create_task(producer.start())
        started = False
        try:
            await asyncio.wait([starting], timeout=self._settings.producer_start_timeout_s)
            if starting.done():
                starting.result()
                started = True
                return producer
            _log.warning("No producer for %s could be started in time", self._topic)
        except KafkaError as error:
            _log.warning("No producer for %s could be started: %s", self._topic, type(error).__name__)
        finally:
            if not started:
                self._retire(producer, starting)
        return None

    def _retire(self, producer: AIOKafkaProducer, starting: asyncio.Task[None] | None = None) -> None:
        self.retired_count += 1
        task = asyncio.create_task(stop_producer(producer, starting))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def _forget(self, partition: Partition, entries: Sequence[Entry]) -> None:
        """Drop those entries of a caller that gave up which were not sent, and mark every failure as seen."""
        for entry in entries:
            if not entry.appended.done():
                entry.appended.cancel()
            if entry.appended.cancelled():
                if not entry.sent:
                    with contextlib.suppress(ValueError):
                        self._waiting[partition].remove(entry)
            else:
                entry.appended.exception()


def _late(entries: Sequence[Entry]) -> Unavailable | AppendUncertain:
    unanswered = [entry for entry in entries if not entry.appended.done() or entry.appended.cancelled()]
    if any(entry.sent for entry in unanswered):
        return AppendUncertain("the broker did not answer before the deadline")
    return Unavailable("broker", "the record could not be sent before the deadline")


def _fail(entries: Sequence[Entry], error: Callable[[], Unavailable | AppendUncertain]) -> None:
    for entry in entries:
        if not entry.appended.done():
            # One each, or every caller would add its traceback to the same one.
            entry.appended.set_exception(error())


def settle(entries: Sequence[Entry], metadata: RecordMetadata) -> None:
    """Tell each record of an acknowledged batch where it is."""
    appended_at_ms = metadata.timestamp
    if appended_at_ms is None or metadata.timestamp_type != _LOG_APPEND_TIME or metadata.offset < 0:
        # DuplicateSequenceNumber: aiokafka reports success without an offset, and so without an append time.
        _fail(entries, lambda: AppendUncertain("the record is in the log, but the broker no longer tells where"))
        return
    for index, entry in enumerate(entries):
        if not entry.appended.done():
            entry.appended.set_result(Appended(offset=Offset(metadata.offset + index), appended_at_ms=appended_at_ms))


async def stop_producer(producer: AIOKafkaProducer, starting: asyncio.Task[None] | None = None) -> None:
    """Close a producer within a bounded time, whatever state it is in.

    ``AIOKafkaProducer.stop`` alone waits until every batch is delivered, which is for ever on a paused broker.
    """
    if starting is not None and not starting.done():
        # aiokafka never closes the first connection of a start that is cancelled, so that part is waited for.
        await asyncio.wait([starting], timeout=RETIRED_START_S)
        starting.cancel()
        await asyncio.wait([starting])
    sender = producer._sender
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RETIRED_DRAIN_S):
            await producer.flush()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RETIRED_STOP_S):
            await sender.close()
    producer._message_accumulator.fail_all(ProducerClosed())
    try:
        async with asyncio.timeout(RETIRED_STOP_S):
            await producer.stop()
    except (KafkaError, TimeoutError) as error:
        _log.warning("A replaced producer did not close: %s", type(error).__name__)
