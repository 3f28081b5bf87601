"""The Faust application ``turnledger process``: the materialize service, and the agents *erase* and *watch* (of
checkpoints and of reports).

Faust runs what has no state: its agents are at-least-once, and their effects can be repeated. The settings are those
that made it behave; docs/decisions names the reasons. Facts are read before their transaction is decided, since Faust
reads committed records only with ``exactly_once``, which lost data; ``ledger.facts`` says why that is harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import faust
import structlog
import uvloop

from ledger.errors import LedgerError, Unavailable
from ledger.turn import Offset, Partition
from processors.composition import Worker, check_topics_exist, locked, opened
from processors.metrics import serve_metrics
from processors.settings import ProcessSettings
from processors.watch import Watcher

logger = structlog.get_logger("processors")

ERASE_FACTS_MAX = 256
"""Facts that are carried out at once,"""
ERASE_WITHIN_S = 0.2
"""or what came within this time."""
RETRY_PAUSE_S = 2.0
SESSION_TIMEOUT_S, HEARTBEAT_S, REBALANCE_TIMEOUT_S = 6.0, 1.0, 10.0
"""Takeover after a kill took 61 s with Faust's defaults, and takes 7 s with these."""


def create_app(settings: ProcessSettings) -> faust.App:
    """Return the application of one worker."""
    kafka = settings.kafka_settings()
    app = faust.App(
        f"{kafka.prefix}.processors",
        broker=[f"kafka://{address.strip()}" for address in kafka.bootstrap.split(",")],
        broker_credentials=_credentials(kafka.security),
        broker_session_timeout=SESSION_TIMEOUT_S,
        broker_heartbeat_interval=HEARTBEAT_S,
        broker_rebalance_timeout=REBALANCE_TIMEOUT_S,
        broker_request_timeout=SESSION_TIMEOUT_S + REBALANCE_TIMEOUT_S,
        broker_commit_interval=1.0,
        consumer_auto_offset_reset="earliest",
        web_enabled=False,
        topic_disable_leader=True,
        topic_allow_declare=False,
        stream_wait_empty=False,
        store="memory://",
        datadir=settings.process_directory / "faust",
        worker_redirect_stdouts=False,
        autodiscover=False,
    )
    raw: dict[str, Any] = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
    lifecycle = app.topic(kafka.topic("lifecycle"), **raw)
    checkpoints = app.topic(kafka.topic("checkpoints"), **raw)
    reports_name = kafka.topic("reports")
    reports = app.topic(reports_name, **raw)
    service = app.service(ProcessorService)
    assert issubclass(service, ProcessorService), "Faust returns the class that it was given"
    running = _Running(settings)
    ProcessorService.running = running

    @app.agent(lifecycle, name="erase")
    async def erase(stream: Any) -> None:
        async for events in stream.take_events(ERASE_FACTS_MAX, within=ERASE_WITHIN_S):
            worker = await running.worker()
            await worker.eraser.take((Partition(event.message.partition), event.value) for event in events)

    @app.agent(checkpoints, name="watch")
    async def watch(stream: Any) -> None:
        async for event in stream.events():
            worker = await running.worker()
            worker.watcher.take(Partition(event.message.partition), event.value)

    # The topics have equal numbers of partitions, so Faust gives the same ones of both to a worker.
    @app.agent(reports, name="watch_reports")
    async def watch_reports(stream: Any) -> None:
        async for event in stream.events():
            message = event.message
            worker = await running.worker()
            await _take_report(worker.watcher, message, event.value)

    @app.on_partitions_assigned.connect  # type: ignore[arg-type]  # faust's hint fits no function with named arguments
    async def on_assigned(_: Any, *given: Any, signal: Any, **__: Any) -> None:
        (assigned,) = given
        if (worker := running.present) is not None:
            worker.watcher.assigned(Partition(one.partition) for one in assigned if one.topic == reports_name)

    return app


async def _take_report(watcher: Watcher, message: Any, value: bytes | None) -> None:
    """Take a report, trying for ever: an agent that gives up would lose it."""
    while True:
        try:
            await watcher.take_report(
                Partition(message.partition),
                Offset(message.offset),
                message.key,
                value,
                int(message.timestamp * 1000),
            )
        except Unavailable as error:
            logger.warning("watching_interrupted", message=str(error))
            await asyncio.sleep(RETRY_PAUSE_S)
        else:
            return


class _Running:
    """The worker's parts, once they are there."""

    def __init__(self, settings: ProcessSettings) -> None:
        self.settings = settings
        self._worker: asyncio.Future[Worker] | None = None

    def _future(self) -> asyncio.Future[Worker]:
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_future()
        return self._worker

    def put(self, worker: Worker) -> None:
        self._future().set_result(worker)

    @property
    def present(self) -> Worker | None:
        """The worker, if it is there."""
        return self._worker.result() if self._worker is not None and self._worker.done() else None

    async def worker(self) -> Worker:
        """Return the worker as soon as it is there."""
        return await asyncio.shield(self._future())


class ProcessorService(faust.Service):
    """Runs the materialize service and the upkeep inside the Faust worker, from its start to its stop."""

    running: _Running

    async def on_start(self) -> None:
        """Open what the worker consists of."""
        self._stack = AsyncExitStack()
        self._worker = await self._stack.enter_async_context(opened(self.running.settings))
        self._stack.callback(serve_metrics(self.running.settings, self._worker))
        self.running.put(self._worker)

    @faust.Service.task
    async def _materialize(self) -> None:
        await self._keep_running("materialize", self._worker.materializer.run)

    @faust.Service.task
    async def _keep_up(self) -> None:
        await self._keep_running("upkeep", self._worker.upkeep.run)

    async def _keep_running(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run something until the worker stops; begin it again when the ledger's own errors end it.

        In a task of its own, since Faust takes a cancellation for an orderly end, whoever was meant by it.
        """
        while not self.should_stop:
            running = asyncio.create_task(run())
            try:
                await asyncio.wait([running])
            finally:
                running.cancel()
            if not running.cancelled() and (error := running.exception()) is not None:
                if not isinstance(error, LedgerError):
                    raise error
                logger.warning("service_interrupted", service=name, message=str(error))
            await self.sleep(RETRY_PAUSE_S)

    async def on_stop(self) -> None:
        """Finish what is being written, and give the partitions up."""
        await self._stack.aclose()


def _credentials(security: Any) -> Any:
    """Return what aiokafka's options mean to Faust."""
    context = security.get("ssl_context")
    if "sasl_mechanism" in security:
        return faust.SASLCredentials(
            username=security["sasl_plain_username"],
            password=security["sasl_plain_password"],
            ssl_context=context,
            mechanism=security["sasl_mechanism"],
        )
    return None if context is None else faust.SSLCredentials(context)


def run(settings: ProcessSettings) -> None:
    """Run a worker until SIGTERM or SIGINT. Raises ``InvalidInput``, ``StateDirectoryLocked``,
    ``Unavailable``, ``OSError``."""
    # Faust makes its own directory in it, but not this one.
    settings.process_directory.mkdir(parents=True, exist_ok=True)
    with locked(settings.process_directory):
        # What Faust would end with says less.
        asyncio.run(check_topics_exist(settings.kafka_settings()))
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        app = create_app(settings)
        worker = faust.Worker(app, loop=loop, quiet=True, override_logging=False, redirect_stdouts=False)
        worker.execute_from_commandline()
