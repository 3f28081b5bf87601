"""Start and stop a Kafka cluster of one or three brokers, and hurt its brokers on purpose.

Only what the cluster started is ever signalled or removed. What it started ends with it, whatever ends it: see
`broker.watchdog`.
"""

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from broker.engine import Engine, choose_engine
from broker.errors import BrokerError
from broker.readiness import check_answers, wait_until_ready
from broker.settings import LOOPBACK, ClusterSettings, Node, free_ports
from broker.watchdog import Watchdog


class Cluster:
    """Brokers in one KRaft cluster with empty storage, numbered from 0.

    `Cluster()` always starts its own brokers. `Cluster.from_environment()` uses the ones that KAFKA_BOOTSTRAP names if
    it is set; those cannot be killed, paused or restarted from here. All methods block, and raise BrokerError with
    advice.
    """

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        self._settings = settings or ClusterSettings()
        self._given_bootstrap: str | None = None
        self._nodes: list[Node] = []
        # The brokers that should answer: neither killed nor paused.
        self._expected: set[Node] = set()
        self._engine: Engine | None = None
        self._watchdog: Watchdog | None = None
        self.directory: Path | None = None
        """What the brokers write, unless they run in containers."""

    @classmethod
    def from_environment(cls, settings: ClusterSettings | None = None) -> Self:
        """Return a cluster that stands for the brokers in KAFKA_BOOTSTRAP, or else one of its own."""
        cluster = cls(settings)
        cluster._given_bootstrap = os.environ.get("KAFKA_BOOTSTRAP") or None
        return cluster

    @property
    def bootstrap(self) -> str:
        """The addresses for `bootstrap_servers`: host:port, separated by commas."""
        return self._given_bootstrap or ",".join(node.address for node in self._nodes)

    @property
    def secured_bootstrap(self) -> str:
        """The same of the secured listeners, which the settings must ask for."""
        assert self._settings.secured, "the settings ask for secured listeners"
        return ",".join(f"{LOOPBACK}:{node.secured_port}" for node in self._nodes)

    def start(self) -> None:
        """Start all brokers and return when they are ready; on failure nothing is left running."""
        if self._given_bootstrap:
            check_answers(self._given_bootstrap)
            return
        assert not self._nodes, "the cluster is started once"
        ports = free_ports(2 * self._settings.brokers)
        self._nodes = [
            Node(node_id=index + 1, port=port, secured_port=secured_port if self._settings.secured else 0)
            for index, (port, secured_port) in enumerate(zip(ports[::2], ports[1::2], strict=True))
        ]
        directory = Path(tempfile.mkdtemp(prefix="turnledger-broker-"))
        self.directory = directory
        self._watchdog = Watchdog(directory)
        try:
            self._engine = choose_engine(self._settings, self._nodes, directory, self._watchdog)
            self._engine.prepare()
            for node in self._nodes:
                self._engine.start(node)
                self._expected.add(node)
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill the brokers and remove their data; paused ones too. Does nothing the second time.

        They are killed, not asked: an orderly shutdown takes seconds and only serves data that nobody will read again.
        """
        if self._watchdog:
            self._watchdog.let_go()
            self._watchdog = None
        if self._engine:
            self._engine.reap()
            self._engine = None
        self._nodes = []
        self._expected = set()

    def kill(self, index: int) -> None:
        """End the broker with SIGKILL; its data and its port stay its own."""
        self._signal(index, "SIGKILL")
        self._expected.discard(self._nodes[index])

    def pause(self, index: int) -> None:
        """Stop the broker with SIGSTOP: its connections stay open, and it answers nothing."""
        self._signal(index, "SIGSTOP")
        self._expected.discard(self._nodes[index])

    def resume(self, index: int) -> None:
        """Let a paused broker go on with SIGCONT; does not wait until it is in sync."""
        self._signal(index, "SIGCONT")
        self._expected.add(self._nodes[index])

    def restart(self, index: int) -> None:
        """Start the broker again on its data and port, killing it first if it runs; return when all is ready."""
        node = self._nodes[index]
        engine = self._own_engine()
        if not engine.has_ended(node):
            self.kill(index)
        engine.start(node)
        self._expected.add(node)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Return when every broker that should run reports all of them registered and every partition in sync."""
        expected = sorted(self._expected, key=lambda node: node.node_id)
        wait_until_ready(expected, timeout_s=self._settings.ready_timeout_s, check=self._check_running)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _signal(self, index: int, name: str) -> None:
        self._own_engine().signal(self._nodes[index], name)

    def _own_engine(self) -> Engine:
        if self._given_bootstrap:
            raise BrokerError(f"The broker at KAFKA_BOOTSTRAP={self._given_bootstrap} was not started here")
        assert self._engine, "the cluster is started"
        return self._engine

    def _check_running(self) -> None:
        engine = self._own_engine()
        for node in self._expected:
            if engine.has_ended(node):
                raise BrokerError(f"Broker {node.node_id} ended by itself. Its last lines:\n{engine.output_tail(node)}")
