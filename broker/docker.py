"""Brokers as containers of the image apache/kafka, reachable on loopback only.

Clients come in through the listener CLIENT, whose port is the same inside and outside; the brokers talk to each other
by container name on a network of their own.
"""

import subprocess

from broker.errors import BrokerError
from broker.kafka_jars import kafka_version
from broker.settings import LOOPBACK, ClusterSettings, Node, common_properties, new_cluster_id
from broker.watchdog import Watchdog

_BROKER_PORT, _CONTROLLER_PORT = 9092, 9093
_TAIL_LINES = 30
_SIGNALS = {"SIGKILL": "kill", "SIGSTOP": "pause", "SIGCONT": "unpause"}


def docker_is_reachable(docker: str) -> bool:
    """Return whether the client finds a running daemon."""
    done = subprocess.run([docker, "version"], capture_output=True, check=False)
    return done.returncode == 0


class DockerEngine:
    """Creates one container per node when prepared; a restart starts the same container, so its data stay."""

    def __init__(self, *, settings: ClusterSettings, nodes: list[Node], watchdog: Watchdog, docker: str) -> None:
        self._settings = settings
        self._nodes = nodes
        self._watchdog = watchdog
        self._docker = docker
        self._cluster_id = new_cluster_id()
        # Named after a client port, which no other cluster on this machine has.
        self._network = f"turnledger-{nodes[0].port}"

    def prepare(self) -> None:
        """Fetch the image and create the network and the containers."""
        self._run("network", "create", self._network)
        self._watchdog.watch_network(self._network)
        for node in self._nodes:
            self._run(*self.create_arguments(node))
            self._watchdog.watch_container(self._name(node))

    def start(self, node: Node) -> None:
        """Start the node's container."""
        self._run("start", self._name(node))

    def signal(self, node: Node, name: str) -> None:
        """Do what the signal does by the daemon's command for it."""
        self._run(_SIGNALS[name], self._name(node))

    def has_ended(self, node: Node) -> bool:
        """Return whether the node's container no longer runs."""
        return self._run("inspect", "--format", "{{.State.Running}}", self._name(node)).strip() != "true"

    def output_tail(self, node: Node) -> str:
        """Return the end of the container's output."""
        return self._run("logs", "--tail", str(_TAIL_LINES), self._name(node))

    def reap(self) -> None:
        """Do nothing: the watchdog's removal of a container includes its end."""

    def create_arguments(self, node: Node) -> list[str]:
        """Return the arguments of `docker` that create the node's container."""
        properties = {
            **common_properties(len(self._nodes)),
            "node.id": str(node.node_id),
            "listeners": (
                f"BROKER://0.0.0.0:{_BROKER_PORT},CLIENT://0.0.0.0:{node.port},CONTROLLER://0.0.0.0:{_CONTROLLER_PORT}"
            ),
            "advertised.listeners": f"BROKER://{self._name(node)}:{_BROKER_PORT},CLIENT://{node.address}",
            "listener.security.protocol.map": "BROKER:PLAINTEXT,CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": ",".join(
                f"{other.node_id}@{self._name(other)}:{_CONTROLLER_PORT}" for other in self._nodes
            ),
            "log.dirs": "/var/lib/kafka/data",
        }
        arguments = ["create", "--name", self._name(node), "--network", self._network]
        arguments += ["--publish", f"{LOOPBACK}:{node.port}:{node.port}"]
        arguments += ["--env", f"CLUSTER_ID={self._cluster_id}"]
        arguments += ["--env", f"KAFKA_HEAP_OPTS=-Xmx{self._settings.heap_mib_max}m"]
        for key, value in properties.items():
            # The image's documented rule: KAFKA_ and the property in capitals, its dots as underscores.
            arguments += ["--env", f"KAFKA_{key.upper().replace('.', '_')}={value}"]
        return [*arguments, f"apache/kafka:{kafka_version()}"]

    def _name(self, node: Node) -> str:
        return f"{self._network}-{node.node_id}"

    def _run(self, *arguments: str) -> str:
        done = subprocess.run([self._docker, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BrokerError(f"docker {arguments[0]} failed: {done.stderr.strip()}")
        return done.stdout + done.stderr
