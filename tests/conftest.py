"""Fixtures for every test."""

from collections.abc import Iterator

import hypothesis
import pytest

from broker.launcher import Cluster

# No deadline per example: a slow machine is not a wrong result. The blob repeats a failure anywhere.
hypothesis.settings.register_profile("tests", deadline=None, print_blob=True, max_examples=100)
hypothesis.settings.register_profile("thorough", hypothesis.settings.get_profile("tests"), max_examples=1_000)
hypothesis.settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write the expected output of scenarios anew; add missing golden files"
    )


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """Start one broker for the whole run when the first test asks for it; KAFKA_BOOTSTRAP, if set, is used instead."""
    with Cluster.from_environment() as cluster:
        yield cluster.bootstrap
