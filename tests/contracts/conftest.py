"""The adapters under contract: one entry each, and every test of the suite runs on it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from ledger.adapters.memory import MemoryViewStore
from ledger.adapters.rocks import RocksViewStore
from ledger.view import ViewStore
from tests.contracts import harness, kafka_harness
from tests.contracts.harness import ContentFactory, ContentHarness, LogFactory, LogHarness

LOGS: dict[str, LogFactory] = {
    "memory": harness.memory_log,
    "embedded": harness.embedded_log,
    "kafka": kafka_harness.kafka_log,
}
CONTENTS: dict[str, ContentFactory] = {
    "memory": harness.memory_content,
    "embedded": harness.embedded_content,
    "kafka": kafka_harness.kafka_content,
}


@pytest.fixture(params=LOGS)
async def log_harness(request: pytest.FixtureRequest) -> AsyncIterator[LogHarness]:
    async with LOGS[request.param](request) as log:
        yield log


@pytest.fixture(params=[name for name in LOGS if name != "embedded"])
async def partitioned_log_harness(request: pytest.FixtureRequest) -> AsyncIterator[LogHarness]:
    """Logs that may have several partitions; an embedded one has one."""
    async with LOGS[request.param](request) as log:
        yield log


@pytest.fixture(params=["memory", "kafka"])
async def copying_content_harness(request: pytest.FixtureRequest) -> AsyncIterator[ContentHarness]:
    """Stores that read a copy of what they write, which may lag."""
    async with CONTENTS[request.param](request) as content:
        yield content


@pytest.fixture(params=CONTENTS)
async def content_harness(request: pytest.FixtureRequest) -> AsyncIterator[ContentHarness]:
    async with CONTENTS[request.param](request) as content:
        yield content


@pytest.fixture(params=["memory", "rocks", "rocks_in_memory"])
def store(request: pytest.FixtureRequest) -> Iterator[ViewStore]:
    opened: ViewStore
    if request.param == "memory":
        opened = MemoryViewStore()
    else:
        in_memory = request.param == "rocks_in_memory"
        opened = RocksViewStore(None if in_memory else request.getfixturevalue("tmp_path") / "view")
    yield opened
    opened.close()
