"""What the Kafka log does with things that only Kafka has: transactions, control records, topic IDs, trimmed heads."""

import asyncio

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.structs import RecordMetadata, TopicPartition

from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_producer import Entry, settle
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.errors import InvalidInput, Unavailable
from ledger.log import AppendUncertain, LogGap
from ledger.turn import Partition, Position
from tests.adapters.kafka_world import (
    P0,
    P1,
    PARTITION_COUNT,
    TIMEOUT_S,
    append,
    foreign_transactions,
    made_topics,
    read_to,
    recreate,
    trim,
)


async def send(producer: AIOKafkaProducer, settings: KafkaSettings, value: bytes) -> None:
    await producer.send_and_wait(settings.topic("turns"), value, partition=P0)


async def test_position_goes_past_the_control_record_of_a_transaction(
    kafka_settings: KafkaSettings, kafka_log: KafkaLog
) -> None:
    async with foreign_transactions(kafka_settings) as producer, producer.transaction():
        await send(producer, kafka_settings, b"foreign")
    tail = await kafka_log.tail({P0: Position(0)})
    records, position = await read_to(tail, P0, Position(2))
    assert ([record.value for record in records], position) == ([b"foreign"], 2)
    assert await kafka_log.end(P0, timeout_s=TIMEOUT_S) == 2
    appended = await kafka_log.append(P0, b"key", b"own", timeout_s=TIMEOUT_S)
    assert appended.offset == 2
    records, position = await read_to(tail, P0, Position(3))
    assert ([(record.offset, record.value) for record in records], position) == ([(2, b"own")], 3)
    await tail.close()


async def test_open_transaction_counts_for_the_end_and_is_not_passed(
    kafka_settings: KafkaSettings, kafka_log: KafkaLog
) -> None:
    tail = await kafka_log.tail({P0: Position(0)})
    async with foreign_transactions(kafka_settings) as producer:
        await producer.begin_transaction()
        await send(producer, kafka_settings, b"foreign")
        await append(kafka_log, 1)
        assert await kafka_log.end(P0, timeout_s=TIMEOUT_S) == 2
        # Long enough for several fetches; none of them may hand out what is not decided.
        assert await tail.next(1.5) == []
        await producer.commit_transaction()
    records, position = await read_to(tail, P0, Position(3))
    assert ([record.offset for record in records], position) == ([0, 1], 3)
    await tail.close()


async def test_aborted_records_are_never_returned(kafka_settings: KafkaSettings, kafka_log: KafkaLog) -> None:
    async with foreign_transactions(kafka_settings) as producer:
        await producer.begin_transaction()
        await send(producer, kafka_settings, b"aborted")
        await append(kafka_log, 1)
        await producer.abort_transaction()
    await append(kafka_log, 1)
    tail = await kafka_log.tail({P0: Position(0)})
    records, position = await read_to(tail, P0, Position(4))
    # The broker writes the abort marker when it likes, so it is at 2 or at 3.
    assert [record.value for record in records] == [b"value-0", b"value-0"]
    assert position == 4
    await tail.close()


async def test_only_control_records_are_an_empty_batch(kafka_settings: KafkaSettings, kafka_log: KafkaLog) -> None:
    async with foreign_transactions(kafka_settings) as producer:
        await producer.begin_transaction()
        await send(producer, kafka_settings, b"aborted")
        await producer.abort_transaction()
    tail = await kafka_log.tail({P0: Position(0)})
    (batch,) = await tail.next(TIMEOUT_S)
    assert (batch.partition, batch.records, batch.next_position) == (P0, (), 2)
    await tail.close()


async def test_gap_stops_one_partition_and_no_other(kafka_settings: KafkaSettings, kafka_log: KafkaLog) -> None:
    await append(kafka_log, 5, partition=P0)
    tail = await kafka_log.tail({P0: Position(1), P1: Position(0)})
    await tail.close()
    await trim(kafka_settings, P0, 3)
    tail = await kafka_log.tail({P0: Position(1), P1: Position(0)})
    with pytest.raises(LogGap) as gap:
        await tail.next(TIMEOUT_S)
    assert (gap.value.partition, gap.value.position, gap.value.first, gap.value.end) == (P0, 1, 3, 5)
    await append(kafka_log, 2, partition=P1)
    records, _ = await read_to(tail, P1, Position(2))
    assert [record.partition for record in records] == [P1, P1]
    with pytest.raises(LogGap):
        await tail.next(0.1)
    await tail.close()


async def test_records_trimmed_while_the_tail_stands_above_them_are_no_gap(
    kafka_settings: KafkaSettings, kafka_log: KafkaLog
) -> None:
    await append(kafka_log, 3)
    tail = await kafka_log.tail({P0: Position(0)})
    await read_to(tail, P0, Position(3))
    await trim(kafka_settings, P0, 3)
    assert await kafka_log.first(P0, timeout_s=TIMEOUT_S) == 3
    await append(kafka_log, 1)
    records, _ = await read_to(tail, P0, Position(4))
    assert [record.offset for record in records] == [3]
    await tail.close()


async def test_first_offset_follows_the_trim(kafka_settings: KafkaSettings, kafka_log: KafkaLog) -> None:
    assert await kafka_log.first(P0, timeout_s=TIMEOUT_S) == 0
    await append(kafka_log, 4)
    await trim(kafka_settings, P0, 4)
    assert await kafka_log.first(P0, timeout_s=TIMEOUT_S) == 4
    assert await kafka_log.end(P0, timeout_s=TIMEOUT_S) == 4


async def test_recreated_topic_has_another_identity_for_a_running_log(
    kafka_settings: KafkaSettings, kafka_log: KafkaLog
) -> None:
    before = await kafka_log.manifest(timeout_s=TIMEOUT_S)
    assert before.partition_count == PARTITION_COUNT
    await recreate(kafka_settings)
    after = await kafka_log.manifest(timeout_s=TIMEOUT_S)
    assert after.log_id != before.log_id
    assert await kafka_log.manifest(timeout_s=TIMEOUT_S) == after


async def test_missing_topic_is_named_and_not_created(kafka_bootstrap: str) -> None:
    log = KafkaLog(KafkaSettings(bootstrap=kafka_bootstrap, prefix="test-never-made"))
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"test-never-made\.turns does not exist") as missing:
            await log.manifest(timeout_s=TIMEOUT_S)
        assert missing.value.reason == "manifest"
    await log.close()


async def test_end_is_never_older_than_the_call(kafka_log: KafkaLog) -> None:
    async def write_and_ask(partition: Partition) -> None:
        for _ in range(20):
            appended = await kafka_log.append(partition, b"key", b"value", timeout_s=TIMEOUT_S)
            assert await kafka_log.end(partition, timeout_s=TIMEOUT_S) > appended.offset

    await asyncio.gather(*(write_and_ask(Partition(number % PARTITION_COUNT)) for number in range(64)))


async def test_ends_asked_together_share_a_request_that_began_after_them(kafka_log: KafkaLog) -> None:
    ends = await asyncio.gather(*(kafka_log.end(P0, timeout_s=TIMEOUT_S) for _ in range(100)))
    assert set(ends) == {0}
    early = asyncio.create_task(kafka_log.end(P0, timeout_s=TIMEOUT_S))
    await asyncio.sleep(0)
    await append(kafka_log, 1)
    late = await kafka_log.end(P0, timeout_s=TIMEOUT_S)
    assert await early <= late == 1


async def test_partition_that_does_not_exist_is_unavailable(kafka_log: KafkaLog) -> None:
    with pytest.raises(Unavailable) as refused:
        await kafka_log.append(Partition(PARTITION_COUNT), b"key", b"value", timeout_s=TIMEOUT_S)
    assert refused.value.reason == "manifest"
    with pytest.raises(Unavailable):
        await kafka_log.end(Partition(PARTITION_COUNT), timeout_s=0.2)


async def test_batch_that_the_broker_refuses_does_not_spoil_the_partition(kafka_bootstrap: str) -> None:
    settings = await made_topics(kafka_bootstrap, overrides={"turns": {"max.message.bytes": "1000"}})
    log = KafkaLog(settings)
    await append(log, 1)
    # aiokafka has used a sequence number for it, so this producer can never write to the partition again.
    with pytest.raises(AppendUncertain):
        await log.append(P0, b"key", b"x" * 5_000, timeout_s=TIMEOUT_S)
    assert (await log.append(P0, b"key", b"next", timeout_s=TIMEOUT_S)).offset == 1
    assert log.retired_producer_count == 1
    await log.close()


async def test_acknowledgement_without_a_place_is_uncertain() -> None:
    topic_partition = TopicPartition("turns", 0)
    entries = [Entry(b"key", b"value", asyncio.get_running_loop().create_future()) for _ in range(3)]
    # What aiokafka reports for DuplicateSequenceNumber; adding up would give the third record offset 1.
    settle(entries, RecordMetadata("turns", 0, topic_partition, -1, -1, 0, -1))
    for entry in entries:
        with pytest.raises(AppendUncertain):
            await entry.appended


async def test_concurrent_appends_to_all_partitions_get_their_own_offsets(kafka_log: KafkaLog) -> None:
    async def write(partition: Partition, number: int) -> tuple[Partition, int, bytes]:
        value = b"%d-%d" % (partition, number)
        appended = await kafka_log.append(partition, b"key", value, timeout_s=TIMEOUT_S)
        return partition, appended.offset, value

    written = await asyncio.gather(*(write(Partition(number % 2), number) for number in range(400)))
    tail = await kafka_log.tail({P0: Position(0), P1: Position(0)})
    read: list[tuple[Partition, int, bytes | None]] = []
    while len(read) < 400:
        for batch in await tail.next(TIMEOUT_S):
            read += [(record.partition, record.offset, record.value) for record in batch.records]
    assert sorted(read) == sorted(written)
    await tail.close()


def test_unknown_security_option_is_refused() -> None:
    with pytest.raises(InvalidInput, match="acks"):
        KafkaSettings(bootstrap="host:1", security={"acks": 0})
