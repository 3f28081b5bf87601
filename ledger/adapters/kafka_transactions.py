"""Transactions of one writer per partition: rows, marker, facts and checkpoints become visible together or not at all.

Starting a writer ends whatever an earlier one of the same ID left open, and fences it: whoever had the partition before
can write nothing more, also when it was only paused (KIP-98). Readers use ``read_committed``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import IllegalOperation, KafkaError, ProducerFenced
from aiokafka.structs import RecordMetadata

from ledger.adapters.kafka_producer import BATCH_BYTES_MAX, stop_producer
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.errors import Unavailable
from ledger.log import AppendUncertain
from ledger.tables import WriterFenced
from ledger.turn import Offset, Partition

TRANSACTION_TIMEOUT_MS = 10_000
"""After it the broker aborts what a dead writer left open, so that readers wait for no longer."""
START_TIMEOUT_S = 10.0
"""For the producer's ID; the broker ends an open transaction of the writer before within it."""
WRITE_TIMEOUT_S = 8.0
"""One transaction. Below ``TRANSACTION_TIMEOUT_MS``, so that it is given up here first."""
YIELD_RECORDS = 512
"""Records put into a batch before others on the event loop get their turn: about 3 ms."""
Records = Mapping[str, Sequence[tuple[bytes, bytes | None]]]
"""Keys and values by topic, named without its prefix."""


class KafkaTransactions:
    """The one writer of a partition. After any failure it is closed, and a new one is started."""

    def __init__(self, settings: KafkaSettings, partition: Partition, producer: AIOKafkaProducer) -> None:
        """Take over a started producer; ``start`` makes both."""
        self._settings = settings
        self._partition = partition
        self._producer = producer
        self._queued: list[Any] = []
        """Batches of the present transaction, as aiokafka has them."""

    @classmethod
    async def start(cls, settings: KafkaSettings, partition: Partition) -> KafkaTransactions:
        """Connect, and fence every earlier writer of the partition. Raises ``Unavailable``."""
        producer = AIOKafkaProducer(
            transactional_id=transactional_id(settings, partition),
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            acks="all",
            linger_ms=0,
            max_batch_size=BATCH_BYTES_MAX,
            **settings.client_options(),
        )
        starting = asyncio.create_task(producer.start())
        started = False
        try:
            await asyncio.wait([starting], timeout=START_TIMEOUT_S)
            if not starting.done():
                raise Unavailable("broker", f"no writer of partition {partition} could be started in time")
            starting.result()
            started = True
        except KafkaError as error:
            raise Unavailable(
                "broker", f"no writer of partition {partition} could be started: {type(error).__name__}"
            ) from error
        finally:
            if not started:
                await stop_producer(producer, starting)
        return cls(settings, partition, producer)

    async def write(self, records: Records) -> dict[str, Offset]:
        """Write records of several topics in one transaction; return the offset of each topic's last record.

        Raises ``WriterFenced`` when this writer was replaced, and ``AppendUncertain`` for all else: the transaction may
        have been committed.
        """
        producer = self._producer
        sent: list[asyncio.Future[RecordMetadata]] = []
        self._queued = []
        written: dict[str, Offset] = {}
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await producer.begin_transaction()
                last = {name: await self._send(name, rows, sent) for name, rows in records.items() if rows}
                for name, (answer, count) in last.items():
                    written[name] = Offset((await answer).offset + count - 1)
                await asyncio.gather(*sent)
                await producer.commit_transaction()
        except ProducerFenced as error:
            raise WriterFenced(f"the writer of partition {self._partition} was replaced") from error
        except (KafkaError, IllegalOperation, TimeoutError) as error:
            raise AppendUncertain(
                f"a transaction of partition {self._partition} failed: {type(error).__name__}"
            ) from error
        finally:
            self._forget(sent)
        return written

    async def close(self) -> None:
        """Close the connections within a bounded time; what is open is aborted by the next writer or the broker."""
        await stop_producer(self._producer)
        self._forget(())

    async def _send(
        self, name: str, records: Sequence[tuple[bytes, bytes | None]], sent: list[asyncio.Future[RecordMetadata]]
    ) -> tuple[asyncio.Future[RecordMetadata], int]:
        """Send the records of one topic in order; return the last batch's answer and how many records it has."""
        topic = self._settings.topic(name)
        batch, count = self._producer.create_batch(), 0
        for key, value in records:
            if batch.append(timestamp=None, key=key, value=value) is None:
                sent.append(await self._send_batch(batch, topic))
                batch, count = self._producer.create_batch(), 0
                appended = batch.append(timestamp=None, key=key, value=value)
                assert appended is not None, "a record fits into an empty batch"
            count += 1
            if count % YIELD_RECORDS == 0:
                await asyncio.sleep(0)
        sent.append(await self._send_batch(batch, topic))
        return sent[-1], count

    async def _send_batch(self, batch: Any, topic: str) -> asyncio.Future[RecordMetadata]:
        answer: asyncio.Future[RecordMetadata] = await self._producer.send_batch(
            batch, topic, partition=int(self._partition)
        )
        self._queued += self._producer._message_accumulator._batches[TopicPartition(topic, self._partition)]
        return answer

    def _forget(self, sent: Sequence[asyncio.Future[RecordMetadata]]) -> None:
        """Mark every failure as seen: the first one was raised, and aiokafka sets the same on all that wait."""
        for answer in sent:
            if not answer.done():
                answer.cancel()
            elif not answer.cancelled():
                answer.exception()
        for batch in self._queued:
            # Set for a batch that was never taken out of the queue, and awaited only by who wants to queue another.
            if batch._drain_waiter.done() and not batch._drain_waiter.cancelled():
                batch._drain_waiter.exception()
        ended = self._producer._txn_manager.wait_for_transaction_end()
        if ended is not None and ended.done() and not ended.cancelled():
            ended.exception()


def transactional_id(settings: KafkaSettings, partition: Partition) -> str:
    """Return the name under which a partition's writers fence each other."""
    return f"{settings.prefix}-tables-{partition}"
