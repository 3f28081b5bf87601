"""A gateway over an embedded ledger in front of one target, and its clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

from api.gateway.service import Gateway
from ledger.composition import open_embedded
from ledger.ledger import Ledger
from tests.gateway.conversations.app import Upstreams, gateway_over, raw_http, sdk, serving


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    async with await open_embedded(tmp_path / "ledger") as opened:
        yield opened


@pytest.fixture
def upstreams() -> Upstreams:
    return Upstreams()


@pytest.fixture
async def gateway(ledger: Ledger, upstreams: Upstreams) -> AsyncIterator[Gateway]:
    async with serving(upstreams) as base_url, gateway_over(ledger, base_url) as opened:
        yield opened


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk(gateway) as opened:
        yield opened


@pytest.fixture
async def http(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with raw_http(gateway) as opened:
        yield opened
