"""What every development broker is configured with, whichever engine runs it.

The cluster is KRaft in combined mode: each node is broker and controller. Its timeouts are short so that tests of
failures are short, and its durability is not relaxed: no unclean election, and with three brokers two must have a
record before it is acknowledged.
"""

import base64
import secrets
import socket
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "127.0.0.1"
SECURED = "SECURED"

# Below the ephemeral ranges of Linux (32768 up) and macOS (49152 up): a client that keeps knocking at a port of a
# killed broker could otherwise be given that very port as its own, and take it from the broker or talk to itself.
_PORT_FIRST, _PORT_LAST = 20_000, 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuredListener:
    """A second way in: SASL_SSL with PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512, for one user."""

    username: str
    password: str
    # PKCS12 with the brokers' key; it has the same password. Its certificate must be for 127.0.0.1.
    keystore: Path

    def properties(self) -> Mapping[str, str]:
        """Return the server properties that the listener has of its own."""
        prefix = f"listener.name.{SECURED.lower()}"
        module = "org.apache.kafka.common.security"
        scram = f"{module}.scram.ScramLoginModule required;"
        return {
            f"{prefix}.ssl.keystore.type": "PKCS12",
            f"{prefix}.ssl.keystore.location": str(self.keystore),
            f"{prefix}.ssl.keystore.password": self.password,
            f"{prefix}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            f"{prefix}.plain.sasl.jaas.config": (
                f'{module}.plain.PlainLoginModule required user_{self.username}="{self.password}";'
            ),
            f"{prefix}.scram-sha-256.sasl.jaas.config": scram,
            f"{prefix}.scram-sha-512.sasl.jaas.config": scram,
        }

    def format_arguments(self) -> list[str]:
        """Return the arguments that make the storage tool write the user's SCRAM credentials (KIP-900)."""
        credentials = f"[name={self.username},password={self.password}]"
        return [
            argument
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for argument in ("--add-scram", f"{mechanism}={credentials}")
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """What a caller may choose."""

    # One for most tests; three where replication itself is under test.
    brokers: int = 1
    # 350 to 440 MB resident for each broker.
    heap_mib_max: int = 384
    # Some thirty times what a start takes on two cores.
    ready_timeout_s: float = 120.0
    # Beside the plain one, which stays; for brokers that run in Java.
    secured: SecuredListener | None = None

    def __post_init__(self) -> None:
        if self.brokers not in (1, 3):
            raise ValueError(f"brokers must be 1 or 3, not {self.brokers}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One broker's place in the cluster; it keeps both over restarts."""

    # Kafka's node.id, from 1.
    node_id: int
    # Where clients reach it, on the loopback interface.
    port: int
    # Where its secured listener is; 0: it has none.
    secured_port: int = 0

    @property
    def address(self) -> str:
        """Return host and port as a client names them."""
        return f"{LOOPBACK}:{self.port}"


def common_properties(nodes: int) -> Mapping[str, str]:
    """Return the server properties that do not depend on where a broker runs."""
    copies = str(min(3, nodes))
    in_sync_min = str(min(2, nodes))
    return {
        "process.roles": "broker,controller",
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "auto.create.topics.enable": "false",
        "unclean.leader.election.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync_min,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync_min,
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync_min,
        "group.initial.rebalance.delay.ms": "0",
        # Compaction is looked for every 15 s otherwise.
        "log.cleaner.backoff.ms": "1000",
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "3000",
        "replica.lag.time.max.ms": "3000",
        "controller.quorum.election.timeout.ms": "500",
        "controller.quorum.fetch.timeout.ms": "1000",
    }


def new_cluster_id() -> str:
    """Return a cluster ID in the form that Kafka prints: a UUID in URL-safe base64 without padding.

    Like Kafka's own it never begins with a dash: Kafka's tools would take it for an option.
    """
    while True:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not cluster_id.startswith("-"):
            return cluster_id


def free_ports(count: int, *, except_for: Collection[int] = ()) -> list[int]:
    """Return distinct loopback ports that nothing listens on, outside the ephemeral range."""
    ports: list[int] = []
    while len(ports) < count:
        port = _PORT_FIRST + secrets.randbelow(_PORT_LAST - _PORT_FIRST)
        if port not in ports and port not in except_for and _is_free(port):
            ports.append(port)
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the broker's own socket does; without it a port would seem taken for a minute after its last connection.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
