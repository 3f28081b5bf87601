"""Closing a tail ends with nobody's cancellation but the caller's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledger.adapters import kafka_tail
from ledger.adapters.kafka_tail import stop_consumer


class Client:
    closed = False

    async def close(self) -> None:
        self.closed = True


class CancelledByItsOwnFetch:
    """aiokafka's consumer while a fetch is under way: ``Fetcher.close`` cancels that task and awaits it."""

    def __init__(self) -> None:
        self._client = Client()

    async def stop(self) -> None:
        fetch = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        fetch.cancel()
        await fetch


class Hanging(CancelledByItsOwnFetch):
    async def stop(self) -> None:
        await asyncio.sleep(60)


async def test_fetch_that_is_cancelled_by_the_consumer_does_not_cancel_the_caller() -> None:
    consumer: Any = CancelledByItsOwnFetch()
    await stop_consumer(consumer)
    assert consumer._client.closed


async def test_consumer_that_does_not_stop_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_tail, "STOP_TIMEOUT_S", 0.05)
    consumer: Any = Hanging()
    async with asyncio.timeout(5):
        await stop_consumer(consumer)
    assert consumer._client.closed
