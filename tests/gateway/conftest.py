"""The world of the gateway's cases: upstreams, and replicas on either log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cli.loopback.server import running_loopback
from tests.e2e.replicas import deploy, free_port
from tests.gateway.world import (
    PRINCIPALS,
    EmbeddedWorld,
    GatewayPair,
    GatewayProcess,
    KafkaWorld,
    World,
    base_config,
    config_from,
    kafka_options,
)

NAMES = ("p1", "p2", "c")


@pytest.fixture(scope="session")
def upstream_ports() -> Mapping[str, int]:
    """Where the upstreams of every test listen, since processes that outlive a test are configured with it."""
    return {name: free_port() for name in NAMES}


@pytest.fixture(scope="session")
def gateway_pair(
    kafka_bootstrap: str, upstream_ports: Mapping[str, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayPair]:
    """Two gateway processes on one ledger on Kafka."""
    directory = tmp_path_factory.mktemp("gateways")
    deployment = asyncio.run(deploy(kafka_bootstrap, directory))
    processes = [
        GatewayProcess(
            config_from(base_config(upstream_ports, prefers=prefers, principals=PRINCIPALS), directory, prefers),
            directory / f"r-{prefers}",
            *kafka_options(deployment),
        )
        for prefers in ("p1", "p2")
    ]
    pair = GatewayPair(deployment=deployment, processes=processes)
    try:
        yield pair
    finally:
        pair.down()


@pytest.fixture(params=["embedded", "kafka"])
def pair(request: pytest.FixtureRequest) -> GatewayPair | None:
    """The processes on Kafka; None: the replicas are on the embedded log."""
    return request.getfixturevalue("gateway_pair") if request.param == "kafka" else None


@pytest.fixture(params=[False, True], ids=["buffered", "streamed"])
def streamed(request: pytest.FixtureRequest) -> bool:
    """Whether the answers of a case are streamed."""
    given: bool = request.param
    return given


@pytest.fixture
async def world(pair: GatewayPair | None, upstream_ports: Mapping[str, int], tmp_path: Path) -> AsyncIterator[World]:
    """Two replicas and three upstreams."""
    async with AsyncExitStack() as stack:
        p1, p2, c = [
            await stack.enter_async_context(running_loopback(name, port=upstream_ports[name])) for name in NAMES
        ]
        played: EmbeddedWorld | KafkaWorld
        if pair is None:
            played = EmbeddedWorld(p1=p1, p2=p2, c=c, ports=upstream_ports, directory=tmp_path)
            stack.push_async_callback(played.stop)
        else:
            played = KafkaWorld(p1=p1, p2=p2, c=c, ports=upstream_ports, directory=tmp_path, pair=pair)
        await played.start()
        yield played
        for replica in played.replicas:
            await replica.close()
