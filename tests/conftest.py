"""Fixtures for every test."""

import logging
import os
from collections.abc import Iterator

import hypothesis
import pytest
import structlog

from broker.launcher import Cluster

# No deadline per example: a slow machine is not a wrong result. The blob repeats a failure anywhere. The same examples
# every time, so that a change is judged by itself; HYPOTHESIS_PROFILE=thorough looks for new ones.
hypothesis.settings.register_profile("tests", deadline=None, print_blob=True, max_examples=100, derandomize=True)
hypothesis.settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=1_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tests"))

# Where most tests take seconds: they wait for brokers and processes.
LONG = (
    "tests/processors/",
    "tests/e2e/",
    "tests/broker/",
    "tests/adapters/test_three_brokers.py",
    "tests/adapters/test_kafka_faults.py",
    "tests/cli/test_demo.py",
    "tests/docs/test_readme.py",
    "tests/gateway/conformance/",
    "tests/gateway/test_partial_gateways.py",
    "tests/simulation/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long tests first: what two processes share between them at the end of a run is short."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write the expected output of scenarios anew; add missing golden files"
    )


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """Start one broker for the whole run when the first test asks for it; KAFKA_BOOTSTRAP, if set, is used instead."""
    with Cluster.from_environment() as cluster:
        yield cluster.bootstrap


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Undo what a command run in this process has done to the logs: no test depends on another's."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
