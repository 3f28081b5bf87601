"""Connections to brokers, by node number, for requests that must not wait behind anything else.

aiokafka's own client opens connections one after the other under one lock, so that a paused broker delays the
connection to a living one; and a consumer's connection holds every request behind its long poll. Hence a small pool of
aiokafka's connections.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiokafka.conn import AIOKafkaConnection, CloseReason, collect_hosts, create_conn
from aiokafka.errors import KafkaError
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.api import Request

from ledger.adapters.kafka_settings import KafkaSettings
from ledger.adapters.kafka_wire import TopicMetadata, TopicMetadataRequest, topic_metadata

SILENT_S = 3.0
"""How long a broker that failed is asked last: longer than a request timeout, shorter than a restart."""

CLOSE_TIMEOUT_S = 2.0
"""How long unsent bytes may hold up the end of a connection, as they do on a paused broker."""
_TOPIC_RESOURCE = 2
"""Kafka's number for configuration that belongs to a topic."""


class BrokerSilent(Exception):
    """A broker could not be reached, or did not answer in time."""


class KafkaNodes:
    """At most one connection per broker, opened when it is first needed."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        hosts = [(host, port) for host, port, _ in collect_hosts(settings.bootstrap)]
        # Bootstrap addresses get negative numbers, which no broker has.
        self._addresses: dict[int, tuple[str, int]] = {-1 - index: address for index, address in enumerate(hosts)}
        self._connections: dict[int, AIOKafkaConnection] = {}
        self._opening: dict[int, asyncio.Task[AIOKafkaConnection]] = {}
        self._silent_since: dict[int, float] = {}

    async def send(self, node: int, request: Request[Any]) -> Any:
        """Send a request and return the answer, whose attributes its schema names. Raises ``BrokerSilent``."""
        try:
            connection = await self._connection(node)
            try:
                response = await connection.send(request)
            except TimeoutError:
                # Answers come in order, so a late one would hold up all that follow.
                connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
                raise
        except (OSError, KafkaError, NotImplementedError) as error:
            # NotImplementedError is aiokafka's word for a broker that lacks this version of a request.
            self._silent_since[node] = time.monotonic()
            raise BrokerSilent(f"broker {node}: {type(error).__name__} {error}") from error
        self._silent_since.pop(node, None)
        return response

    async def metadata(self, topic: str, node: int) -> TopicMetadata:
        """Return what this very broker says of the topic. Raises ``BrokerSilent``."""
        metadata = topic_metadata(await self.send(node, TopicMetadataRequest(topic)))
        for number, address in metadata.brokers.items():
            if self._addresses.get(number) != address:
                self._drop(number)
                self._addresses[number] = address
        return metadata

    async def topic_configs(self, topic: str, node: int) -> dict[str, str | None]:
        """Return the topic's configuration, {} if this client may not see it. Raises ``BrokerSilent``."""
        response = await self.send(node, DescribeConfigsRequest([(_TOPIC_RESOURCE, topic, None)]))
        ((error_code, _, _, _, entries),) = response.resources
        return {} if error_code else {entry[0]: entry[1] for entry in entries}

    async def metadata_of_any(self, topic: str) -> tuple[int, TopicMetadata]:
        """Return the first broker that answers, and what it says. Raises ``BrokerSilent`` when none does."""
        failure = BrokerSilent("no broker is known")
        for node in self.by_trust(sorted(self._addresses, reverse=True)):
            try:
                return node, await self.metadata(topic, node)
            except BrokerSilent as error:
                failure = error
        raise failure

    def by_trust(self, nodes: list[int]) -> list[int]:
        """Return the nodes with those that failed lately at the end, otherwise in the order given."""
        recent = time.monotonic() - SILENT_S
        return sorted(nodes, key=lambda node: self._silent_since.get(node, 0.0) > recent)

    async def close(self) -> None:
        """Close every connection."""
        for task in self._opening.values():
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        closing = [connection.close(reason=CloseReason.SHUTDOWN) for connection in self._connections.values()]
        self._connections.clear()
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_TIMEOUT_S)

    async def _connection(self, node: int) -> AIOKafkaConnection:
        connection = self._connections.get(node)
        if connection is not None and connection.connected():
            return connection
        task = self._opening.get(node)
        if task is None:
            task = asyncio.create_task(self._open(node))
            self._opening[node] = task
            task.add_done_callback(lambda done: self._opened(node, done))
        return await asyncio.shield(task)

    def _opened(self, node: int, task: asyncio.Task[AIOKafkaConnection]) -> None:
        del self._opening[node]
        if not task.cancelled():
            # All who waited for it may have given up; its failure is then nobody's.
            task.exception()

    async def _open(self, node: int) -> AIOKafkaConnection:
        if node not in self._addresses:
            raise BrokerSilent(f"broker {node} has no known address")
        host, port = self._addresses[node]
        self._drop(node)
        connection: AIOKafkaConnection = await create_conn(
            host,
            port,
            client_id="turnledger-leader",
            request_timeout_ms=self._settings.end_request_timeout_ms,
            **self._settings.security,
        )
        self._connections[node] = connection
        return connection

    def _drop(self, node: int) -> None:
        connection = self._connections.pop(node, None)
        if connection is not None:
            connection.close(reason=CloseReason.SHUTDOWN)
