"""The view's rows in RocksDB: adapter ``rocks`` of the port ``ViewStore``, and the only file that imports rocksdict.

Rules it keeps: options are passed at every opening, because a database opened without them silently loses its cache and
its bloom filters; a scan ends in an error or at its bound, never early; closing gives the directory free, whoever still
holds a scan. Without a directory the rows are in a file system that RocksDB keeps in memory (its ``MemEnv``).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Self, cast
from weakref import WeakSet

from rocksdict import (
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    CompactOptions,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Env,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from ledger.errors import PurgeStopped, StateDirectoryLocked, StoreFailed

CACHE_BYTES_DEFAULT = 64 * 1024 * 1024
"""Uncompressed blocks kept in memory: the hot rows of a replica, small beside the process itself."""
BLOOM_BITS_PER_KEY = 10
"""About 1 % false positives (RocksDB wiki, Bloom filter): most look-ups of unknown IDs end without reading a block."""
WRITE_BUFFER_BYTES = 16 * 1024 * 1024
"""Rows in memory before they go to a file. A quarter of RocksDB's default: a smaller list is searched and extended
faster, by a third as measured, and is read back sooner after a crash."""
MEMTABLE_BLOOM_RATIO = 0.05
"""Share of the write buffer for its bloom filter: a row that is not there costs half as much to miss."""
INFO_LOGS_MAX = 4
"""RocksDB keeps 1,000 of its own LOG files by default, one per opening."""
WAL_BYTES_MAX = 256 * 1024 * 1024
"""Bounds what an opening after a crash has to read again."""
MEMORY_WRITE_BUFFER_BYTES = 4 * 1024 * 1024
"""As ``WRITE_BUFFER_BYTES``, in memory, where deleted rows take room until some of these have been merged."""
MEMORY_OWN_FILE_BYTES = 256 * 1024
"""Of RocksDB's own LOG and MANIFEST before a new one is begun: they grow without a bound by default, which is memory
here."""

REMOVAL_WAIT_S = 1.0
"""RocksDB removes the files that a compaction has replaced a little after it has returned, and a short scan may read
them until then."""
REMOVAL_LOOK_S = 0.02


class RocksViewStore:
    """Rows of one process in the directory ``path``; None: in memory, gone when it is closed.

    ``sync`` makes every ``write`` durable before it returns; without it a crash of the machine may lose the last
    writes, which is enough for a view, because the log replays. ``create`` makes the directory when it is missing. Both
    mean nothing in memory.

    Raises ``StateDirectoryLocked`` when the directory is open already, in this process or another, and ``StoreFailed``
    when it cannot be opened. A lock file left by a dead process is harmless: the lock is the kernel's, not the file.
    """

    def __init__(
        self, path: Path | None, *, cache_bytes: int = CACHE_BYTES_DEFAULT, create: bool = True, sync: bool = False
    ) -> None:
        self._path = path
        self._write_options = WriteOptions()
        self._scans: WeakSet[_Scan] = WeakSet()
        self._long_call = Lock()
        """Held by what other threads may be busy with for long: rocksdict cannot close then, so closing waits."""
        self._is_ending = False
        if path is None:
            # A write-ahead log would only be a second copy. rocksdict's stub takes the property for a method.
            self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
            self._database = _opened_in_memory(cache_bytes)
        else:
            self._write_options.sync = sync
            self._database = _opened(path, cache_bytes, create=create, sync=sync)
        self._get = self._database.get

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._get(key)
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreFailed(f"reading a row failed: {error}") from error

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            # One multi-get also lets other threads run, and costs no more than single gets from about four keys on.
            rows = self._get(list(keys))
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreFailed(f"reading rows failed: {error}") from error
        return cast("list[bytes | None]", rows)

    def scan(self, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        scan = _Scan(self._database, lower, upper)
        self._scans.add(scan)
        return scan

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        # A batch cannot be used again: rocksdict consumes it.
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        try:
            for key, row in changes.items():
                if row is None:
                    delete(key)
                else:
                    put(key, row)
            self._database.write(batch, self._write_options)
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreFailed(f"writing rows failed: {error}") from error

    def delete_range(self, lower: bytes, upper: bytes) -> None:
        """Delete the rows with ``lower <= key < upper`` at the price of one row. Raises ``StoreFailed``."""
        try:
            self._database.delete_range(lower, upper, self._write_options)
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreFailed(f"deleting rows failed: {error}") from error

    def flush(self) -> None:
        """Write the rows in memory to table files, so that the next opening has nothing to recover."""
        try:
            with self._long_call:
                self._check_not_ending()
                self._database.flush()
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreFailed(f"flushing rows failed: {error}") from error

    def purge(self) -> None:
        """See ``PurgeableStore.purge``; the bytes leave table files and write-ahead log."""
        options = CompactOptions()
        # Without force RocksDB leaves tables of the last level alone, and deleted rows may be in them.
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        try:
            with self._long_call:
                self._check_not_ending()
                # The flush ends the write-ahead log that still holds what was deleted.
                self._database.flush()
                rewritten = self._live_files()
                before = rewritten | self._table_files()
                self._database.compact_range(None, None, options)
                kept = rewritten & self._live_files()
                left = kept or self._not_removed(before)
        except Exception as error:  # rocksdict raises bare Exception
            if self._is_ending:
                raise PurgeStopped(_STOPPED) from error
            raise StoreFailed(f"purging deleted rows failed: {error}") from error
        if left and self._is_ending:
            raise PurgeStopped(_STOPPED)
        if kept:
            # RocksDB's C interface returns nothing from a compaction, so a full disk would pass for an empty one.
            where = "the store in memory" if self._path is None else self._path / "LOG"
            raise StoreFailed(
                f"purging deleted rows failed: {len(kept)} of {len(rewritten)} table files were not rewritten; free "
                f"disk space, or make the rows again if {where} names a corruption"
            )
        if left:
            raise StoreFailed(
                f"purging deleted rows is not complete: a scan that is open keeps {len(left)} of {len(before)} old "
                "table files on the disk; purge again when it has ended"
            )

    def stop_purging(self) -> None:
        """See ``PurgeableStore.stop_purging``; a flush ends as well."""
        self._is_ending = True
        if not self._long_call.locked():
            # Whoever gets the lock from now on ends at once.
            return
        try:
            self._database.cancel_all_background(wait=False)
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreFailed(f"stopping a purge failed: {error}") from error

    def approximate_bytes(self) -> int:
        """Return about how many bytes the rows take, on disk and in memory. Raises ``StoreFailed``."""
        try:
            return sum(self._database.property_int_value(name) or 0 for name in _SIZE_PROPERTIES)
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreFailed(f"reading the size failed: {error}") from error

    def approximate_rows(self) -> int:
        """Return about how many rows there are. Raises ``StoreFailed``."""
        try:
            return self._database.property_int_value("rocksdb.estimate-num-keys") or 0
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreFailed(f"reading the number of rows failed: {error}") from error

    def close(self) -> None:
        """Give the directory free; scans still open raise ``StoreFailed`` when they are read on. Idempotent.

        A purge in another thread is stopped, and waited for.
        """
        # The lock lives as long as any iterator does.
        for scan in list(self._scans):
            scan.close()
        self.stop_purging()
        try:
            with self._long_call:
                self._database.close()
        except DbClosedError:
            return
        except Exception as error:  # rocksdict raises bare Exception
            if not all(map(self._is_expected_of_closing, str(error).split("; "))):
                raise StoreFailed(f"closing {self._path or 'the store in memory'} failed: {error}") from error

    def _is_expected_of_closing(self, problem: str) -> bool:
        """Return whether it means nothing: rocksdict syncs the write-ahead log, flushes, and closes whatever became of
        both."""
        if self._path is None and "SyncWAL() is not supported" in problem:
            return True
        # Nothing is flushed any more after ``stop_purging``; the rows are in the write-ahead log.
        return self._is_ending and problem.strip() == "Shutdown in progress:"

    def _check_not_ending(self) -> None:
        if self._is_ending:
            raise StoreFailed("the store is being closed")

    def _table_files(self) -> set[str]:
        """Return the names of the table files that there are, also of those that only a scan still reads. None is used
        twice."""
        if self._path is None:
            return self._live_files()
        return {path.name for path in self._path.glob("*.sst")}

    def _live_files(self) -> set[str]:
        """Return the names of the table files that hold the present rows."""
        return {file["name"].lstrip("/") for file in self._database.live_files()}

    def _not_removed(self, before: set[str]) -> set[str]:
        """Return which of the files hold no present rows and are there all the same, after ``REMOVAL_WAIT_S`` or when
        the store is to be closed."""
        until_s = time.monotonic() + REMOVAL_WAIT_S
        while True:
            # Live ones among them were being written when the purge began: they hold what came after.
            left = (before & self._table_files()) - self._live_files()
            if not left or self._is_ending or time.monotonic() >= until_s:
                return left
            time.sleep(REMOVAL_LOOK_S)


_STOPPED = "the purge was stopped: the store is being closed"
_SIZE_PROPERTIES = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")


class _Scan:
    """Rows of one range as they were when it was made.

    Walks the raw iterator, although ``Rdict.items`` is three times as fast per row: ``items`` ends without an error at
    a block that cannot be read, and a shorter scan would be a shorter history.
    """

    __slots__ = ("__weakref__", "_closed", "_iterator", "_options")

    def __init__(self, database: Rdict, lower: bytes, upper: bytes) -> None:
        # The iterator points into its options without keeping them alive; without them its bound is any bytes at all.
        self._options = ReadOptions()
        self._options.set_iterate_upper_bound(upper)
        self._closed = False
        self._iterator: RdictIter | None = None
        try:
            self._iterator = database.iter(self._options)
            self._iterator.seek(lower)
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreFailed(f"scanning rows failed: {error}") from error

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        iterator = self._iterator
        if iterator is None:
            if self._closed:
                raise StoreFailed("the store was closed during a scan")
            raise StopIteration
        if iterator.valid():
            row = (iterator.key(), iterator.value())
            iterator.next()
            return row
        self._iterator = None
        try:
            iterator.status()
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreFailed(f"scanning rows failed: {error}") from error
        raise StopIteration

    def close(self) -> None:
        self._closed = self._closed or self._iterator is not None
        self._iterator = None


def _opened(path: Path, cache_bytes: int, *, create: bool, sync: bool) -> Rdict:
    if create:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreFailed(f"the state directory {path} cannot be made: {error}") from error
    elif not (path / "CURRENT").exists():
        # rocksdict makes the directory and its own files even when RocksDB then refuses to create the database.
        raise StoreFailed(f"{path} holds no RocksDB database")
    options = _options(cache_bytes, create=create, sync=sync)
    try:
        return Rdict(str(path), options)
    except Exception as error:  # rocksdict has no error class of its own: every RocksDB error is a bare Exception
        if str(error).startswith(("IO error: lock hold by current process", "IO error: While lock file")):
            raise StateDirectoryLocked(f"the state directory {path} is open in another place") from error
        raise StoreFailed(f"the state directory {path} cannot be opened: {error}") from error


def _opened_in_memory(cache_bytes: int) -> Rdict:
    options = _options(cache_bytes, create=True, sync=False)
    options.set_env(Env.mem_env())
    options.set_write_buffer_size(MEMORY_WRITE_BUFFER_BYTES)
    options.set_max_log_file_size(MEMORY_OWN_FILE_BYTES)
    options.set_max_manifest_file_size(MEMORY_OWN_FILE_BYTES)
    options.set_stats_dump_period_sec(0)
    try:
        # rocksdict writes one small file of its own, without any row, past the Env, and reads it at an opening only.
        with tempfile.TemporaryDirectory(prefix="turnledger-") as directory:
            return Rdict(str(Path(directory) / "rows"), options)
    except Exception as error:  # rocksdict raises bare Exception
        raise StoreFailed(f"a store in memory cannot be opened: {error}") from error


def _options(cache_bytes: int, *, create: bool, sync: bool) -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(cache_bytes))
    blocks.set_bloom_filter(BLOOM_BITS_PER_KEY, block_based=False)
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM_RATIO)
    options.set_memtable_whole_key_filtering(True)
    options.set_keep_log_file_num(INFO_LOGS_MAX)
    options.set_max_total_wal_size(WAL_BYTES_MAX)
    options.set_wal_recovery_mode(
        # What was acknowledged as durable must not be cut off silently at a damaged place; only a torn end may be.
        DBRecoveryMode.tolerate_corrupted_tail_records() if sync else DBRecoveryMode.point_in_time()
    )
    return options
