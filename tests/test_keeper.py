"""The embedded ledger keeps itself: it expires, erases, sweeps and trims in its own process, without traffic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from ledger import keeper
from ledger.adapters import rocks
from ledger.adapters.embedded import EmbeddedContentStore
from ledger.adapters.memory import MemoryViewStore
from ledger.answer import Found, Gone
from ledger.audit import Filter, replay
from ledger.composition import LOG_RECORDS_MIN, open_embedded
from ledger.errors import InvalidInput, Unavailable
from ledger.ledger import Ledger
from ledger.policy import DAY_MS, HOUR_MS
from ledger.turn import Content, Owner, Partition, Scope, Selector, SelectorKind, Turn

SCOPE = Scope(namespace="n", route="r", principal="alice")
P0 = Partition(0)
PATIENCE_S = 60.0
"""Far above the second or two that keeping takes: no test passes or fails by it."""


class Clock:
    """A wall clock that a test can put forward."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms


def portable(clock: Clock, response_id: str) -> Turn:
    return Turn(
        scope=SCOPE,
        event_id=response_id,
        response_id=response_id,
        owner=Owner(native=False, target="provider-c"),
        begun_at_ms=clock(),
        content=Content(input=[{"text": response_id * 20}], output=[]),
    )


def native(clock: Clock, response_id: str) -> Turn:
    return Turn(
        scope=SCOPE,
        event_id=response_id,
        response_id=response_id,
        owner=Owner(native=True, target="provider-a"),
        begun_at_ms=clock(),
    )


def response(response_id: str) -> Selector:
    return Selector(scope=SCOPE, kind=SelectorKind.RESPONSE, id=response_id)


def stored(ledger: Ledger) -> int:
    """Return how many contents are stored."""
    assert isinstance(ledger.contents, EmbeddedContentStore)
    return len(list(ledger.contents.listed(P0)))


async def until(what: Callable[[], bool]) -> None:
    """Wait for what the keeper does in the background."""
    async with asyncio.timeout(PATIENCE_S):
        while not what():  # noqa: ASYNC110 - what is waited for is on the disk, which tells nobody
            await asyncio.sleep(0.05)


def on_disk(directory: Path, needle: bytes) -> list[str]:
    """Return the files that hold some bytes."""
    return [str(path) for path in directory.rglob("*") if path.is_file() and needle in path.read_bytes()]


async def test_what_expires_while_idle_is_gone_and_its_content_is_deleted(tmp_path: Path) -> None:
    clock = Clock()
    async with await open_embedded(tmp_path, now_ms=clock) as ledger:
        await ledger.committer.commit(portable(clock, "resp_1"))
        assert stored(ledger) == 1
        clock.now_ms += 30 * DAY_MS + HOUR_MS
        await until(lambda: stored(ledger) == 0)
        answer = await ledger.reader.load(response("resp_1"))
        assert isinstance(answer, Gone)
        assert answer.reason == "expired"


async def test_bytes_of_an_erased_principal_leave_the_disk(tmp_path: Path) -> None:
    clock = Clock()
    async with await open_embedded(tmp_path, now_ms=clock) as ledger:
        await ledger.committer.commit(portable(clock, "resp_1"))
        found = await ledger.reader.load(response("resp_1"), history=True)
        assert isinstance(found, Found)
        assert found.history is not None
        ref = found.history.entries[0].content
        assert ref is not None
        (chunk,) = await ledger.contents.get(P0, ref, timeout_s=PATIENCE_S)
        assert on_disk(tmp_path, chunk)
        await ledger.conversations.erase_principal(SCOPE, event_id="erasure")
        await until(lambda: not on_disk(tmp_path, chunk))
        assert isinstance(await ledger.reader.load(response("resp_1")), Gone)


async def test_purge_that_fails_is_tried_again_after_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pause_s = 1.0
    monkeypatch.setattr(keeper, "KEEP_INTERVAL_S", 0.05)
    monkeypatch.setattr(keeper, "PURGE_INTERVAL_S", pause_s)
    monkeypatch.setattr(rocks, "REMOVAL_WAIT_S", 0.05)
    clock = Clock()
    async with await open_embedded(tmp_path, now_ms=clock) as ledger:
        for response_id in ("resp_1", "resp_2"):
            await ledger.committer.commit(portable(clock, response_id))
    with structlog.testing.capture_logs() as logs:
        async with await open_embedded(tmp_path, now_ms=clock) as ledger:
            assert isinstance(ledger.contents, EmbeddedContentStore)
            listing = ledger.contents.listed(P0)
            # A scan keeps the table files, and with them the bytes.
            ref = next(listing)
            (chunk,) = await ledger.contents.get(P0, ref, timeout_s=PATIENCE_S)
            await ledger.conversations.erase_principal(SCOPE, event_id="erasure")
            # The contents may be erased after the first failure, which makes a purge due by itself.
            await until(lambda: len(logs) > 1)
            await asyncio.sleep(pause_s / 2)
            assert [log["event"] for log in logs] == ["keeping_interrupted"] * 2
            assert "purge again" in logs[0]["message"]
            assert on_disk(tmp_path, chunk)
            assert len(list(listing)) == 1
            await until(lambda: not on_disk(tmp_path, chunk))


async def test_contents_that_no_event_refers_to_are_swept_at_the_next_start(tmp_path: Path) -> None:
    clock = Clock()
    async with await open_embedded(tmp_path, now_ms=clock) as ledger:
        await ledger.committer.commit(portable(clock, "resp_1"))
        # What a crash between the content and its event leaves behind.
        await ledger.contents.put(P0, ledger.alias_key.scope(SCOPE), b"orphan-of-16-b..", [b"chunk"], timeout_s=5.0)
        assert stored(ledger) == 2
    async with await open_embedded(tmp_path, now_ms=clock) as ledger:
        await until(lambda: stored(ledger) == 1)
        assert isinstance(await ledger.reader.load(response("resp_1"), history=True), Found)


async def test_log_above_its_bound_is_trimmed_and_the_view_goes_on(tmp_path: Path) -> None:
    clock = Clock()
    count = LOG_RECORDS_MIN * 3 // 2
    async with await open_embedded(tmp_path, now_ms=clock, log_records_max=LOG_RECORDS_MIN) as ledger:
        turns = [native(clock, f"resp_{number}") for number in range(count)]
        await asyncio.gather(*(ledger.committer.commit(turn) for turn in turns))

        async def is_trimmed() -> bool:
            try:
                async for _ in replay(ledger.log, MemoryViewStore(), [P0], Filter()):
                    return False
            except Unavailable as error:
                return error.reason == "log_gap"
            return False

        async with asyncio.timeout(PATIENCE_S):
            while not await is_trimmed():  # noqa: ASYNC110 - as in ``until``
                await asyncio.sleep(0.05)
    async with await open_embedded(tmp_path, now_ms=clock, log_records_max=LOG_RECORDS_MIN) as ledger:
        for number in (0, count - 1):
            assert isinstance(await ledger.reader.load(response(f"resp_{number}")), Found)


@pytest.mark.parametrize("records", [LOG_RECORDS_MIN - 1, 0, -1])
async def test_bound_of_the_log_below_its_minimum_is_refused(tmp_path: Path, records: int) -> None:
    with pytest.raises(InvalidInput, match="log_records_max"):
        await open_embedded(tmp_path, log_records_max=records)
    assert on_disk(tmp_path, b"") == []


async def test_bound_of_the_log_at_its_minimum_is_taken(tmp_path: Path) -> None:
    async with await open_embedded(tmp_path, log_records_max=LOG_RECORDS_MIN):
        pass
