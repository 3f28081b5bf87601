"""What the embedded log adds to the contract: group commit, kills, full disks, and bytes that really leave the disk."""

import asyncio
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ledger.adapters import rocks
from ledger.adapters.embedded import TAIL_RECORDS_MAX, EmbeddedContentStore, EmbeddedDatabase, EmbeddedLog
from ledger.adapters.rocks import RocksViewStore
from ledger.errors import ContentLost, StateDirectoryLocked, StoreFailed, Unavailable
from ledger.log import LogGap
from ledger.turn import Position
from tests.contracts.harness import P0, TIMEOUT_S, read, ticking_clock

SCOPE, ID, OTHER_ID = b"s" * 20, b"i" * 16, b"j" * 16

APPENDERS = """
import asyncio, sys, time
from pathlib import Path
from ledger.adapters.embedded import EmbeddedDatabase, EmbeddedLog

async def appender(log, name):
    number = 0
    while True:
        value = f"{name}-{number}"
        appended = await log.append(0, b"key", value.encode(), timeout_s=20.0)
        print(appended.offset, value, flush=True)
        number += 1

async def main():
    log = EmbeddedLog(EmbeddedDatabase(Path(sys.argv[1])), now_ms=lambda: time.time_ns() // 1_000_000)
    await asyncio.gather(*(appender(log, name) for name in "abcdefgh"))

asyncio.run(main())
"""
FULL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from ledger.adapters.embedded import EmbeddedDatabase, EmbeddedLog
from ledger.errors import Unavailable
from ledger.log import AppendUncertain

async def main():
    log = EmbeddedLog(EmbeddedDatabase(Path(sys.argv[1])), now_ms=lambda: 1)
    await log.append(0, b"key", b"before", timeout_s=20.0)
    _, limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, limit))
    acknowledged = 1
    try:
        for _ in range(1_000):
            await log.append(0, b"key", bytes(1_000), timeout_s=20.0)
            acknowledged += 1
    except AppendUncertain:
        print("uncertain", acknowledged, await log.end(0, timeout_s=20.0), flush=True)

asyncio.run(main())
"""


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[EmbeddedDatabase]:
    opened = EmbeddedDatabase(tmp_path / "log")
    yield opened
    await opened.close()


@pytest.fixture
def log(database: EmbeddedDatabase) -> EmbeddedLog:
    return EmbeddedLog(database, now_ms=ticking_clock())


@pytest.fixture
def contents(database: EmbeddedDatabase) -> EmbeddedContentStore:
    return EmbeddedContentStore(database, now_ms=ticking_clock())


async def test_concurrent_appends_share_synced_writes(database: EmbeddedDatabase, log: EmbeddedLog) -> None:
    await asyncio.gather(*(log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S) for _ in range(64)))
    assert database.synced_writes == 1


async def test_appends_made_during_a_synced_write_form_the_next_group(
    database: EmbeddedDatabase, log: EmbeddedLog
) -> None:
    first = asyncio.create_task(log.append(P0, b"key", b"first", timeout_s=TIMEOUT_S))
    # A few turns of the loop are enough for its group to form, however long the write takes.
    for _ in range(5):
        await asyncio.sleep(0)
    await asyncio.gather(first, *(log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S) for _ in range(63)))
    assert database.synced_writes == 2


async def test_serial_appends_are_each_synced(database: EmbeddedDatabase, log: EmbeddedLog) -> None:
    for _ in range(5):
        await log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S)
    assert database.synced_writes == 5


async def test_log_and_contents_share_synced_writes(
    database: EmbeddedDatabase, log: EmbeddedLog, contents: EmbeddedContentStore
) -> None:
    await asyncio.gather(
        log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S),
        contents.put(P0, SCOPE, ID, [b"chunk"], timeout_s=TIMEOUT_S),
    )
    assert database.synced_writes == 1


async def test_append_whose_caller_goes_during_the_write_lands_once(log: EmbeddedLog) -> None:
    gone = asyncio.create_task(log.append(P0, b"key", b"gone", timeout_s=TIMEOUT_S))
    for _ in range(5):
        await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await log.append(P0, b"key", b"next", timeout_s=TIMEOUT_S)
    assert [record.value for record in await read(log, {P0: Position(0)}, 2)] == [b"gone", b"next"]


async def test_append_that_gives_up_before_its_group_forms_is_not_written(log: EmbeddedLog) -> None:
    with pytest.raises(Unavailable) as unavailable:
        await log.append(P0, b"key", b"late", timeout_s=-1.0)
    assert unavailable.value.reason == "deadline"
    await log.append(P0, b"key", b"next", timeout_s=TIMEOUT_S)
    assert [record.value for record in await read(log, {P0: Position(0)}, 1)] == [b"next"]


async def test_closing_writes_what_was_accepted(tmp_path: Path) -> None:
    database = EmbeddedDatabase(tmp_path / "log")
    log = EmbeddedLog(database, now_ms=ticking_clock())
    appends = [asyncio.create_task(log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S)) for _ in range(3)]
    await asyncio.sleep(0)
    await database.close()
    assert [(await one).offset for one in appends] == [0, 1, 2]
    with pytest.raises(Unavailable):
        await log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S)
    database = EmbeddedDatabase(tmp_path / "log")
    assert await EmbeddedLog(database, now_ms=ticking_clock()).end(P0, timeout_s=TIMEOUT_S) == 3
    await database.close()


async def test_waiting_tail_learns_that_the_log_is_closed(log: EmbeddedLog) -> None:
    tail = await log.tail({P0: Position(0)})
    waiting = asyncio.create_task(tail.next(TIMEOUT_S))
    await asyncio.sleep(0)
    await log.close()
    with pytest.raises(Unavailable):
        await waiting
    await tail.close()


async def test_database_has_one_owner(database: EmbeddedDatabase, tmp_path: Path) -> None:
    with pytest.raises(StateDirectoryLocked):
        EmbeddedDatabase(tmp_path / "log")


async def test_database_of_another_format_is_refused(tmp_path: Path) -> None:
    store = RocksViewStore(tmp_path / "log")
    store.write({b"mformat": b"2"})
    store.close()
    for _ in range(2):
        with pytest.raises(StoreFailed, match="format"):
            EmbeddedDatabase(tmp_path / "log")


async def test_killed_process_has_lost_nothing_it_acknowledged(tmp_path: Path) -> None:
    acknowledged = kill_appenders(tmp_path)
    assert len(acknowledged) >= 399
    database = EmbeddedDatabase(tmp_path)
    log = EmbeddedLog(database, now_ms=ticking_clock())
    end = await log.end(P0, timeout_s=TIMEOUT_S)
    records = await read(log, {P0: Position(0)}, end)
    assert [record.offset for record in records] == list(range(end))
    values = {str(record.offset): (record.value or b"").decode() for record in records}
    assert acknowledged.items() <= values.items()
    await database.close()


async def test_failed_write_is_uncertain_and_what_was_acknowledged_stays(tmp_path: Path) -> None:
    word, acknowledged, end = fill_disk(tmp_path)
    assert word == "uncertain"
    assert 1 < int(acknowledged) == int(end) < 1_000
    database = EmbeddedDatabase(tmp_path)
    log = EmbeddedLog(database, now_ms=ticking_clock())
    assert await log.end(P0, timeout_s=TIMEOUT_S) >= int(acknowledged)
    records = await read(log, {P0: Position(0)}, int(acknowledged))
    assert records[0].value == b"before"
    appended = await log.append(P0, b"key", b"after", timeout_s=TIMEOUT_S)
    assert appended.offset >= int(acknowledged)
    await database.close()


@pytest.mark.parametrize("count", [TAIL_RECORDS_MAX - 1, TAIL_RECORDS_MAX, TAIL_RECORDS_MAX + 1])
async def test_one_read_is_bounded(log: EmbeddedLog, count: int) -> None:
    await asyncio.gather(*(log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S) for _ in range(count)))
    tail = await log.tail({P0: Position(0)})
    (batch,) = await tail.next(TIMEOUT_S)
    assert len(batch.records) == min(count, TAIL_RECORDS_MAX)
    rest = await tail.next(0.0)
    assert sum(len(batch.records) for batch in rest) == max(0, count - TAIL_RECORDS_MAX)
    await tail.close()


async def test_trim_stops_a_tail_that_is_below_it(log: EmbeddedLog) -> None:
    for _ in range(4):
        await log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S)
    tail = await log.tail({P0: Position(0)})
    await log.trim(Position(2), timeout_s=TIMEOUT_S)
    with pytest.raises(LogGap):
        await tail.next(TIMEOUT_S)
    await tail.close()
    await log.trim(Position(1), timeout_s=TIMEOUT_S)
    assert await log.first(P0, timeout_s=TIMEOUT_S) == 2


async def test_trim_beyond_the_end_is_refused(log: EmbeddedLog) -> None:
    await log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S)
    with pytest.raises(LogGap):
        await log.trim(Position(2), timeout_s=TIMEOUT_S)
    assert await log.first(P0, timeout_s=TIMEOUT_S) == 0


async def test_purged_bytes_leave_the_disk(
    database: EmbeddedDatabase, log: EmbeddedLog, contents: EmbeddedContentStore, tmp_path: Path
) -> None:
    erased, trimmed, kept = (secrets.token_bytes(64) for _ in range(3))
    ref = await contents.put(P0, SCOPE, ID, [erased + secrets.token_bytes(4_096)], timeout_s=TIMEOUT_S)
    kept_ref = await contents.put(P0, SCOPE, OTHER_ID, [kept], timeout_s=TIMEOUT_S)
    await log.append(P0, b"key", trimmed, timeout_s=TIMEOUT_S)
    # One more generation of files, so that the purge has more than the write-ahead log to clean.
    await database.purge()
    assert all(on_disk(tmp_path, secret) for secret in (erased, trimmed, kept))
    await contents.erase(P0, [ref], timeout_s=TIMEOUT_S)
    await log.trim(Position(1), timeout_s=TIMEOUT_S)
    with pytest.raises(ContentLost):
        await contents.get(P0, ref, timeout_s=TIMEOUT_S)
    await database.purge()
    assert not on_disk(tmp_path, erased)
    assert not on_disk(tmp_path, trimmed)
    assert on_disk(tmp_path, kept)
    assert await contents.get(P0, kept_ref, timeout_s=TIMEOUT_S) == [kept]


async def test_bytes_erased_before_they_were_ever_flushed_leave_the_disk(
    database: EmbeddedDatabase, contents: EmbeddedContentStore, tmp_path: Path
) -> None:
    erased = secrets.token_bytes(64)
    ref = await contents.put(P0, SCOPE, ID, [erased], timeout_s=TIMEOUT_S)
    assert on_disk(tmp_path, erased)
    await contents.erase(P0, [ref], timeout_s=TIMEOUT_S)
    await database.purge()
    assert not on_disk(tmp_path, erased)


async def test_appends_go_on_during_a_purge(database: EmbeddedDatabase, log: EmbeddedLog) -> None:
    await asyncio.gather(
        database.purge(), *(log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S) for _ in range(50)), database.purge()
    )
    assert len(await read(log, {P0: Position(0)}, 50)) == 50


async def test_closing_stops_a_purge(
    database: EmbeddedDatabase, log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocks, "REMOVAL_WAIT_S", 3_600.0)
    await log.append(P0, b"key", b"value", timeout_s=TIMEOUT_S)
    await asyncio.to_thread(database.store.flush)
    # It waits for the scan, until it is stopped.
    scan = database.store.scan(b"", b"\xff")
    purging = asyncio.create_task(database.purge())
    await asyncio.sleep(0.2)
    assert not purging.done()
    async with asyncio.timeout(TIMEOUT_S):
        await database.close()
    with pytest.raises(Unavailable) as stopped:
        await purging
    assert stopped.value.reason == "closed"
    del scan


def on_disk(directory: Path, secret: bytes) -> bool:
    return any(secret in path.read_bytes() for path in directory.rglob("*") if path.is_file())


def kill_appenders(directory: Path) -> dict[str, str]:
    """Return what appenders in another process had acknowledged, value by offset, when they were killed."""
    child = subprocess.Popen([sys.executable, "-c", APPENDERS, str(directory)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(400)]
    child.kill()
    lines += child.stdout.readlines()
    child.stdout.close()
    child.wait()
    # The kill may have cut the last line.
    return dict(line.split(maxsplit=1) for line in map(str.rstrip, lines[:-1]))


def fill_disk(directory: Path) -> list[str]:
    """Return the words of a process that appended until its files could not grow."""
    command = [sys.executable, "-c", FULL_DISK, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
