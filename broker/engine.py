"""The port between the cluster and what runs its brokers, and the choice between the two engines.

Java with Maven comes first: it needs no daemon, and its brokers are plain processes of this user.
"""

import shutil
from pathlib import Path
from typing import Protocol

from broker.docker import DockerEngine, docker_is_reachable
from broker.errors import BrokerError
from broker.java import JavaEngine, java_major_version
from broker.kafka_jars import cached_jars
from broker.settings import ClusterSettings, Node
from broker.watchdog import Watchdog

JAVA_MAJOR_MIN = 17


class Engine(Protocol):
    """Runs the brokers of one cluster. It acts only on what it started."""

    def prepare(self) -> None:
        """Fetch what is missing and lay out empty storage; raises BrokerError."""

    def start(self, node: Node) -> None:
        """Start the broker on the storage that it has; return before it is ready."""

    def signal(self, node: Node, name: str) -> None:
        """Do to the broker what SIGKILL, SIGSTOP or SIGCONT does to a process; wait until a killed one has ended."""

    def has_ended(self, node: Node) -> bool:
        """Return whether a started broker no longer runs."""

    def output_tail(self, node: Node) -> str:
        """Return the last lines that the broker printed."""

    def reap(self) -> None:
        """Wait for what the watchdog has ended."""


def choose_engine(settings: ClusterSettings, nodes: list[Node], directory: Path, watchdog: Watchdog) -> Engine:
    """Return the engine that this machine can run; raises BrokerError that says what to install."""
    java, maven = shutil.which("java"), shutil.which("mvn")
    java_version = java_major_version(java) if java else None
    if java and (java_version or 0) >= JAVA_MAJOR_MIN and (maven or cached_jars()):
        return JavaEngine(settings=settings, nodes=nodes, directory=directory, watchdog=watchdog, java=java)
    if settings.secured:
        raise BrokerError(f"Brokers with a secured listener need Java {JAVA_MAJOR_MIN} or later, and Maven")
    docker = shutil.which("docker")
    if docker and docker_is_reachable(docker):
        return DockerEngine(settings=settings, nodes=nodes, watchdog=watchdog, docker=docker)
    java_found = _found("java", java, f"in version {java_version}" if java_version else "")
    maven_found = _found("mvn", maven)
    docker_found = _found("docker", docker, "but its daemon does not answer")
    raise BrokerError(
        "No Kafka broker can be started here. Do one of these:\n"
        f"  - install Java {JAVA_MAJOR_MIN} or later and Maven ({java_found}, {maven_found});\n"
        f"  - install Docker and start its daemon ({docker_found});\n"
        "  - start a broker yourself and name it: KAFKA_BOOTSTRAP=host:port"
    )


def _found(name: str, path: str | None, remark: str = "") -> str:
    return f"no {name} on PATH" if path is None else f"{path} found {remark}".rstrip()
