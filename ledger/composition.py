"""Composition roots of the library: which adapters make a ledger. Nothing else in ``ledger`` imports ``adapters``."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ledger.adapters.embedded import EmbeddedContentStore, EmbeddedDatabase, EmbeddedLog
from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_content import KafkaContentStore
from ledger.adapters.kafka_copy import CopyDisk
from ledger.adapters.kafka_reports import KafkaReports
from ledger.adapters.kafka_settings import TABLES, KafkaSettings
from ledger.adapters.rocks import RocksViewStore
from ledger.alias import AliasKey
from ledger.bootstrap import Bootstrapped, Progress, bootstrap, needs_bootstrap
from ledger.closing import close_each, failure_logged
from ledger.disk import DiskUse, RowsDisk
from ledger.errors import InvalidInput, StoreFailed
from ledger.formatting import policy_from
from ledger.holding import held_of, release
from ledger.keeper import DiskKeeper, Keeper, Keeping, Together
from ledger.ledger import Ledger, wall_clock_ms
from ledger.log import Manifest, Record
from ledger.policy import Policy, check
from ledger.query import Reader
from ledger.replica import Replica
from ledger.replica_reporter import ReplicaReporter
from ledger.report import ReporterKind
from ledger.reporter import Identity, name_or_host, reporter_id_in
from ledger.settings import LedgerSettings
from ledger.turn import Partition, Position
from ledger.verdict import Outcome
from ledger.view import ViewStore

REBUILT, DISCARDED = "view.rebuilt", "view.discarded"
"""Beside the view of a state directory: a new one while it is made, and the old one while it is removed."""
ALIAS_KEY_FILE = "alias.key"
"""In an embedded ledger's directory: hex of 32 random bytes, made once, readable by its owner only."""

LOG_RECORDS_MIN = 1_000
"""An embedded log keeps at least so many records, so that the last ones can be replayed when something went wrong."""
TRIM_FACTOR = 1.25
"""The log may grow so far above ``log_records_max`` before it is trimmed, since each trim flushes the view."""
TRIM_TIMEOUT_S = 10.0
MEMORY_LOG_RECORDS_FACTOR = 4
"""A ledger in memory keeps so many records of its log per living response that a principal may have: a turn takes one
or two, and a replay shows how the last ones ended."""
MEMORY_LOG_RECORDS_MAX = 100_000
"""But no more than these, about 50 MB: nobody replays further back on a ledger that ends with its process."""
MEMORY_CACHE_BYTES = 8 * 1024 * 1024
"""Of uncompressed blocks, twice: the blocks themselves are in memory already."""
BOOTSTRAP_TIMEOUT_S = 30.0
"""For the first answer of a broker; reading the tables takes as long as it takes."""
POLICY_TIMEOUT_S = 3_600.0
"""For folding what the tables do not have, when only the policy is to be changed: a whole log if there are none."""


def alias_key_in(path: Path) -> AliasKey:
    """Return the alias key in a file, made when there is none yet. Raises ``InvalidInput`` for a damaged one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        try:
            return AliasKey(bytes.fromhex(path.read_text().strip()))
        except ValueError:
            raise InvalidInput("alias_key", f"{path} does not hold hexadecimal digits; restore it") from None
    key = secrets.token_bytes(32)
    with os.fdopen(handle, "w") as file:
        file.write(key.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    return AliasKey(key)


def _view_in(directory: Path) -> RocksViewStore:
    """Open the view of a state directory; a rebuild that was interrupted between its two renames is finished first.

    Raises ``StateDirectoryLocked``, ``StoreFailed``.
    """
    view, rebuilt = directory / "view", directory / REBUILT
    if not view.exists() and rebuilt.exists() and (directory / DISCARDED).exists():
        rebuilt.rename(view)
    return RocksViewStore(view)


def remove_unfinished(directory: Path) -> None:
    """Remove what a crash left of a rebuild of the view: no erasure would ever reach it. Raises ``StoreFailed``.

    Only whoever owns the state directory may call it.
    """
    for path in (directory / REBUILT, directory / DISCARDED):
        try:
            if path.exists():
                shutil.rmtree(path)
        except OSError as error:
            raise StoreFailed(f"{path}, left by a rebuild that was interrupted, cannot be removed: {error}") from error


@contextmanager
def scratch_view() -> Iterator[ViewStore]:
    """Give a view that is thrown away afterwards, for a replay."""
    with tempfile.TemporaryDirectory(prefix="turnledger-") as directory:
        store = RocksViewStore(Path(directory) / "view")
        try:
            yield store
        finally:
            store.close()


async def open_embedded(
    directory: Path,
    *,
    policy: Policy | None = None,
    settings: LedgerSettings | None = None,
    log_records_max: int | None = None,
    now_ms: Callable[[], int] = wall_clock_ms,
    on_outcome: Callable[[Record, Outcome], None] | None = None,
) -> Ledger:
    """Open the ledger of one process in ``directory``, made on first use; it expires and erases by itself.

    ``policy`` is for a new ledger only; an existing one keeps its own. ``log_records_max`` trims the log to about
    that many records (from 1,000 on; None keeps all): replay and rebuild then reach back only so far. Raises
    ``StateDirectoryLocked`` when another process has it open, ``StoreFailed`` when it cannot be read.
    """
    if log_records_max is not None and log_records_max < LOG_RECORDS_MIN:
        raise InvalidInput("log_records_max", f"must be at least {LOG_RECORDS_MIN}")
    alias_key = alias_key_in(directory / ALIAS_KEY_FILE)
    database = EmbeddedDatabase(directory / "log")
    try:
        store = _view_in(directory)
    except BaseException:
        with failure_logged():
            await database.close()
        raise
    try:
        remove_unfinished(directory)
    except BaseException:
        with failure_logged():
            store.close()
        with failure_logged():
            await database.close()
        raise
    return await _open_local(
        database,
        store,
        alias_key,
        policy=policy or Policy(),
        settings=settings,
        log_records_max=log_records_max,
        now_ms=now_ms,
        on_outcome=on_outcome,
    )


async def open_memory(
    *,
    policy: Policy | None = None,
    settings: LedgerSettings | None = None,
    log_records_max: int | None = None,
    now_ms: Callable[[], int] = wall_clock_ms,
    on_outcome: Callable[[Record, Outcome], None] | None = None,
) -> Ledger:
    """Open the ledger of one process in its memory; nothing of it is on a disk or outlives ``close``.

    ``policy`` bounds its contents and responses. Its log is trimmed to about ``log_records_max`` records (None: four
    per response that a principal may have, from 1,000 to 100,000). A commit may be retried for at most half of the
    policy's ``event_window_max_ms``, because every event ID that must be remembered takes memory. The process takes
    about 100 MB beside the contents, and up to once more what these take while deleted ones are merged out. Raises
    ``StoreFailed`` when there is not even a directory for temporary files, ``InvalidInput`` like ``open_embedded``.
    """
    policy, settings = policy or Policy(), settings or LedgerSettings()
    if log_records_max is None:
        wanted = MEMORY_LOG_RECORDS_FACTOR * policy.principal_records_max
        log_records_max = min(max(wanted, LOG_RECORDS_MIN), MEMORY_LOG_RECORDS_MAX)
    elif log_records_max < LOG_RECORDS_MIN:
        raise InvalidInput("log_records_max", f"must be at least {LOG_RECORDS_MIN}")
    check(policy)
    window_ms = min(settings.commit_window_ms, policy.event_window_max_ms // 2)
    database = EmbeddedDatabase(None, cache_bytes=MEMORY_CACHE_BYTES)
    try:
        store = RocksViewStore(None, cache_bytes=MEMORY_CACHE_BYTES)
    except BaseException:
        with failure_logged():
            await database.close()
        raise
    return await _open_local(
        database,
        store,
        AliasKey(secrets.token_bytes(32)),
        policy=policy,
        settings=replace(settings, commit_window_ms=window_ms),
        log_records_max=log_records_max,
        now_ms=now_ms,
        on_outcome=on_outcome,
    )


async def _open_local(
    database: EmbeddedDatabase,
    store: RocksViewStore,
    alias_key: AliasKey,
    *,
    policy: Policy,
    settings: LedgerSettings | None,
    log_records_max: int | None,
    now_ms: Callable[[], int],
    on_outcome: Callable[[Record, Outcome], None] | None,
) -> Ledger:
    contents = EmbeddedContentStore(database, now_ms=now_ms)
    log = EmbeddedLog(database, now_ms=now_ms)

    async def trim(position: Position) -> None:
        if log_records_max is None:
            return
        first = await log.first(Partition(0), timeout_s=TRIM_TIMEOUT_S)
        if position - first > log_records_max * TRIM_FACTOR:
            # What is trimmed can never be folded again, so its rows must outlive a crash of the machine first.
            await asyncio.to_thread(store.flush)
            await log.trim(Position(position - log_records_max), timeout_s=TRIM_TIMEOUT_S)

    ledger = Ledger(
        log,
        contents,
        store,
        alias_key,
        settings=settings,
        now_ms=now_ms,
        on_outcome=on_outcome,
        keeper=lambda reader, replica: Keeper(
            contents, reader, replica, sweeps=contents.listed, purge=database.purge, trim=trim
        ),
        on_close=database.close,
    )
    await ledger.start(format_policy=policy)
    return ledger


async def open_kafka(
    kafka: KafkaSettings,
    directory: Path,
    alias_key: AliasKey,
    *,
    partitions: frozenset[Partition] | None = None,
    settings: LedgerSettings | None = None,
    format_policy: Policy | None = None,
    on_outcome: Callable[[Record, Outcome], None] | None = None,
    reports: bool = True,
) -> Ledger:
    """Open a replica on Kafka whose rows live in ``directory``.

    ``partitions`` are those that it holds, None: all; whatever asks for another one gets ``NotHeld``, and what
    ``directory`` has of others is deleted. Partitions without rows are read from the tables, as far as those verify,
    and from the log otherwise. The topics must exist ('turnledger topics create'); ``format_policy`` formats them when
    they are new. ``reports`` false: the replica does not say what it holds, as one whose directory is removed at once.
    Raises ``ManifestMismatch``, ``Unavailable``, ``StateDirectoryLocked``, and ``InvalidInput`` for partitions that the
    log does not have and a wrong name.
    """
    settings = settings or LedgerSettings()
    name = name_or_host(settings.reporter_name)
    manifest = await _manifest(kafka)
    held = None if partitions is None else held_of(partitions, manifest.partition_count)
    store = _view_in(directory)
    try:
        copies = RocksViewStore(directory / "content")
    except BaseException:
        with failure_logged():
            store.close()
        raise
    identity = None
    try:
        remove_unfinished(directory)
        if reports:
            identity = Identity(
                id=reporter_id_in(directory),
                kind=ReporterKind.REPLICA,
                name=name,
                interval_s=settings.report_interval_s,
            )
        await _release(kafka, store, copies, manifest, held)
        await _bootstrap(kafka, store, manifest, held)
    except BaseException:
        with failure_logged():
            store.close()
        with failure_logged():
            copies.close()
        raise
    contents = KafkaContentStore(kafka, copies, partitions=partitions)

    def stop_purging() -> None:
        for one in (store, copies):
            one.stop_purging()

    def keeping(_: Reader, replica: Replica) -> Keeping:
        use = DiskUse()
        rows, copy = RowsDisk(store, replica), CopyDisk(copies, contents.copies)
        keeper = DiskKeeper(rows, copy, use, stop_purging=stop_purging)
        if identity is None:
            return keeper
        reporter = ReplicaReporter(
            replica,
            identity,
            KafkaReports(kafka),
            rows=rows,
            contents=copy,
            use=use,
            digest_interval_s=settings.digest_interval_s,
            now_ms=wall_clock_ms,
        )
        return Together(keeper, reporter)

    async def close_copies() -> None:
        copies.close()

    ledger = Ledger(
        KafkaLog(kafka),
        contents,
        store,
        alias_key,
        partitions=partitions,
        tables=None if partitions is None else KafkaLog(kafka, TABLES),
        settings=settings,
        on_outcome=on_outcome,
        keeper=keeping,
        on_close=close_copies,
    )
    try:
        await contents.start()
    except BaseException:
        with failure_logged():
            await ledger.close()
        raise
    await ledger.start(format_policy=format_policy)
    return ledger


async def set_policy_on_kafka(
    kafka: KafkaSettings, alias_key: AliasKey, changes: dict[str, int | bool]
) -> tuple[Policy, int]:
    """Change fields of the policy in every partition; return it and its generation.

    For a fleet in which no replica holds all partitions: their rows are read into a directory that is thrown away,
    without any content. Raises what opening a ledger and ``Ledger.set_policy`` raise, ``InvalidInput``.
    """
    with scratch_view() as store, scratch_view() as copies:
        await bootstrap_kafka(kafka, store)
        # Its contents are not started: nothing is copied.
        async with Ledger(KafkaLog(kafka), KafkaContentStore(kafka, copies), store, alias_key) as ledger:
            await ledger.start(timeout_s=POLICY_TIMEOUT_S)
            policy = policy_from(ledger.policy(), changes)
            return policy, await ledger.set_policy(policy)


async def kafka_partition_count(kafka: KafkaSettings) -> int:
    """Return how many partitions the log has. Raises ``Unavailable``."""
    return (await _manifest(kafka)).partition_count


async def bootstrap_kafka(
    kafka: KafkaSettings,
    store: ViewStore,
    progress: Progress | None = None,
    *,
    partitions: Collection[Partition] | None = None,
) -> list[Bootstrapped]:
    """Read the tables of those ``partitions`` (None: all) that have no rows in ``store``; the log makes the rest.

    Raises ``Unavailable`` when the log cannot be reached, ``StoreFailed``.
    """
    return await _bootstrap(kafka, store, await _manifest(kafka), partitions, progress)


async def _manifest(kafka: KafkaSettings) -> Manifest:
    log = KafkaLog(kafka)
    try:
        return await log.manifest(timeout_s=BOOTSTRAP_TIMEOUT_S)
    finally:
        await log.close()


async def _release(
    kafka: KafkaSettings,
    store: RocksViewStore,
    copies: RocksViewStore,
    manifest: Manifest,
    held: Collection[Partition] | None,
) -> None:
    """Take what the stores have of other partitions off the disk. Raises like ``holding.release``."""
    log = KafkaLog(kafka)
    try:
        await release(store, copies, log, manifest.log_id, held)
    finally:
        await log.close()


async def _bootstrap(
    kafka: KafkaSettings,
    store: ViewStore,
    manifest: Manifest,
    partitions: Collection[Partition] | None,
    progress: Progress | None = None,
) -> list[Bootstrapped]:
    held = held_of(partitions, manifest.partition_count)
    empty = [partition for partition in held if needs_bootstrap(store, partition)]
    if not empty:
        return []
    log, tables = KafkaLog(kafka), KafkaLog(kafka, TABLES)
    try:
        return await bootstrap(store, log, tables, empty, progress=progress)
    finally:
        await close_each(tables.close, log.close)
