"""What RocksDB adds to the contract: a directory that outlives processes, has one owner, and can be damaged."""

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import IO

import pytest

from ledger.adapters.rocks import RocksViewStore
from ledger.errors import PurgeStopped, StateDirectoryLocked, StoreFailed

HOLDER = """
import sys
from pathlib import Path
from ledger.adapters.rocks import RocksViewStore
store = RocksViewStore(Path(sys.argv[1]))
store.write({b"held": b"row"})
print("open", flush=True)
sys.stdin.read()
"""
WRITER = """
import itertools, sys
from pathlib import Path
from ledger.adapters.rocks import RocksViewStore
store = RocksViewStore(Path(sys.argv[1]))
for number in itertools.count():
    written = str(number).encode()
    store.write({b"first": written, b"row-%09d" % number: written, b"second": written})
    print(number, flush=True)
"""


@contextmanager
def process(program: str, path: Path) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdin is not None
    try:
        yield child, child.stdout
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


def test_rows_survive_closing_and_opening(tmp_path: Path) -> None:
    store = RocksViewStore(tmp_path)
    store.write({b"a": b"1"})
    store.close()
    store = RocksViewStore(tmp_path, create=False)
    assert store.get(b"a") == b"1"
    store.close()


def test_opening_without_create_refuses_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="holds no RocksDB database"):
        RocksViewStore(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


def test_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreFailed, match="cannot be made"):
        RocksViewStore(tmp_path / "file")


def test_second_opener_in_the_same_process_is_refused_by_name(tmp_path: Path) -> None:
    store = RocksViewStore(tmp_path)
    with pytest.raises(StateDirectoryLocked, match=str(tmp_path)):
        RocksViewStore(tmp_path)
    store.close()
    RocksViewStore(tmp_path).close()


def test_second_process_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    with process(HOLDER, tmp_path) as (child, output):
        assert output.readline() == "open\n"
        with pytest.raises(StateDirectoryLocked, match=str(tmp_path)):
            RocksViewStore(tmp_path)
        child.kill()
        child.wait()
        assert (tmp_path / "LOCK").exists()
        store = RocksViewStore(tmp_path)
        assert store.get(b"held") == b"row"
        store.close()


def test_killed_writer_leaves_whole_writes_only(tmp_path: Path) -> None:
    with process(WRITER, tmp_path) as (child, output):
        for number in range(300):
            assert output.readline() == f"{number}\n"
        child.kill()
        child.wait()
    store = RocksViewStore(tmp_path)
    last = store.get(b"first")
    assert last is not None
    assert store.get(b"second") == last
    rows = [row for _, row in store.scan(b"row-", b"row.")]
    assert rows == [str(number).encode() for number in range(int(last) + 1)]
    store.close()


def test_closing_frees_the_directory_although_scans_are_open(tmp_path: Path) -> None:
    store = RocksViewStore(tmp_path)
    store.write({b"a": b"1", b"b": b"2"})
    begun, not_begun, finished = (store.scan(b"a", b"z") for _ in range(3))
    assert next(begun) == (b"a", b"1")
    assert len(list(finished)) == 2
    store.close()
    RocksViewStore(tmp_path).close()
    for scan in (begun, not_begun):
        with pytest.raises(StoreFailed, match="closed during a scan"):
            next(scan)
    assert list(finished) == []


def test_closed_store_refuses_every_call(tmp_path: Path) -> None:
    store = RocksViewStore(tmp_path)
    store.close()
    store.close()
    with pytest.raises(StoreFailed):
        store.get(b"a")
    with pytest.raises(StoreFailed):
        store.get_many([b"a"])
    with pytest.raises(StoreFailed):
        store.scan(b"a", b"b")
    with pytest.raises(StoreFailed):
        store.write({b"a": b"1"})


def damaged(path: Path) -> RocksViewStore:
    """Return a store of 20,000 rows of which a block is damaged."""
    store = RocksViewStore(path)
    store.write({b"%06d" % number: bytes([number % 251]) * 100 for number in range(20_000)})
    store.flush()
    store.close()
    (table,) = path.glob("*.sst")
    with table.open("r+b") as file:
        file.seek(table.stat().st_size // 2)
        file.write(b"\xff" * 4_096)
    return RocksViewStore(path)


def test_damaged_block_fails_a_scan_instead_of_ending_it(tmp_path: Path) -> None:
    store = damaged(tmp_path)
    with pytest.raises(StoreFailed, match="checksum"):
        list(store.scan(b"", b"\xff"))
    with pytest.raises(StoreFailed, match="checksum"):
        store.get_many([b"%06d" % number for number in range(20_000)])
    store.close()


def test_purge_that_rewrites_not_everything_fails(tmp_path: Path) -> None:
    store = damaged(tmp_path)
    with pytest.raises(StoreFailed, match=rf"1 of 1 table files were not rewritten; free .*{tmp_path / 'LOG'}"):
        store.purge()
    assert store.get(b"000000") == bytes(100)
    with pytest.raises(StoreFailed, match="checksum"):
        store.close()
    RocksViewStore(tmp_path).close()


def on_disk(directory: Path, needle: bytes) -> bool:
    """Return whether a file holds some bytes."""
    return any(needle in path.read_bytes() for path in directory.iterdir() if path.is_file())


def test_purge_while_a_scan_keeps_an_old_table_file_is_not_complete(tmp_path: Path) -> None:
    erased = secrets.token_bytes(64)
    store = RocksViewStore(tmp_path)
    store.write({b"a": erased, b"b": b"row"})
    store.flush()
    scan = store.scan(b"a", b"z")
    assert next(scan) == (b"a", erased)
    store.write({b"a": None})
    for _ in range(2):
        with pytest.raises(StoreFailed, match=r"a scan that is open keeps 1 of \d+ old table files"):
            store.purge()
        assert on_disk(tmp_path, erased)
    assert list(scan) == [(b"b", b"row")]
    store.purge()
    assert not on_disk(tmp_path, erased)
    store.close()


def purge_beside(store: RocksViewStore, work: Callable[[], None], *, times: int) -> None:
    """Purge a store while another thread works on it without a pause; neither may fail."""
    ended = Event()

    def keep_working() -> None:
        while not ended.is_set():
            work()

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(keep_working)
        try:
            for _ in range(times):
                store.purge()
        finally:
            ended.set()
    assert working.exception() is None


def test_purge_beside_short_scans_is_complete(tmp_path: Path) -> None:
    store = RocksViewStore(tmp_path)
    store.write({secrets.token_bytes(8): secrets.token_bytes(100) for _ in range(1_000)})

    def scan() -> None:
        assert len(list(store.scan(b"", b"\xff" * 9))) == 1_000

    purge_beside(store, scan, times=10)
    store.close()


def test_purge_beside_writes_is_complete(tmp_path: Path) -> None:
    store = RocksViewStore(tmp_path)

    def write() -> None:
        store.write({secrets.token_bytes(2): secrets.token_bytes(1_000) for _ in range(100)})

    purge_beside(store, write, times=5)
    store.close()


def test_deleted_range_is_gone_and_its_upper_bound_is_not(tmp_path: Path) -> None:
    store = RocksViewStore(tmp_path)
    store.write(dict.fromkeys((b"a", b"b", b"c", b"d"), b"row"))
    store.delete_range(b"b", b"d")
    assert [key for key, _ in store.scan(b"", b"z")] == [b"a", b"d"]
    store.close()


def test_size_grows_with_the_rows(tmp_path: Path) -> None:
    store = RocksViewStore(tmp_path)
    before = store.approximate_bytes()
    store.write({b"%d" % number: bytes(1_000) for number in range(1_000)})
    assert store.approximate_bytes() > before
    store.close()


@pytest.mark.parametrize("in_memory", [False, True])
def test_closing_ends_a_purge_in_another_thread(tmp_path: Path, in_memory: bool) -> None:
    stopped = 0
    for number in range(20):
        path = tmp_path / str(number)
        store = RocksViewStore(None if in_memory else path)
        for first in range(0, 6_000, 100):
            store.write({b"%06d" % (first + row): secrets.token_bytes(10_000) for row in range(100)})
        with ThreadPoolExecutor(1) as threads:
            purging = threads.submit(store.purge)
            while not (store._database.property_int_value("rocksdb.num-running-compactions") or purging.done()):
                pass
            store.write({b"late": b"row"})
            store.close()
            # Whichever came first: the other is not harmed.
            error = purging.exception()
            assert error is None or isinstance(error, PurgeStopped)
            assert error is None or str(error) == "the purge was stopped: the store is being closed"
            stopped += error is not None
        with pytest.raises(StoreFailed, match="closed"):
            store.get(b"late")
        if not in_memory:
            store = RocksViewStore(path, create=False)
            assert store.get(b"late") == b"row"
            assert sum(1 for _ in store.scan(b"0", b"9")) == 6_000
            store.purge()
            store.close()
        if stopped:
            return
    pytest.fail("no purge was stopped")


def test_store_that_is_to_be_closed_purges_no_more(tmp_path: Path) -> None:
    store = RocksViewStore(tmp_path)
    store.write({b"a": b"1"})
    store.stop_purging()
    with pytest.raises(PurgeStopped, match="being closed"):
        store.purge()
    with pytest.raises(StoreFailed, match="being closed"):
        store.flush()
    store.write({b"b": b"2"})
    store.close()
    store = RocksViewStore(tmp_path)
    assert store.get_many([b"a", b"b"]) == [b"1", b"2"]
    store.close()


def test_stores_in_memory_are_apart_and_close_with_scans_open() -> None:
    one, other = RocksViewStore(None), RocksViewStore(None)
    one.write({b"a": b"1"})
    one.purge()
    assert (one.get(b"a"), other.get(b"a")) == (b"1", None)
    scan = one.scan(b"a", b"z")
    one.close()
    one.close()
    with pytest.raises(StoreFailed, match="closed during a scan"):
        next(scan)
    with pytest.raises(StoreFailed):
        one.get(b"a")
    other.close()
