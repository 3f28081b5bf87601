"""The containers that the Docker engine asks for; their start needs a daemon and is not tested here."""

import itertools
from pathlib import Path

from broker.docker import DockerEngine
from broker.settings import ClusterSettings, Node
from broker.watchdog import Watchdog


def test_a_container_is_published_on_loopback_only_and_advertises_that_port(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    watchdog = Watchdog(state)
    try:
        nodes = [Node(node_id=1, port=20_001), Node(node_id=2, port=20_002)]
        engine = DockerEngine(settings=ClusterSettings(), nodes=nodes, watchdog=watchdog, docker="docker")
        arguments = engine.create_arguments(nodes[1])
    finally:
        watchdog.let_go()
    values = [value for flag, value in itertools.pairwise(arguments) if flag == "--publish"]
    assert values == ["127.0.0.1:20002:20002"]
    assert "KAFKA_ADVERTISED_LISTENERS=BROKER://turnledger-20001-2:9092,CLIENT://127.0.0.1:20002" in arguments
    assert "KAFKA_CONTROLLER_QUORUM_VOTERS=1@turnledger-20001-1:9093,2@turnledger-20001-2:9093" in arguments
