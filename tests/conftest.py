"""Fixtures for every test."""

from collections.abc import Iterator

import pytest

from broker.launcher import Cluster


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """Start one broker for the whole run when the first test asks for it; KAFKA_BOOTSTRAP, if set, is used instead."""
    with Cluster.from_environment() as cluster:
        yield cluster.bootstrap
