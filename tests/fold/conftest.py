"""Fixtures of the fold's tests."""

import pytest

from tests.fold.given import World


@pytest.fixture
def world() -> World:
    """A formatted partition with lifetimes of seconds (``names.POLICY``)."""
    return World()
