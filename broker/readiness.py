"""When a cluster is ready: every broker that should run says itself that all of them are there and in sync.

An open port is not ready. A broker's metadata are its own copy of the cluster's, so each one is asked, and a view
counts when it lists every expected broker, and each partition has a leader among them and all its expected replicas in
sync.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from broker.errors import BrokerError
from broker.settings import LOOPBACK, Node

_POLL_INTERVAL_S = 0.1
_REQUEST_TIMEOUT_MS = 2_000


def wait_until_ready(expected: Sequence[Node], *, timeout_s: float, check: Callable[[], None]) -> None:
    """Return once every expected broker reports the cluster ready.

    `check` is called between attempts and raises to give up early. Raises BrokerError after `timeout_s`. May be called
    with or without a running event loop; it blocks either way.
    """
    _run_in_thread(lambda: asyncio.run(_wait(expected, timeout_s, check)))


def check_answers(bootstrap: str) -> None:
    """Return if a broker answers at these addresses; raises BrokerError if none does."""
    try:
        _run_in_thread(lambda: asyncio.run(_describe(bootstrap)))
    except (KafkaError, OSError, TimeoutError, ValueError) as error:
        raise BrokerError(f"KAFKA_BOOTSTRAP={bootstrap} does not answer: {error}") from error


def missing_from(view: dict[str, Any], expected: Sequence[Node]) -> str | None:
    """Return what a metadata response lacks for the cluster to be ready, in words, or None."""
    wanted = {node.node_id for node in expected}
    absent = wanted - {broker["node_id"] for broker in view["brokers"]}
    if absent:
        return f"brokers {sorted(absent)} are not registered"
    for topic in view["topics"]:
        for partition in topic["partitions"]:
            name = f"{topic['topic']}/{partition['partition']}"
            if partition["leader"] not in wanted:
                return f"{name} has no leader"
            lagging = (wanted & set(partition["replicas"])) - set(partition["isr"])
            if lagging:
                return f"{name} is not in sync on brokers {sorted(lagging)}"
    return None


async def _wait(expected: Sequence[Node], timeout_s: float, check: Callable[[], None]) -> None:
    deadline = time.monotonic() + timeout_s
    for node in expected:
        while (missing := await _missing_at(node, expected)) is not None:
            check()
            if time.monotonic() > deadline:
                raise BrokerError(f"Kafka was not ready after {timeout_s:.0f} s: broker {node.node_id}: {missing}")
            await asyncio.sleep(_POLL_INTERVAL_S)


async def _missing_at(node: Node, expected: Sequence[Node]) -> str | None:
    if not await _accepts_connections(node):
        return "its port is closed"
    client = AIOKafkaClient(bootstrap_servers=node.address, request_timeout_ms=_REQUEST_TIMEOUT_MS)
    try:
        await client.bootstrap()
        response = await client.send(node.node_id, MetadataRequest(None))
    except (KafkaError, OSError, TimeoutError) as error:
        return f"it answers {error!r}"
    finally:
        await client.close()
    return missing_from(response.to_object(), expected)


async def _accepts_connections(node: Node) -> bool:
    # Asked first because aiokafka logs an error for every address that refuses.
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, node.port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def _describe(bootstrap: str) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=_REQUEST_TIMEOUT_MS)
    try:
        await client.start()
        await client.describe_cluster()
    finally:
        await client.close()


def _run_in_thread(call: Callable[[], None]) -> None:
    # A caller's event loop, if there is one, cannot run a second loop in its own thread.
    with ThreadPoolExecutor(max_workers=1) as executor:
        executor.submit(call).result()
