"""Local state within its bounds: in memory with nothing on a disk, oldest out first, and a policy that may change."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from ledger.adapters.embedded import EmbeddedContentStore, EmbeddedLog
from ledger.answer import Found, Gone
from ledger.commit import sealed_part
from ledger.composition import LOG_RECORDS_MIN, TRIM_FACTOR, open_embedded, open_memory
from ledger.content import ContentRef
from ledger.errors import InvalidInput
from ledger.ledger import Ledger
from ledger.policy import HOUR_MS, Policy
from ledger.turn import Content, Owner, Partition, Scope, Selector, SelectorKind, Turn
from ledger.verdict import Code

SCOPE = Scope(namespace="n", route="r", principal="alice")
P0 = Partition(0)
BYTES_MAX, RECORDS_MAX = 1024 * 1024, 50
SMALL = Policy(principal_bytes_max=BYTES_MAX, lineage_bytes_max=BYTES_MAX, principal_records_max=RECORDS_MAX)
PATIENCE_S = 60.0
"""Far above the second or two that keeping takes: no test passes or fails by it."""


def turn(ledger: Ledger, number: int, size_bytes: int = 10_000) -> Turn:
    """Return a turn whose content does not compress."""
    noise = random.Random(number).randbytes(size_bytes // 2).hex()
    return Turn(
        scope=SCOPE,
        event_id=f"event-{number}",
        response_id=f"resp_{number}",
        owner=Owner(native=False, target="provider-c"),
        begun_at_ms=ledger.now_ms(),
        content=Content(input=[{"text": noise}], output=[]),
    )


def response(number: int) -> Selector:
    return Selector(scope=SCOPE, kind=SelectorKind.RESPONSE, id=f"resp_{number}")


def stored(ledger: Ledger) -> int:
    """Return how many contents are stored."""
    assert isinstance(ledger.contents, EmbeddedContentStore)
    return len(list(ledger.contents.listed(P0)))


async def until(what: Callable[[], bool]) -> None:
    """Wait for what the keeper does in the background."""
    async with asyncio.timeout(PATIENCE_S):
        while not what():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.05)


async def commit_all(ledger: Ledger, numbers: range, size_bytes: int = 10_000) -> None:
    for number in numbers:
        assert (await ledger.committer.commit(turn(ledger, number, size_bytes))).accepted


async def content_of(ledger: Ledger, number: int) -> ContentRef:
    answer = await ledger.reader.load(response(number), history=True)
    assert isinstance(answer, Found)
    assert answer.history is not None
    ref = answer.history.entries[0].content
    assert ref is not None
    return ref


def files_in(directory: Path) -> list[Path]:
    return list(directory.rglob("*"))


async def test_records_above_the_bound_go_oldest_first_and_so_do_their_contents() -> None:
    count = 400
    async with await open_memory(policy=SMALL) as ledger:
        await commit_all(ledger, range(count))
        for number in (0, count // 2, count - RECORDS_MAX - 1):
            answer = await ledger.reader.load(response(number))
            assert isinstance(answer, Gone)
            assert answer.reason == "evicted"
        for number in (count - RECORDS_MAX, count - 1):
            ref = await content_of(ledger, number)
            assert await ledger.contents.get(P0, ref, timeout_s=PATIENCE_S)
        await until(lambda: stored(ledger) == RECORDS_MAX)


async def test_bytes_above_the_bound_go_oldest_first() -> None:
    async with await open_memory(policy=replace(SMALL, principal_records_max=1_000)) as ledger:
        # Three of these fit, with the little that a turn takes beside its text.
        await commit_all(ledger, range(8), size_bytes=BYTES_MAX * 3 // 10)
        answers = [await ledger.reader.load(response(number)) for number in range(8)]
        assert [isinstance(answer, Found) for answer in answers] == [False] * 5 + [True] * 3
        await until(lambda: stored(ledger) == 3)


@pytest.mark.parametrize(("over", "code"), [(0, Code.ACCEPTED), (1, Code.LIMIT_EXCEEDED)])
async def test_turn_that_can_never_fit_is_refused(over: int, code: Code) -> None:
    async with await open_memory() as ledger:
        await commit_all(ledger, range(1))
        size_bytes = (await content_of(ledger, 0)).size_bytes + len(sealed_part(turn(ledger, 0)))
    bound = replace(SMALL, principal_bytes_max=size_bytes - over, lineage_bytes_max=size_bytes - over)
    async with await open_memory(policy=bound) as ledger:
        assert (await ledger.committer.commit(turn(ledger, 0))).code is code


async def test_log_in_memory_is_trimmed() -> None:
    async with await open_memory(policy=SMALL) as ledger:
        assert isinstance(ledger.log, EmbeddedLog)
        log = ledger.log
        turns = [turn(ledger, number, 100) for number in range(LOG_RECORDS_MIN * 3 // 2)]
        await asyncio.gather(*(ledger.committer.commit(one) for one in turns))
        await until(lambda: log._first > 0)
        first = await log.first(P0, timeout_s=PATIENCE_S)
        assert await log.end(P0, timeout_s=PATIENCE_S) - first <= LOG_RECORDS_MIN * TRIM_FACTOR
        assert isinstance(await ledger.reader.load(response(LOG_RECORDS_MIN * 3 // 2 - 1)), Found)


@pytest.mark.parametrize("records", [LOG_RECORDS_MIN - 1, 0])
async def test_bound_of_the_log_in_memory_below_its_minimum_is_refused(records: int) -> None:
    with pytest.raises(InvalidInput, match="log_records_max"):
        await open_memory(log_records_max=records)


async def test_state_in_memory_is_on_no_disk_and_ends_with_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with await open_memory() as ledger:
        await commit_all(ledger, range(10))
        assert files_in(tmp_path) == []
        ledger_id = ledger.ledger_id
    async with await open_memory() as other, await open_memory() as third:
        assert len({ledger_id, other.ledger_id, third.ledger_id}) == 3
        assert not isinstance(await other.reader.load(response(1)), Found)
    assert files_in(tmp_path) == []


async def test_event_ids_in_memory_are_retried_for_half_of_what_is_remembered() -> None:
    async with await open_memory(policy=replace(SMALL, event_window_max_ms=4 * HOUR_MS)) as ledger:
        assert ledger.settings.commit_window_ms == 2 * HOUR_MS
        await commit_all(ledger, range(1))
    async with await open_memory() as ledger:
        assert ledger.settings.commit_window_ms == 12 * HOUR_MS


async def test_policy_of_an_existing_embedded_ledger_changes_once(tmp_path: Path) -> None:
    async with await open_embedded(tmp_path) as ledger:
        await commit_all(ledger, range(3))
        assert ledger.policy() == Policy()
        assert await ledger.set_policy(SMALL) == 1
    for _ in range(2):
        async with await open_embedded(tmp_path, policy=Policy()) as ledger:
            assert isinstance(ledger.log, EmbeddedLog)
            assert ledger.policy() == SMALL
            end = await ledger.log.end(P0, timeout_s=PATIENCE_S)
            assert await ledger.set_policy(SMALL) == 1
            assert await ledger.log.end(P0, timeout_s=PATIENCE_S) == end
            assert isinstance(await ledger.reader.load(response(0)), Found)


async def test_overhang_after_a_tighter_policy_shrinks_with_every_turn(tmp_path: Path) -> None:
    async with await open_embedded(tmp_path) as ledger:
        await commit_all(ledger, range(40))
        await ledger.set_policy(replace(SMALL, principal_records_max=10))
        await commit_all(ledger, range(40, 55))
        assert isinstance(await ledger.reader.load(response(44)), Gone)
        assert isinstance(await ledger.reader.load(response(45)), Found)
        await until(lambda: stored(ledger) == 10)
