"""What a metadata response must show before a cluster counts as ready."""

from typing import Any

import pytest

from broker.readiness import missing_from
from broker.settings import Node

NODES = [Node(node_id=node_id, port=20_000 + node_id) for node_id in (1, 2)]


def view(*, brokers: tuple[int, ...] = (1, 2), leader: int = 1, in_sync: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    partition = {"partition": 0, "leader": leader, "replicas": [1, 2], "isr": list(in_sync)}
    return {
        "brokers": [{"node_id": node_id} for node_id in brokers],
        "topics": [{"topic": "turns", "partitions": [partition]}],
    }


def test_a_full_view_lacks_nothing() -> None:
    assert missing_from(view(), NODES) is None


def test_a_broker_that_was_killed_on_purpose_is_not_waited_for() -> None:
    assert missing_from(view(brokers=(1,), in_sync=(1,)), NODES[:1]) is None


@pytest.mark.parametrize(
    ("incomplete", "missing"),
    [
        (view(brokers=(1,)), "brokers [2] are not registered"),
        (view(leader=-1), "turns/0 has no leader"),
        (view(in_sync=(1,)), "turns/0 is not in sync on brokers [2]"),
    ],
)
def test_an_incomplete_view_names_what_it_lacks(incomplete: dict[str, Any], missing: str) -> None:
    assert missing_from(incomplete, NODES) == missing
