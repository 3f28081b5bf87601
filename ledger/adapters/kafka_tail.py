"""Running read of one Kafka topic by manual assignment: no consumer group, so no rebalance can stop it.

``read_committed``, so that records of open or aborted transactions are never returned; the *position* goes on past the
control records that end a transaction. Nothing is ever reset: a position outside the log is a ``LogGap``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from ledger.adapters.kafka_leader import KafkaLeaders
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.errors import Unavailable
from ledger.log import LogGap, Record, RecordBatch
from ledger.turn import Offset, Partition, Position

FETCH_BYTES_MAX = 16 * 1024 * 1024
"""One fetch from one broker: what a tail holds in memory per broker. Enough for 100,000 records a second."""
PARTITION_FETCH_BYTES_MAX = 1024 * 1024
"""One partition's part of it. A tail gives what it holds of one partition before that of the next."""
CONTROL_CHECK_S = 0.05
"""How soon a position that moved past control records alone is noticed: aiokafka does not wake its caller for those."""
GAP_CHECK_TIMEOUT_S = 1.0
"""How long the confirmation of a gap may take before reading goes on; the broker repeats its refusal."""
STOP_TIMEOUT_S = 5.0
"""How long closing the connections may take."""
SILENCE_S = 5.0
"""No leader has answered a fetch for so long: three request timeouts, while an answer is due every 0.5 s."""


class KafkaTail:
    """One consumer and its positions; see the port ``Tail``.

    A gap concerns one partition. It is raised again whenever there is nothing else to return, so that the other
    partitions go on and it is not forgotten.
    """

    def __init__(self, consumer: AIOKafkaConsumer, topic: str, leaders: KafkaLeaders, records_max: int) -> None:
        """Take over a started consumer; ``start`` makes both."""
        self._consumer = consumer
        self._topic = topic
        self._leaders = leaders
        self._records_max = records_max
        self._returned: dict[TopicPartition, Position] = {}
        self._gaps: dict[TopicPartition, LogGap] = {}
        self._answered_at_ms: dict[TopicPartition, int | None] = {}
        self._answered_at_s = time.monotonic()
        self.closed = False

    @classmethod
    async def start(
        cls, settings: KafkaSettings, topic: str, positions: Mapping[Partition, Position], leaders: KafkaLeaders
    ) -> KafkaTail:
        """Connect and start fetching. Raises ``Unavailable``."""
        consumer = AIOKafkaConsumer(
            group_id=None,
            auto_offset_reset="none",
            enable_auto_commit=False,
            isolation_level="read_committed",
            fetch_min_bytes=1,
            fetch_max_wait_ms=settings.fetch_wait_ms_max,
            fetch_max_bytes=FETCH_BYTES_MAX,
            max_partition_fetch_bytes=PARTITION_FETCH_BYTES_MAX,
            **settings.client_options(),
        )
        # aiokafka never closes the first connection of a start that is cancelled, so a start is always waited for; the
        # request timeouts bound it.
        starting = asyncio.create_task(consumer.start())
        tail = None
        try:
            await asyncio.shield(starting)
            # A task that has not had its first turn makes aiokafka's stop() fail.
            await asyncio.sleep(0)
            tail = cls(consumer, topic, leaders, settings.tail_records_max)
            tail._assign(positions)
        except KafkaError as error:
            raise Unavailable("broker", f"the log cannot be reached: {type(error).__name__}") from error
        finally:
            if tail is None:
                await asyncio.wait([starting])
                await asyncio.sleep(0)
                await consumer.stop()
        return tail

    async def next(self, wait_s: float) -> list[RecordBatch]:
        """See ``Tail.next``."""
        deadline = time.monotonic() + wait_s
        while True:
            if self.closed:
                raise Unavailable("closed", "the tail was closed")
            left_s = deadline - time.monotonic()
            try:
                found = await self._consumer.getmany(
                    timeout_ms=max(0, int(min(left_s, CONTROL_CHECK_S) * 1000)), max_records=self._records_max
                )
            except OffsetOutOfRangeError as error:
                if gap := await self._new_gap(error.args[0]):
                    raise gap from error
                continue
            except KafkaError as error:
                raise Unavailable("broker", f"the log cannot be read: {type(error).__name__}") from error
            if batches := await self._batches(found):
                self._answered_at_s = time.monotonic()
                return batches
            if left_s <= 0:
                for gap in self._gaps.values():
                    raise gap
                self._check_silence()
                return []

    async def close(self) -> None:
        """Stop fetching and close the connections."""
        self.closed = True
        await stop_consumer(self._consumer)

    def _assign(self, positions: Mapping[Partition, Position]) -> None:
        self._returned = {TopicPartition(self._topic, number): position for number, position in positions.items()}
        self._consumer.assign(list(self._returned))
        # In the same turn of the loop, before the fetcher can look for a committed offset.
        for partition, position in self._returned.items():
            self._consumer.seek(partition, position)

    async def _batches(
        self, found: Mapping[TopicPartition, Sequence[ConsumerRecord[bytes, bytes]]]
    ) -> list[RecordBatch]:
        batches = []
        for partition, returned in self._returned.items():
            position = Position(await self._consumer.position(partition))
            if position == returned:
                continue
            self._returned[partition] = position
            number = Partition(partition.partition)
            records = tuple(
                Record(
                    partition=number,
                    offset=Offset(record.offset),
                    appended_at_ms=record.timestamp,
                    key=record.key,
                    value=record.value,
                )
                for record in found.get(partition, ())
            )
            batches.append(RecordBatch(partition=number, records=records, next_position=position))
        return batches

    async def _new_gap(self, refused: Mapping[TopicPartition, int]) -> LogGap | None:
        """Believe a refusal only when a confirmed leader's first and end offsets agree with it."""
        # Before anything is awaited, so that the fetcher does not ask for the same again meanwhile.
        self._consumer.pause(*refused)
        for partition in refused:
            number, position = Partition(partition.partition), self._returned[partition]
            with contextlib.suppress(Unavailable):
                first = await self._leaders.first(number, timeout_s=GAP_CHECK_TIMEOUT_S)
                end = await self._leaders.end(number, timeout_s=GAP_CHECK_TIMEOUT_S)
                if not first <= position <= end:
                    self._gaps[partition] = LogGap(number, position, first, end)
                    return self._gaps[partition]
            self._consumer.resume(partition)
        return None

    def _check_silence(self) -> None:
        """Raise ``Unavailable`` when no leader answers: aiokafka repeats its fetches for ever without telling."""
        answered = {partition: self._consumer.last_poll_timestamp(partition) for partition in self._returned}
        now_s = time.monotonic()
        if answered != self._answered_at_ms or len(self._gaps) == len(self._returned):
            self._answered_at_ms = answered
            self._answered_at_s = now_s
        elif now_s - self._answered_at_s > SILENCE_S:
            raise Unavailable("broker", f"no fetch was answered for {SILENCE_S:g} s")


async def stop_consumer(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer within a bounded time, and end with the caller's own cancellation only.

    aiokafka cancels a fetch that is under way and awaits it, so that ``stop()`` itself may end cancelled, with
    connections left open. To its caller that would look as if somebody had cancelled *him*, and a task that tails would
    end silently.
    """
    stopping = asyncio.create_task(consumer.stop())
    await asyncio.wait([stopping], timeout=STOP_TIMEOUT_S)
    if not stopping.done():
        stopping.cancel()
        await asyncio.wait([stopping])
    if stopping.cancelled():
        await consumer._client.close()
    elif (error := stopping.exception()) is not None:
        raise error
