"""Adapter of ``Reports``: the topic ``<prefix>.reports``."""

from __future__ import annotations

from ledger.adapters.kafka_leader import KafkaLeaders
from ledger.adapters.kafka_producer import KafkaAppender
from ledger.adapters.kafka_settings import REPORTS, KafkaSettings
from ledger.errors import Unavailable
from ledger.log import AppendUncertain
from ledger.turn import Partition


class KafkaReports:
    """Writes reports. Everything is connected when it is first needed."""

    def __init__(self, settings: KafkaSettings) -> None:
        topic = settings.topic(REPORTS)
        self._leaders = KafkaLeaders(settings, topic)
        self._appender = KafkaAppender(settings, topic)
        self._is_known = False

    async def write(self, partition: Partition, key: bytes, value: bytes | None, *, timeout_s: float) -> None:
        """See ``Reports.write``."""
        if not self._is_known:
            # A producer would only say that it found no partition, after a while.
            await self._leaders.manifest(timeout_s=timeout_s)
            self._is_known = True
        try:
            await self._appender.append(partition, key, value, timeout_s=timeout_s)
        except AppendUncertain as error:
            raise Unavailable("broker", f"the report was not acknowledged: {error}") from error

    async def close(self) -> None:
        """See ``Reports.close``."""
        await self._appender.close()
        await self._leaders.close()
