"""Membership in a consumer group: which partitions this process may work on now. Nothing is read through it.

Every partition is paused; who reads, reads with a tail of its own, from a position of its own. So what a rebalance does
to a consumer's positions concerns nobody. The committed offsets are a hint for people who watch the group's lag, and
committing one is how a member asks whether it still is one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from ledger.adapters.kafka_settings import TURNS, KafkaSettings
from ledger.adapters.kafka_tail import stop_consumer
from ledger.errors import Unavailable
from ledger.tables import PartitionLost
from ledger.turn import Partition, Position

SESSION_TIMEOUT_MS = 6_000
"""After it a member that is silent loses its partitions."""
HEARTBEAT_MS = 1_000
REBALANCE_TIMEOUT_MS = 10_000
POLL_S = 1.0
CONFIRM_TIMEOUT_S = 5.0


class KafkaMembership:
    """One member of the group ``<prefix>.materialize``."""

    def __init__(self, settings: KafkaSettings, on_assigned: Callable[[frozenset[Partition]], None]) -> None:
        """``on_assigned`` gets all partitions of this member, whenever the group has agreed anew."""
        self._settings = settings
        self._topic = settings.topic(TURNS)
        self._on_assigned = on_assigned
        self._consumer: AIOKafkaConsumer | None = None
        self._polling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Join the group. Raises ``Unavailable``."""
        consumer = AIOKafkaConsumer(
            group_id=f"{self._settings.prefix}.materialize",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            **{**self._settings.client_options(), "request_timeout_ms": SESSION_TIMEOUT_MS + REBALANCE_TIMEOUT_MS},
        )
        consumer.subscribe([self._topic], listener=_Listener(consumer, self._on_assigned))
        starting = asyncio.create_task(consumer.start())
        started = False
        try:
            await asyncio.shield(starting)
            started = True
        except KafkaError as error:
            raise Unavailable("broker", f"the group cannot be joined: {type(error).__name__}") from error
        finally:
            if not started:
                await asyncio.wait([starting])
                await _stop(consumer)
        self._consumer = consumer
        self._polling = asyncio.create_task(self._poll_forever(consumer))

    async def confirm(self, partition: Partition, position: Position) -> None:
        """Commit a position as a hint, which only a member can. Raises ``PartitionLost``, ``Unavailable``."""
        assert self._consumer is not None, "the group was joined"
        try:
            async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                await self._consumer.commit({TopicPartition(self._topic, partition): position})
        except KafkaError as error:
            if error.retriable:
                raise Unavailable("broker", f"the group does not answer: {type(error).__name__}") from error
            raise PartitionLost(f"partition {partition} is not this member's: {type(error).__name__}") from error
        except TimeoutError:
            raise Unavailable("broker", "the group does not answer in time") from None
        except ValueError as error:
            # aiokafka's word for a partition that is not assigned at this moment.
            raise PartitionLost(f"partition {partition} is not this member's") from error

    async def close(self) -> None:
        """Leave the group, so that others take over at once."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        if self._consumer is not None:
            await _stop(self._consumer)

    async def _poll_forever(self, consumer: AIOKafkaConsumer) -> None:
        """Show the group that this process is alive: a member that does not poll loses its partitions."""
        while True:
            with contextlib.suppress(KafkaError):
                await consumer.getmany(timeout_ms=int(POLL_S * 1000))
            # Without partitions, or after an error, there is nothing that getmany waits for.
            await asyncio.sleep(POLL_S)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka ships no types
    def __init__(self, consumer: AIOKafkaConsumer, on_assigned: Callable[[frozenset[Partition]], None]) -> None:
        self._consumer = consumer
        self._on_assigned = on_assigned

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Nothing: the writer of whoever gets a partition fences ours, and what stays here need not stop."""

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        partitions = list(assigned)
        self._consumer.pause(*partitions)
        self._on_assigned(frozenset(Partition(one.partition) for one in partitions))


async def _stop(consumer: AIOKafkaConsumer) -> None:
    with contextlib.suppress(KafkaError):
        await stop_consumer(consumer)
