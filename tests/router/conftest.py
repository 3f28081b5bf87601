"""What another router has of the SDK: the port over this process's memory, a ledger in it, and a service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest

from api.app import create_app
from api.auth import Access
from ledger.adapters.http import HttpRouter, LedgerClient
from ledger.adapters.memory import MemoryViewStore
from ledger.composition import open_embedded, open_memory
from ledger.ledger import Ledger
from ledger.router import LedgerRouter, LocalRouter, Router
from tests.router.turns import POLICY


@pytest.fixture(params=["local", "memory", "embedded", "http"])
async def router(request: pytest.FixtureRequest) -> AsyncIterator[Router]:
    async with AsyncExitStack() as stack:
        if request.param == "local":
            yield LocalRouter(MemoryViewStore(), policy=POLICY)
            return
        ledger: Ledger
        if request.param == "memory":
            ledger = await open_memory(policy=POLICY)
        else:
            ledger = await open_embedded(request.getfixturevalue("tmp_path"), policy=POLICY)
        await stack.enter_async_context(ledger)
        if request.param != "http":
            yield LedgerRouter(ledger)
            return
        app = create_app(ledger, Access.local())
        yield HttpRouter(await stack.enter_async_context(LedgerClient(transport=httpx.ASGITransport(app))))
