"""Ends and first offsets of partitions, from leaders that other replicas confirm; the read index of every strong read.

A leader that was deposed while paused answers with an old end, and does not know it. So in parallel (RF - min ISR)
*other* replicas of the partition are asked who leads, and the answer counts only if all name the same leader and epoch.
Whatever was acknowledged by a newer leader is known to at least min ISR replicas, so at most RF - min ISR, the old
leader among them, can still believe in the old epoch; a replica publishes its metadata before it follows a leader.

Callers that ask while a request is under way share the next one; none is answered by a request that began before it
called.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ledger.adapters.kafka_nodes import BrokerSilent, KafkaNodes
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.adapters.kafka_wire import EARLIEST, LATEST, LeaderOffsetsRequest, PartitionMetadata, TopicMetadata
from ledger.errors import Unavailable
from ledger.log import Manifest
from ledger.turn import Partition, Position

NO_LEADER = -1
"""Kafka's number for the leader of a partition that has none."""
UNKNOWN_TOPIC = 3
"""Kafka's error number for a topic that does not exist."""
_OFFSET_UNKNOWN = -1


class _Question(NamedTuple):
    partition: Partition
    timestamp: int
    """``LATEST`` or ``EARLIEST``."""


class KafkaLeaders:
    """Asks the leaders of one topic."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._topic = topic
        self._retry_backoff_s = settings.retry_backoff_ms / 1000
        self._nodes = KafkaNodes(settings)
        self._known: TopicMetadata | None = None
        self._configs: dict[str, str | None] = {}
        self._in_sync_min = 1
        self._waiting: dict[_Question, list[asyncio.Future[Position]]] = {}
        self._lanes: dict[int, asyncio.Task[None]] = {}
        self._closed = False

    async def end(self, partition: Partition, *, timeout_s: float) -> Position:
        """Return the high watermark at some moment after this call. Raises ``Unavailable``."""
        return await self._ask(_Question(partition, LATEST), timeout_s)

    async def first(self, partition: Partition, *, timeout_s: float) -> Position:
        """Return the position of the first record that is still there. Raises ``Unavailable``."""
        return await self._ask(_Question(partition, EARLIEST), timeout_s)

    async def manifest(self, *, timeout_s: float) -> Manifest:
        """Return partition count and topic ID as a broker has them now. Raises ``Unavailable``."""
        self._check_open()
        try:
            async with asyncio.timeout(timeout_s):
                known = await self._refresh_patiently()
        except TimeoutError:
            raise Unavailable("broker", "no broker told what the topic is in time") from None
        if known is None:
            raise Unavailable("manifest", f"the topic {self._topic} does not exist")
        return Manifest(partition_count=len(known.partitions), log_id=known.topic_id)

    async def topic_config(self, name: str, *, timeout_s: float) -> str | None:
        """Return one value of the topic's configuration, None if this client may not see it. Raises ``Unavailable``."""
        await self.manifest(timeout_s=timeout_s)
        return self._configs.get(name)

    async def close(self) -> None:
        """Fail whoever still waits with ``Unavailable('closed')`` and close the connections."""
        self._closed = True
        lanes = list(self._lanes.values())
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)
        for waiter in [waiter for waiters in self._waiting.values() for waiter in waiters]:
            if not waiter.done():
                waiter.set_exception(Unavailable("closed", "the log was closed"))
        self._waiting.clear()
        await self._nodes.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("closed", "the log was closed")

    async def _ask(self, question: _Question, timeout_s: float) -> Position:
        self._check_open()
        waiter: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(question, []).append(waiter)
        self._start_lane(self._leader(question.partition))
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter
        except TimeoutError:
            raise Unavailable("leader", "no confirmed leader answered in time") from None

    def _leader(self, partition: Partition) -> int:
        metadata = self._known.partitions.get(partition) if self._known else None
        return NO_LEADER if metadata is None else metadata.leader

    def _start_lane(self, node: int) -> None:
        if node not in self._lanes:
            self._lanes[node] = asyncio.create_task(self._run_lane(node))

    async def _run_lane(self, node: int) -> None:
        """Answer the questions that concern one leader, one round after the other, until there are none."""
        try:
            while questions := [question for question in self._waiting if self._leader(question.partition) == node]:
                asked = {question: self._waiting.pop(question) for question in questions}
                try:
                    answers = await self._round(node, questions)
                except BrokerSilent:
                    answers = {}
                except asyncio.CancelledError:
                    self._put_back(asked)
                    raise
                for question, position in answers.items():
                    for waiter in asked.pop(question):
                        if not waiter.done():
                            waiter.set_result(position)
                if asked:
                    self._put_back(asked)
                    await self._look_again()
        finally:
            del self._lanes[node]

    def _put_back(self, asked: dict[_Question, list[asyncio.Future[Position]]]) -> None:
        # A repeated question is still one that was asked before the request which will answer it.
        for question, waiters in asked.items():
            if patient := [waiter for waiter in waiters if not waiter.done()]:
                self._waiting[question] = patient + self._waiting.get(question, [])

    async def _look_again(self) -> None:
        """Learn the leaders anew after a question stayed open, and hand the open ones to the lanes of their leaders."""
        with contextlib.suppress(BrokerSilent):
            await self._refresh()
        await asyncio.sleep(self._retry_backoff_s)
        for question in self._waiting:
            self._start_lane(self._leader(question.partition))

    async def _refresh_patiently(self) -> TopicMetadata | None:
        while True:
            try:
                return await self._refresh()
            except BrokerSilent:
                await asyncio.sleep(self._retry_backoff_s)

    async def _refresh(self) -> TopicMetadata | None:
        """Ask any broker for the topic; None if it does not exist. Raises ``BrokerSilent``."""
        node, metadata = await self._nodes.metadata_of_any(self._topic)
        if metadata.error_code:
            self._known = None
            if metadata.error_code == UNKNOWN_TOPIC:
                return None
            raise BrokerSilent(f"the brokers answered with error {metadata.error_code}")
        self._known = _newest(self._known, metadata)
        self._configs = await self._nodes.topic_configs(self._topic, node)
        # Whoever may not see the configuration asks all other replicas, which is always enough.
        self._in_sync_min = int(self._configs.get("min.insync.replicas") or 1)
        return self._known

    async def _round(self, node: int, questions: list[_Question]) -> dict[_Question, Position]:
        """Ask one leader, and the replicas that can refute it; return what was confirmed. Raises ``BrokerSilent``."""
        if node == NO_LEADER or self._known is None:
            return {}
        known = self._known
        witnesses = {question: self._witnesses(known.partitions[question.partition]) for question in questions}
        first_asks = [question for question in questions if question.timestamp == EARLIEST]
        last_asks = [question for question in questions if question.timestamp == LATEST]
        # A request may name a partition only once.
        asks = [group for group in (last_asks, first_asks) if group]
        nodes = sorted({witness for chosen in witnesses.values() for witness in chosen})
        results: list[Any] = await asyncio.gather(
            *(self._request(node, known, group) for group in asks), *(self._statement(witness) for witness in nodes)
        )
        statements = dict(zip(nodes, results[len(asks) :], strict=True))
        answers: dict[_Question, Position] = {}
        for group, response in zip(asks, results, strict=False):
            for number, error_code, _, offset, _ in response.topics[0][1]:
                question = _Question(Partition(number), group[0].timestamp)
                confirmed = _confirmed(known, question.partition, [statements[node] for node in witnesses[question]])
                if not error_code and offset != _OFFSET_UNKNOWN and confirmed:
                    answers[question] = Position(offset)
        return answers

    async def _request(self, node: int, known: TopicMetadata, asks: list[_Question]) -> Any:
        epochs = [(ask.partition, known.partitions[ask.partition].epoch) for ask in asks]
        return await self._nodes.send(node, LeaderOffsetsRequest(self._topic, asks[0].timestamp, epochs))

    def _witnesses(self, metadata: PartitionMetadata) -> list[int]:
        others = [replica for replica in metadata.replicas if replica != metadata.leader]
        needed = max(0, min(len(others), len(metadata.replicas) - self._in_sync_min))
        # Those in sync first: a dead broker would only cost its timeout.
        others.sort(key=lambda replica: replica not in metadata.in_sync)
        return self._nodes.by_trust(others)[:needed]

    async def _statement(self, node: int) -> TopicMetadata | None:
        try:
            return await self._nodes.metadata(self._topic, node)
        except BrokerSilent:
            return None


def _confirmed(known: TopicMetadata, partition: Partition, statements: Sequence[TopicMetadata | None]) -> bool:
    """Return whether every witness names the leader and the epoch that answered."""
    asked = known.partitions[partition]
    for statement in statements:
        if statement is None or statement.topic_id != known.topic_id:
            return False
        said = statement.partitions.get(partition)
        if said is None or (said.leader, said.epoch) != (asked.leader, asked.epoch):
            return False
    return True


def _newest(known: TopicMetadata | None, heard: TopicMetadata) -> TopicMetadata:
    """Return what was heard, without going back behind an election that was known already."""
    if known is None or known.topic_id != heard.topic_id:
        return heard
    partitions = {
        number: max(metadata, known.partitions.get(number, metadata), key=lambda one: one.epoch)
        for number, metadata in heard.partitions.items()
    }
    return replace(heard, partitions=partitions)
