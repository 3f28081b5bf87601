"""The log and the contents of one process, without a broker: adapter ``embedded`` of ``EventLog`` and ``ContentStore``.

Both live in one RocksDB database, apart from the view's, and share its group commit: what is appended while one synced
write runs is the next synced write, so 64 concurrent appends cost about two. One partition, number 0. Rules it keeps:
nothing is acknowledged or shown to a tail before it is durable; offsets have no holes; a caller that goes away harms
nobody who is in the same group.

Rows, by the first byte of their key: ``m`` what the log says of itself, ``l`` + offset (8 bytes, big endian) a record,
``c`` + chunk key a chunk. A record is append time (8 bytes), length of the key (4), key, value.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ledger.adapters.rocks import CACHE_BYTES_DEFAULT, RocksViewStore
from ledger.content import ContentRef, chunk_key
from ledger.errors import ContentLost, PurgeStopped, StoreFailed, Unavailable
from ledger.log import Appended, AppendUncertain, LogGap, Manifest, Record, RecordBatch
from ledger.turn import Offset, Partition, Position

PARTITION = Partition(0)
"""The only one."""
TAIL_RECORDS_MAX = 256
"""Records of one ``Tail.next``: a fold batch, after which the reader yields."""
READ_AT_ONCE_BYTES_MAX = 64 * 1024
"""A content of so many bytes is read in the event loop, as rows of the view are: a history has one for each turn, and
handing each to a thread took longer than reading it."""
THREADS_MAX = 3
"""One for the synced write, one for a purge, one for reading contents: none waits for another."""
FORMAT = b"1"
"""Of the rows described above; another is refused."""

_FORMAT_KEY = b"mformat"
_LOG_ID_KEY = b"mlog_id"
_FIRST_KEY = b"mfirst"
_END_KEY = b"mend"

Changes = dict[bytes, bytes | None]
T = TypeVar("T")


class EmbeddedDatabase:
    """The directory ``path``, shared by the log and the contents; whoever opens it closes it, after both.

    Without a directory (None) it is in memory: durable means written then, and closing it forgets everything.

    Raises ``StateDirectoryLocked`` and ``StoreFailed`` as ``RocksViewStore`` does.
    """

    def __init__(self, path: Path | None, *, cache_bytes: int = CACHE_BYTES_DEFAULT) -> None:
        self.store = RocksViewStore(path, cache_bytes=cache_bytes, sync=True)
        self.synced_writes = 0
        """Groups written so far: a metric, and how a test sees that appends share them."""
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="embedded")
        self._waiting: list[_Commit] = []
        self._writer: asyncio.Task[None] | None = None
        self._purging = asyncio.Lock()
        self._closed = False
        found = self.store.get(_FORMAT_KEY)
        if found is None:
            self.store.write({_FORMAT_KEY: FORMAT, _LOG_ID_KEY: secrets.token_hex(16).encode()})
        elif found != FORMAT:
            self.store.close()
            raise StoreFailed(f"{path} has format {found!r}; this version reads and writes {FORMAT!r}")

    async def commit(self, change: Callable[[Changes], None], done: Callable[[], None], *, timeout_s: float) -> None:
        """Return when what ``change`` adds to its group is durable.

        ``change`` is called when the group is formed, unless the caller has gone by then, and ``done`` when it is
        durable, both in the order of the calls of ``commit``. Raises ``Unavailable`` when nothing was or will be
        written, and ``AppendUncertain`` when it may be.
        """
        self.check_open()
        commit = _Commit(change=change, done=done, outcome=asyncio.get_running_loop().create_future())
        self._waiting.append(commit)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_groups())
        try:
            async with asyncio.timeout(timeout_s):
                await commit.outcome
        except TimeoutError:
            if commit.grouped:
                raise AppendUncertain("the synced write takes too long") from None
            raise Unavailable("deadline", "the synced write before it takes too long") from None

    async def change(self, rows: Mapping[bytes, bytes | None], *, timeout_s: float) -> None:
        """Write ``rows`` durably, in the order of the calls.

        Raises ``Unavailable`` also when they may have been written: for what is harmless when it is done twice.
        """
        try:
            await self.commit(lambda changes: changes.update(rows), lambda: None, timeout_s=timeout_s)
        except AppendUncertain as error:
            raise Unavailable("storage", str(error)) from error

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return small rows without leaving this thread. Raises ``Unavailable``."""
        self.check_open()
        try:
            return self.store.get_many(keys)
        except StoreFailed as error:
            raise Unavailable("storage", str(error)) from error

    async def run(self, call: Callable[[], T]) -> T:
        """Run a blocking call of the store in a thread that ``close`` waits for. Raises ``Unavailable``."""
        self.check_open()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except PurgeStopped as error:
            raise Unavailable("closed", str(error)) from error
        except StoreFailed as error:
            raise Unavailable("storage", str(error)) from error

    async def purge(self) -> None:
        """Take the bytes of erased contents and trimmed records off the disk, at the price of rewriting the database.

        An erasure is final for every reader at once, but RocksDB keeps the bytes until it rewrites their files. The
        owner calls this now and then; appends go on meanwhile. Raises ``Unavailable``, with ``closed`` when ``close``
        stopped it.
        """
        async with self._purging:
            await self.run(self.store.purge)

    async def close(self) -> None:
        """Write what was accepted, stop a purge that is under way, then give the directory free."""
        self._closed = True
        if self._writer is not None:
            await self._writer
        try:
            self.store.stop_purging()
        finally:
            await asyncio.to_thread(self._threads.shutdown)
            self.store.close()

    def check_open(self) -> None:
        if self._closed:
            raise Unavailable("closed", "the embedded database is closed")

    async def _write_groups(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            # Whoever is ready to append in this turn of the loop joins the first group.
            await asyncio.sleep(0)
            while self._waiting:
                group = [commit for commit in self._waiting if not commit.outcome.cancelled()]
                self._waiting = []
                if not group:
                    break
                changes: Changes = {}
                for commit in group:
                    commit.grouped = True
                    commit.change(changes)
                try:
                    await loop.run_in_executor(self._threads, self.store.write, changes)
                except StoreFailed as error:
                    for commit in group:
                        commit.fail(f"the synced write failed: {error}")
                    continue
                self.synced_writes += 1
                for commit in group:
                    commit.succeed()
        finally:
            self._writer = None


@dataclass(slots=True, kw_only=True, eq=False)
class _Commit:
    """One caller's part of a group; ``outcome`` is cancelled when the caller has gone."""

    change: Callable[[Changes], None]
    done: Callable[[], None]
    outcome: asyncio.Future[None]
    grouped: bool = False
    """From here on it may be written."""

    def succeed(self) -> None:
        self.done()
        if not self.outcome.done():
            self.outcome.set_result(None)

    def fail(self, message: str) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(AppendUncertain(message))


class EmbeddedLog:
    """The event log in an ``EmbeddedDatabase``; one of them per database."""

    def __init__(self, database: EmbeddedDatabase, *, now_ms: Callable[[], int]) -> None:
        self._database = database
        self._now_ms = now_ms
        self._first = self._position(_FIRST_KEY)
        self._end = self._position(_END_KEY)
        """What is durable."""
        self._grown = asyncio.Event()
        self._closed = False
        # A crash between the two steps of a trim leaves records below the first position.
        if next(database.store.scan(_record_key(0), _record_key(self._first)), None) is not None:
            database.store.delete_range(_record_key(0), _record_key(self._first))

    async def append(self, partition: Partition, key: bytes, value: bytes, *, timeout_s: float) -> Appended:
        self.check_open()
        self._check_partition(partition)
        appended: Appended | None = None

        def change(changes: Changes) -> None:
            nonlocal appended
            # A group whose write failed has used no offsets, so offsets are counted from the durable end.
            position = self._position_in(changes)
            appended = Appended(offset=Offset(position), appended_at_ms=self._now_ms())
            changes[_record_key(position)] = _packed(appended.appended_at_ms, key, value)
            changes[_END_KEY] = _eight(position + 1)

        def done() -> None:
            assert appended is not None
            self._end = Position(appended.offset + 1)
            self._wake()

        await self._database.commit(change, done, timeout_s=timeout_s)
        assert appended is not None
        return appended

    async def tail(self, positions: Mapping[Partition, Position]) -> EmbeddedTail:
        self.check_open()
        for partition in positions:
            self._check_partition(partition)
        return EmbeddedTail(self, positions.get(PARTITION))

    async def end(self, partition: Partition, *, timeout_s: float) -> Position:
        self.check_open()
        self._check_partition(partition)
        return self._end

    async def first(self, partition: Partition, *, timeout_s: float) -> Position:
        self.check_open()
        self._check_partition(partition)
        return self._first

    async def manifest(self, *, timeout_s: float) -> Manifest:
        self.check_open()
        log_id = self._database.store.get(_LOG_ID_KEY)
        assert log_id is not None, "it is written with the format"
        return Manifest(partition_count=1, log_id=log_id.decode())

    async def trim(self, before: Position, *, timeout_s: float) -> None:
        """Remove the records below ``before`` for every reader; ``EmbeddedDatabase.purge`` frees their bytes.

        Trimming less than is trimmed already changes nothing. Raises ``LogGap`` when ``before`` is beyond the end, and
        ``Unavailable`` when the trim may not outlive a crash; repeat it then.
        """
        self.check_open()
        if before > self._end:
            raise LogGap(PARTITION, before, self._first, self._end)
        if before >= self._first:
            lower, upper = _record_key(0), _record_key(before)
            self._first = before
            await self._database.change({_FIRST_KEY: _eight(before)}, timeout_s=timeout_s)
            await self._database.run(lambda: self._database.store.delete_range(lower, upper))

    async def close(self) -> None:
        self._closed = True
        self._wake()

    def check_open(self) -> None:
        if self._closed:
            raise Unavailable("closed", "the log is closed")
        self._database.check_open()

    async def grown(self) -> None:
        """Wait until the end moves or the log closes."""
        await self._grown.wait()

    def read(self, position: Position) -> tuple[Record, ...]:
        """Return at most ``TAIL_RECORDS_MAX`` durable records from ``position`` on.

        Raises ``LogGap`` and ``Unavailable``.
        """
        if not self._first <= position <= self._end:
            raise LogGap(PARTITION, position, self._first, self._end)
        end = min(self._end, position + TAIL_RECORDS_MAX)
        try:
            rows = list(self._database.store.scan(_record_key(position), _record_key(end)))
        except StoreFailed as error:
            raise Unavailable("storage", str(error)) from error
        assert len(rows) == end - position, "offsets have no holes"
        return tuple(_unpacked(Offset(offset), row) for offset, (_, row) in enumerate(rows, start=position))

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    def _position(self, key: bytes) -> Position:
        row = self._database.store.get(key)
        return Position(0 if row is None else int.from_bytes(row, "big"))

    def _position_in(self, changes: Changes) -> Position:
        row = changes.get(_END_KEY)
        return self._end if row is None else Position(int.from_bytes(row, "big"))

    def _check_partition(self, partition: Partition) -> None:
        assert partition == PARTITION, "the embedded log has one partition"


class EmbeddedTail:
    """A running read of the log, woken by appends of this process."""

    def __init__(self, log: EmbeddedLog, position: Position | None) -> None:
        self._log = log
        self._position = position
        self._closed = False

    async def next(self, wait_s: float) -> list[RecordBatch]:
        batches = self._read()
        if batches:
            # Reading on without a pause must not keep the loop from others.
            await asyncio.sleep(0)
            return batches
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._log.grown()
        return self._read()

    async def close(self) -> None:
        self._closed = True

    def _read(self) -> list[RecordBatch]:
        if self._closed:
            raise Unavailable("closed", "the tail is closed")
        self._log.check_open()
        if self._position is None:
            return []
        records = self._log.read(self._position)
        if not records:
            return []
        self._position = Position(records[-1].offset + 1)
        return [RecordBatch(partition=PARTITION, records=records, next_position=self._position)]


class EmbeddedContentStore:
    """The contents in an ``EmbeddedDatabase``. What is acknowledged is readable at once, so nothing lags here."""

    def __init__(self, database: EmbeddedDatabase, *, now_ms: Callable[[], int]) -> None:
        self._database = database
        self._now_ms = now_ms
        self._closed = False

    async def put(
        self, partition: Partition, scope: bytes, content_id: bytes, chunks: Sequence[bytes], *, timeout_s: float
    ) -> ContentRef:
        self._check_open()
        ref = ContentRef(
            scope=scope,
            id=content_id,
            chunks=len(chunks),
            size_bytes=0,
            last_offset=0,
            oldest_at_ms=self._now_ms(),
        )
        # A chunk without an event is an orphan, so an uncertain put is as good as a failed one.
        rows: dict[bytes, bytes | None] = dict(zip(_chunk_rows(ref), chunks, strict=True))
        rows[_listing_row(ref)] = _eight(len(chunks))
        await self._database.change(rows, timeout_s=timeout_s)
        return ref

    async def get(self, partition: Partition, ref: ContentRef, *, timeout_s: float) -> list[bytes]:
        self._check_open()
        rows = _chunk_rows(ref)
        if ref.size_bytes <= READ_AT_ONCE_BYTES_MAX:
            found = self._database.read(rows)
        else:
            found = await self._database.run(lambda: self._database.store.get_many(rows))
        chunks = [chunk for chunk in found if chunk is not None]
        if len(chunks) < len(found):
            raise ContentLost(f"{len(found) - len(chunks)} of the {len(found)} chunks of a content are missing")
        return chunks

    async def erase(self, partition: Partition, refs: Sequence[ContentRef], *, timeout_s: float) -> None:
        self._check_open()
        rows: dict[bytes, bytes | None] = {row: None for ref in refs for row in (*_chunk_rows(ref), _listing_row(ref))}
        await self._database.change(rows, timeout_s=timeout_s)

    def listed(self, partition: Partition) -> Iterator[ContentRef]:
        """Yield a reference to every content that is stored (sizes and times are 0), without reading the contents."""
        self._check_open()
        for row, count in self._database.store.scan(b"i", b"j"):
            yield ContentRef(
                scope=row[1:21],
                id=row[21:],
                chunks=int.from_bytes(count, "big"),
                size_bytes=0,
                last_offset=0,
                oldest_at_ms=0,
            )

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("closed", "the content store is closed")


def _chunk_rows(ref: ContentRef) -> list[bytes]:
    return [b"c" + chunk_key(ref.scope, ref.id, number) for number in range(ref.chunks)]


def _listing_row(ref: ContentRef) -> bytes:
    return b"i" + ref.scope + ref.id


def _record_key(position: int) -> bytes:
    return b"l" + _eight(position)


def _eight(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _packed(appended_at_ms: int, key: bytes, value: bytes) -> bytes:
    return _eight(appended_at_ms) + len(key).to_bytes(4, "big") + key + value


def _unpacked(offset: Offset, row: bytes) -> Record:
    key_end = 12 + int.from_bytes(row[8:12], "big")
    return Record(
        partition=PARTITION,
        offset=offset,
        appended_at_ms=int.from_bytes(row[:8], "big"),
        key=row[12:key_end],
        value=row[key_end:],
    )
