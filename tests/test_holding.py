"""A replica that holds some partitions answers for these, and does nothing at all for any other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import codec
from ledger.adapters.memory import MemoryContents, MemoryContentStore, MemoryLog, MemoryTopic, MemoryViewStore
from ledger.adapters.rocks import RocksViewStore
from ledger.alias import CONTROL_KEY, DIGEST_VERSION, AliasKey, partition_of
from ledger.answer import Token
from ledger.commit import Committer, TurnStart, abandonment
from ledger.conversations import Conversations
from ledger.errors import InvalidInput, ManifestMismatch, NeedsEveryPartition, NotHeld
from ledger.event import LedgerFormatted
from ledger.holding import (
    PARTITIONS_MAX,
    held_of,
    parse_partitions,
    parse_range,
    partitions_text,
    release,
    stored_partitions,
)
from ledger.ledger import Ledger, wall_clock_ms
from ledger.outbox import Outbox
from ledger.policy import Policy
from ledger.query import Reader
from ledger.router import LedgerRouter
from ledger.rows import Kind, LocalKind, MetaRow
from ledger.table import partition_prefix
from ledger.turn import Content, Offset, Owner, Partition, Position, Scope, Selector, SelectorKind, Turn

PARTITION_COUNT = 4
LOG_ID = "log"
KEY = AliasKey(b"k" * 32)
PORTABLE = Owner(native=False, target="c")


class World:
    """One log that replicas of any partitions are opened on."""

    def __init__(self) -> None:
        self.topic = MemoryTopic(PARTITION_COUNT, log_id=LOG_ID)
        self.contents = MemoryContents()
        self.log = MemoryLog(self.topic, now_ms=wall_clock_ms)

    def ledger(self, partitions: frozenset[Partition] | None = None, tables: MemoryLog | None = None) -> Ledger:
        return Ledger(
            MemoryLog(self.topic, now_ms=wall_clock_ms),
            MemoryContentStore(self.contents, now_ms=wall_clock_ms),
            MemoryViewStore(),
            KEY,
            partitions=partitions,
            tables=tables,
        )

    async def written(self) -> tuple[list[Position], list[Position]]:
        """Return the ends of the log and of the contents."""
        ends = [await self.log.end(Partition(number), timeout_s=1.0) for number in range(PARTITION_COUNT)]
        return ends, [self.contents.end(Partition(number)) for number in range(PARTITION_COUNT)]


@asynccontextmanager
async def formatted() -> AsyncIterator[World]:
    world = World()
    async with world.ledger() as ledger:
        await ledger.start(format_policy=Policy())
    yield world


def scope_in(*partitions: int) -> Scope:
    """Return the scope of some principal of one of these partitions."""
    for number in range(1_000):
        scope = Scope(namespace="n", route="r", principal=f"p{number}")
        if partition_of(KEY.principal(scope), PARTITION_COUNT) in partitions:
            return scope
    raise AssertionError("no principal of these partitions")


def turn(scope: Scope, name: str = "r1") -> Turn:
    return Turn(
        scope=scope,
        event_id=name,
        response_id=name,
        owner=PORTABLE,
        begun_at_ms=wall_clock_ms(),
        content=Content(input=[{"n": 1}], output=[]),
    )


Call = Callable[[Ledger, Scope], Awaitable[Any]]


def selector(scope: Scope, kind: SelectorKind) -> Selector:
    return Selector(scope=scope, kind=kind, id="x1")


def conversation(scope: Scope) -> Selector:
    return selector(scope, SelectorKind.CONVERSATION)


def start(scope: Scope) -> TurnStart:
    return TurnStart(scope=scope, event_id="e", turn_id="t", begun_at_ms=wall_clock_ms(), lease_ms=1_000)


async def turn_has_ended(ledger: Ledger, scope: Scope) -> bool:
    return ledger.reader.turn_has_ended(scope, "t")


CALLS: dict[str, Call] = {
    "commit": lambda ledger, scope: ledger.committer.commit(turn(scope)),
    "begin": lambda ledger, scope: ledger.committer.begin(start(scope)),
    "abandon": lambda ledger, scope: ledger.committer.abandon(scope, "e"),
    "load": lambda ledger, scope: ledger.reader.load(selector(scope, SelectorKind.RESPONSE)),
    "load strong": lambda ledger, scope: ledger.reader.load(conversation(scope), strong=True),
    "load with a token": lambda ledger, scope: ledger.reader.load(
        selector(scope, SelectorKind.ITEM), token=Token(ledger.reader.partition(scope), Offset(0))
    ),
    "history": lambda ledger, scope: ledger.reader.load(conversation(scope), history=True),
    "entry": lambda ledger, scope: ledger.reader.entry(selector(scope, SelectorKind.RESPONSE)),
    "key_settled": lambda ledger, scope: ledger.reader.key_settled(scope, "key", timeout_s=1.0),
    "turn_has_ended": turn_has_ended,
    "delete_response": lambda ledger, scope: ledger.conversations.delete_response(
        selector(scope, SelectorKind.RESPONSE), event_id="e"
    ),
    "create": lambda ledger, scope: ledger.conversations.create(
        conversation(scope), event_id="e", metadata={"a": "b"}, items=[{"n": 1}]
    ),
    "update": lambda ledger, scope: ledger.conversations.update(conversation(scope), event_id="e", metadata={"a": "b"}),
    "delete": lambda ledger, scope: ledger.conversations.delete(conversation(scope), event_id="e"),
    "append_items": lambda ledger, scope: ledger.conversations.append_items(
        conversation(scope), event_id="e", items=[{"n": 1}]
    ),
    "delete_item": lambda ledger, scope: ledger.conversations.delete_item(
        conversation(scope), selector(scope, SelectorKind.ITEM), event_id="e"
    ),
    "erase_principal": lambda ledger, scope: ledger.conversations.erase_principal(scope, event_id="e"),
    "router's load": lambda ledger, scope: LedgerRouter(ledger).load(selector(scope, SelectorKind.RESPONSE)),
    "router's commit": lambda ledger, scope: LedgerRouter(ledger).commit(turn(scope)),
    "router's abandon": lambda ledger, scope: LedgerRouter(ledger).abandon(scope, "e"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("held", [{0, 1}, {3}, {1, 2}], ids=partitions_text)
async def test_partition_that_is_not_held_is_refused_before_anything_is_written(name: str, held: set[int]) -> None:
    async with formatted() as world, world.ledger(frozenset(map(Partition, held))) as ledger:
        await ledger.start()
        for number in set(range(PARTITION_COUNT)) - held:
            before = await world.written()
            with pytest.raises(NotHeld) as refused:
                await CALLS[name](ledger, scope_in(number))
            assert refused.value.partition == number
            assert await world.written() == before
        assert ledger.committer.abandonments_waiting() == 0


NOT_ABOUT_A_PRINCIPAL = {
    *("start", "close", "partition", "not_after_ms", "abandonments_waiting", "tick_due"),
    # What the others are made of; each is given the partition.
    *("submit", "put_content", "document", "metadata"),
}


def test_every_call_about_a_principal_is_tried() -> None:
    public = {name for part in (Committer, Reader, Conversations) for name in vars(part) if not name.startswith("_")}
    assert public - NOT_ABOUT_A_PRINCIPAL == {name for name in CALLS if name in public}


async def test_every_partition_that_is_held_is_answered_for_as_by_any_replica() -> None:
    async with (
        formatted() as world,
        world.ledger(frozenset({Partition(1), Partition(3)})) as some,
        world.ledger() as all_,
    ):
        await some.start()
        await all_.start()
        for number in (1, 3):
            scope = scope_in(number)
            assert (await some.committer.commit(turn(scope))).accepted
            asked = selector(scope, SelectorKind.RESPONSE)
            asked = Selector(scope=scope, kind=asked.kind, id="r1")
            one, other = [await ledger.reader.load(asked, history=True) for ledger in (some, all_)]
            assert one == other
        assert (some.replica.partition_count, list(some.replica.held)) == (PARTITION_COUNT, [1, 3])
        assert some.ledger_id == all_.ledger_id
        assert some.policy() == all_.policy()
        await some.confirm()


async def test_what_concerns_every_partition_is_refused_and_writes_nothing() -> None:
    async with formatted() as world, world.ledger(frozenset({Partition(0)})) as ledger:
        await ledger.start()
        before = await world.written()
        with pytest.raises(NeedsEveryPartition, match="holds 0 only"):
            await ledger.set_policy(Policy(active_ttl_ms=60_000))
        with pytest.raises(NeedsEveryPartition, match="formatting concerns every partition"):
            await ledger.formatter.format(Policy(), timeout_s=1.0)
        assert await world.written() == before


@pytest.mark.parametrize(
    ("partitions", "reason"),
    [({0, 4}, "has the partitions 0 to 3, not 4"), (set(), "must name at least one"), ({-1}, "not -1")],
    ids=str,
)
async def test_partitions_that_the_log_does_not_have_are_refused_before_anything_is_written(
    partitions: set[int], reason: str
) -> None:
    async with formatted() as world:
        ledger = world.ledger(frozenset(map(Partition, partitions)))
        with pytest.raises(InvalidInput, match=reason):
            await ledger.start()


# The ledger of partition 0, by a replica that does not hold it


def formatting(partition: int, ledger_id: bytes) -> bytes:
    return codec.encode(
        LedgerFormatted(
            ledger_id=ledger_id,
            partition=partition,
            partition_count=PARTITION_COUNT,
            digest_version=DIGEST_VERSION,
            key_check=KEY.check_value(),
            format=codec.FORMAT,
            fold_version=codec.FOLD_VERSION,
            written_at_ms=wall_clock_ms(),
            policy=Policy(),
        )
    )


async def append(world: World, partition: int, value: bytes) -> None:
    await world.log.append(Partition(partition), CONTROL_KEY, value, timeout_s=1.0)


@pytest.mark.parametrize("log", ["whole", "trimmed"])
async def test_ledger_of_partition_0_is_compared_by_a_replica_that_does_not_hold_it(log: str) -> None:
    for canonical, opens in ((b"a" * 16, True), (b"b" * 16, False)):
        world = World()
        await append(world, 0, b"of a foreign producer")
        await append(world, 0, formatting(0, canonical))
        await append(world, 2, formatting(2, b"a" * 16))
        tables = MemoryTopic(PARTITION_COUNT, log_id="tables")
        if log == "trimmed":
            world.topic.trim(Partition(0), Position(2))
            table = MemoryLog(tables, now_ms=wall_clock_ms)
            row = msgspec.msgpack.encode(MetaRow(ledger_id=canonical))
            await table.append(Partition(0), Kind.META, row, timeout_s=1.0)
            for number in range(300):
                await table.append(Partition(0), Kind.NODE + bytes([number % 256]), b"row", timeout_s=1.0)
        ledger = world.ledger(frozenset({Partition(2)}), MemoryLog(tables, now_ms=wall_clock_ms))
        if opens:
            async with ledger:
                await ledger.start()
                assert ledger.ledger_id == canonical
        else:
            with pytest.raises(ManifestMismatch, match="partition 2 belongs to ledger 6161"):
                await ledger.start()


async def test_partition_0_that_is_not_formatted_is_refused() -> None:
    world = World()
    await append(world, 2, formatting(2, b"a" * 16))
    with pytest.raises(ManifestMismatch, match="partition 0 is not formatted"):
        await world.ledger(frozenset({Partition(2)})).start()


# Rows of partitions that were held before


def stores(directory: Path) -> tuple[RocksViewStore, RocksViewStore]:
    return RocksViewStore(directory / "view"), RocksViewStore(directory / "content")


def fill(store: RocksViewStore, *partitions: int) -> None:
    for number in partitions:
        prefix = partition_prefix(Partition(number))
        rows = {
            prefix + kind + bytes([n]): f"row of {number}".encode() for n in range(20) for kind in (b"n", b"x", b"\xfe")
        }
        store.write(rows)
    store.flush()


def bytes_on_disk(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


async def test_rows_that_are_not_held_any_more_leave_the_disk(tmp_path: Path) -> None:
    view, contents = stores(tmp_path)
    fill(view, 0, 1, 2, PARTITIONS_MAX - 1)
    fill(contents, 1, 2)
    released = await release(view, contents, World().log, LOG_ID, [Partition(1)])
    assert released == [0, 2, PARTITIONS_MAX - 1]
    assert (list(stored_partitions(view)), list(stored_partitions(contents))) == ([1], [1])
    assert len(list(view.scan(b"", b"\xff" * 3))) == 60
    assert await release(view, contents, World().log, LOG_ID, [Partition(1)]) == []
    view.close()
    contents.close()
    on_disk = bytes_on_disk(tmp_path)
    assert (b"row of 1" in on_disk, b"row of 0" in on_disk, b"row of 2" in on_disk) == (True, False, False)


async def test_rows_of_another_log_are_not_given_up(tmp_path: Path) -> None:
    view, contents = stores(tmp_path)
    fill(view, 0, 1, 2)
    fill(contents, 2, 3)
    view.write({partition_prefix(Partition(number)) + LocalKind.LOG_ID: b"other" for number in (1, 2)})
    before = [list(store.scan(b"", b"\xff" * 3)) for store in (view, contents)]
    world = World()
    with pytest.raises(ManifestMismatch, match="holds partition 1 of another log"):
        await release(view, contents, world.log, LOG_ID, [Partition(0)])
    assert await release(view, contents, world.log, LOG_ID, None) == []
    assert [list(store.scan(b"", b"\xff" * 3)) for store in (view, contents)] == before
    assert [world.topic.end(Partition(number)) for number in range(PARTITION_COUNT)] == [0] * PARTITION_COUNT
    view.close()
    contents.close()


async def test_release_that_was_interrupted_goes_on_whatever_is_held_then(tmp_path: Path) -> None:
    view, contents = stores(tmp_path)
    fill(view, 0, 1)
    # As after a crash between the deletion and the purge, and before the deletion.
    prefix = partition_prefix(Partition(1))
    view.write({partition_prefix(Partition(2)) + LocalKind.RELEASED: b"", prefix + LocalKind.RELEASED: b""})
    held = [Partition(number) for number in range(3)]
    assert await release(view, contents, World().log, LOG_ID, held) == [1, 2]
    assert list(stored_partitions(view)) == [0]
    view.close()
    contents.close()


async def test_abandonments_that_wait_in_a_partition_that_is_given_up_are_written_first(tmp_path: Path) -> None:
    async with formatted() as world:
        view, contents = stores(tmp_path)
        scope = scope_in(2)
        async with world.ledger() as ledger:
            await ledger.start()
            event = abandonment(KEY, scope, "r1", wall_clock_ms(), 60_000)
            Outbox(view).put(Partition(2), event)
            await release(view, contents, world.log, LOG_ID, [Partition(0)])
            assert not (await ledger.committer.commit(turn(scope))).accepted, "it was abandoned before"
        view.close()
        contents.close()


# Ranges as a person writes them


def test_ranges_are_read_and_written() -> None:
    assert parse_partitions("0-7,12", "f") == {*range(8), 12}
    assert partitions_text(parse_partitions(" 12 , 0-7", "f")) == "0-7,12"
    assert parse_range(f"0-{PARTITIONS_MAX - 1}", "f") == range(PARTITIONS_MAX)
    assert held_of(None, 2) == [0, 1]
    assert held_of({Partition(1), Partition(0)}, 2) == [0, 1]


@given(st.frozensets(st.integers(0, 40), min_size=1))
def test_what_is_written_is_read_as_the_same(partitions: frozenset[int]) -> None:
    assert parse_partitions(partitions_text(partitions), "f") == partitions


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no range"),
        ("1,", "is no range"),
        ("a", "is no range"),
        ("-1", "is no range"),
        ("1-", "is no range"),
        ("01", "is no range"),
        ("1-2-3", "is no range"),
        ("٣", "is no range"),
        ("3-2", "ends before it begins"),
        ("0-3,3", "partition 3 is given twice"),
        (f"{PARTITIONS_MAX}", "partition 65536 is above 65535"),
        (f"0-{PARTITIONS_MAX}", "partition 65536 is above 65535"),
    ],
)
def test_what_is_no_range_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as refused:
        parse_partitions(text, "partitions")
    assert refused.value.field == "partitions"
