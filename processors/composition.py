"""Composition root of the processors: which adapters they work on."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_content import KafkaContentStore
from ledger.adapters.kafka_group import KafkaMembership
from ledger.adapters.kafka_reports import KafkaReports
from ledger.adapters.kafka_settings import CONTENT, REPORTS, TABLES, TOPICS, KafkaSettings
from ledger.adapters.kafka_topics import SEGMENT_MS
from ledger.adapters.kafka_transactions import KafkaTransactions
from ledger.adapters.memory import MemoryViewStore
from ledger.adapters.rocks import RocksViewStore
from ledger.checkpoint import KEY_BYTES, Signer
from ledger.closing import close_each
from ledger.errors import InvalidInput, Unavailable
from ledger.ledger import wall_clock_ms
from ledger.report import ReporterKind
from ledger.reporter import Holding, Identity, Reporter, name_or_host, reporter_id_in
from ledger.turn import Partition
from processors.erase import Eraser
from processors.lane import LaneParts
from processors.last_words import LastWords
from processors.leftovers import Leftovers, rows_directory
from processors.materialize import Materializer
from processors.ports import Membership
from processors.settings import ProcessSettings
from processors.upkeep import Upkeep
from processors.watch import Watcher

logger = structlog.get_logger("processors.composition")

REQUEST_TIMEOUT_MS = 4_000
METADATA_MAX_AGE_MS = 15_000
"""A failed request asks for the leaders anew; only idle clients wait for this."""
TAIL_RECORDS_MAX = 1_000
ASK_TIMEOUT_S = 30.0
START_TIMEOUT_S = 10.0
"""For the first answer of a broker; a supervisor starts a worker again that did not get it."""
CACHE_BYTES = 16 * 1024 * 1024
"""Block cache of one partition's rows: a worker may have all partitions."""


def signer_in(path: Path) -> Signer:
    """Return the key in a file that signs checkpoints, made when there is none yet, readable by its owner only.

    Raises ``InvalidInput`` for a damaged one.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        try:
            seed = bytes.fromhex(path.read_text().strip())
        except (ValueError, OSError) as error:
            raise InvalidInput("checkpoint_key_file", f"{path} cannot be used: {error}") from None
        if len(seed) != KEY_BYTES:
            raise InvalidInput("checkpoint_key_file", f"{path} does not hold {KEY_BYTES} bytes; restore it") from None
        return Signer(seed)
    except OSError as error:
        raise InvalidInput("checkpoint_key_file", f"{path} cannot be made: {error}") from None
    seed = secrets.token_bytes(KEY_BYTES)
    with os.fdopen(handle, "w") as file:
        file.write(seed.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    return Signer(seed)


Join = Callable[[Callable[[frozenset[Partition]], None]], Membership]
"""Makes the membership of a worker; it is told whom to call with the partitions that are assigned."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Own a worker's directory for a while. Raises ``StateDirectoryLocked`` when another process does."""
    store = RocksViewStore(directory / "lock")
    try:
        yield
    finally:
        store.close()


async def check_topics_exist(kafka: KafkaSettings) -> None:
    """Return when all topics are there with equal partitions. Raises ``Unavailable``."""
    counts: dict[str, int] = {}
    for name in TOPICS:
        topic = KafkaLog(kafka, name)
        try:
            counts[name] = (await topic.manifest(timeout_s=START_TIMEOUT_S)).partition_count
        finally:
            await topic.close()
    if len(set(counts.values())) != 1:
        said = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise Unavailable("manifest", f"the topics have different numbers of partitions: {said}")


@asynccontextmanager
async def materializer(
    kafka: KafkaSettings, directory: Path, signer: Signer, *, join: Join | None = None
) -> AsyncIterator[Materializer]:
    """Give the materialize service of one worker, whose rows live in ``directory``; run it while it is open."""
    # Nobody waits for a worker as for a read, and it has many more clients than a replica.
    kafka = patient(kafka)

    def open_store(partition: Partition) -> RocksViewStore:
        return RocksViewStore(rows_directory(directory, partition), cache_bytes=CACHE_BYTES)

    async def start_writer(partition: Partition) -> KafkaTransactions:
        return await KafkaTransactions.start(kafka, partition)

    log, tables = KafkaLog(kafka), KafkaLog(kafka, TABLES)
    parts = LaneParts(
        log=log,
        tables=tables,
        start_writer=start_writer,
        open_store=open_store,
        signer=signer,
        now_ms=wall_clock_ms,
        computing=asyncio.Lock(),
    )
    service = Materializer(parts, join or (lambda on_assigned: KafkaMembership(kafka, on_assigned)))
    try:
        yield service
    finally:
        await close_each(service.close, tables.close, log.close)


def patient(kafka: KafkaSettings) -> KafkaSettings:
    """Return the settings of a process that nobody waits for, and that has many clients."""
    return dataclasses.replace(
        kafka,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        metadata_max_age_ms=METADATA_MAX_AGE_MS,
        tail_records_max=TAIL_RECORDS_MAX,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The parts of one worker."""

    materializer: Materializer
    eraser: Eraser
    upkeep: Upkeep
    watcher: Watcher
    leftovers: Leftovers


@asynccontextmanager
async def opened(settings: ProcessSettings) -> AsyncIterator[Worker]:
    """Give the parts of a worker; whoever opens them runs them. Raises ``InvalidInput``, ``Unavailable``."""
    kafka = patient(settings.kafka_settings())
    signer = signer_in(settings.checkpoint_key_file)
    async with AsyncExitStack() as stack:
        log, reports = KafkaLog(kafka), KafkaLog(kafka, REPORTS)
        contents, tables = KafkaLog(kafka, CONTENT), KafkaLog(kafka, TABLES)
        for topic in (log, contents, tables, reports):
            stack.push_async_callback(topic.close)
        # Never started: it erases, and keeps no copy.
        store = KafkaContentStore(kafka, MemoryViewStore())
        stack.push_async_callback(store.close)
        eraser = Eraser(store)
        materialize = await stack.enter_async_context(materializer(kafka, settings.process_directory, signer))
        partition_count = (await log.manifest(timeout_s=ASK_TIMEOUT_S)).partition_count
        words = LastWords(settings.process_directory, materialize.held)
        reporter = reporting(kafka, settings, materialize, words)
        stack.push_async_callback(reporter.close)
        try:
            await words.recall(reports, reporter.identity.id, map(Partition, range(partition_count)))
        except Unavailable as error:
            # Nothing waits for a report; the words of before stay where they are.
            logger.warning("last_words_not_read", message=str(error))
        await reporter.start()
        leftovers = Leftovers(
            settings.process_directory,
            partition_count=partition_count,
            held=materialize.held,
            discard=materialize.discard,
            withdraw=reporter.withdraw,
        )
        segment_ms = int(await contents.config("segment.ms", timeout_s=ASK_TIMEOUT_S) or SEGMENT_MS)
        upkeep = Upkeep(
            materialize.lanes,
            eraser,
            contents=contents,
            tables=tables,
            leftovers=leftovers,
            roll_interval_s=segment_ms / 1000,
            sweep_interval_s=settings.sweep_interval_s,
        )
        yield Worker(
            materializer=materialize,
            eraser=eraser,
            upkeep=upkeep,
            watcher=Watcher(signer.public_key, reports, now_ms=wall_clock_ms),
            leftovers=leftovers,
        )


def reporting(kafka: KafkaSettings, settings: ProcessSettings, materialize: Materializer, words: LastWords) -> Reporter:
    """Return what tells others which rows this worker holds. Raises ``InvalidInput``."""
    identity = Identity(
        id=reporter_id_in(settings.process_directory),
        kind=ReporterKind.WORKER,
        name=name_or_host(settings.reporter_name),
        interval_s=settings.report_interval_s,
    )

    def holdings() -> dict[Partition, Holding]:
        found = {partition: lane.holding() for partition, lane in materialize.lanes().items()}
        return words.with_lanes({partition: holding for partition, holding in found.items() if holding is not None})

    return Reporter(identity, KafkaReports(kafka), holdings, now_ms=wall_clock_ms)
