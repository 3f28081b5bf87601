"""Adapter of ``EventLog``: one Kafka topic, ``<prefix>.turns`` unless another is named.

Three separate sets of connections, so that none waits behind another: the appender's, each tail's, and the one that
asks leaders for ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from ledger.adapters.kafka_leader import KafkaLeaders
from ledger.adapters.kafka_producer import KafkaAppender
from ledger.adapters.kafka_settings import TURNS, KafkaSettings
from ledger.adapters.kafka_tail import KafkaTail
from ledger.errors import Unavailable
from ledger.log import RECORD_BYTES_MAX, Appended, Manifest
from ledger.turn import Partition, Position


class KafkaLog:
    """The event log on Kafka. Everything is connected when it is first needed."""

    def __init__(self, settings: KafkaSettings, name: str = TURNS) -> None:
        """``name`` is one of ``TOPICS``; what is compacted or written in transactions is read the same way."""
        self._settings = settings
        self._topic = settings.topic(name)
        self._leaders = KafkaLeaders(settings, self._topic)
        self._appender = KafkaAppender(settings, self._topic)
        self._tails: set[KafkaTail] = set()
        self._closed = False

    async def append(self, partition: Partition, key: bytes, value: bytes, *, timeout_s: float) -> Appended:
        """See ``EventLog.append``."""
        assert len(key) + len(value) <= RECORD_BYTES_MAX, "the codec bounds what a record can be"
        return await self._appender.append(partition, key, value, timeout_s=timeout_s)

    async def tail(self, positions: Mapping[Partition, Position]) -> KafkaTail:
        """See ``EventLog.tail``. Raises ``Unavailable`` when no broker can be reached."""
        if self._closed:
            raise Unavailable("closed", "the log was closed")
        tail = await KafkaTail.start(self._settings, self._topic, positions, self._leaders)
        self._tails = {open_tail for open_tail in self._tails if not open_tail.closed} | {tail}
        return tail

    async def end(self, partition: Partition, *, timeout_s: float) -> Position:
        """See ``EventLog.end``."""
        return await self._leaders.end(partition, timeout_s=timeout_s)

    async def first(self, partition: Partition, *, timeout_s: float) -> Position:
        """Return the position of the first record that was not trimmed. Raises ``Unavailable``."""
        return await self._leaders.first(partition, timeout_s=timeout_s)

    async def manifest(self, *, timeout_s: float) -> Manifest:
        """See ``EventLog.manifest``."""
        return await self._leaders.manifest(timeout_s=timeout_s)

    async def config(self, name: str, *, timeout_s: float) -> str | None:
        """Return one value of the topic's configuration, None if this client may not see it. Raises ``Unavailable``."""
        return await self._leaders.topic_config(name, timeout_s=timeout_s)

    @property
    def retired_producer_count(self) -> int:
        """Producers given up so far; a metric."""
        return self._appender.retired_count

    async def close(self) -> None:
        """See ``EventLog.close``; closes the tails that are still open too."""
        self._closed = True
        for tail in list(self._tails):
            await tail.close()
        await self._appender.close()
        await self._leaders.close()
