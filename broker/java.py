"""Brokers as Java processes of this user."""

import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from broker.errors import BrokerError
from broker.kafka_jars import fetch_jars
from broker.settings import LOOPBACK, SECURED, ClusterSettings, Node, common_properties, free_ports, new_cluster_id
from broker.watchdog import Watchdog

_LOG4J = Path(__file__).with_name("log4j2.xml")
_TAIL_LINES = 30


def java_major_version(java: str) -> int | None:
    """Return 17 for Java 17.0.x, or None if the program does not say."""
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else None


class JavaEngine:
    """Starts `kafka.Kafka` once per node, each in its own session so that Ctrl-C reaches only the launcher."""

    def __init__(
        self, *, settings: ClusterSettings, nodes: list[Node], directory: Path, watchdog: Watchdog, java: str
    ) -> None:
        self._settings = settings
        self._nodes = nodes
        self._directory = directory
        self._watchdog = watchdog
        self._java = java
        self._jars: Path | None = None
        # The process that a node runs now, or ran last.
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def prepare(self) -> None:
        """Fetch Kafka, write each node's properties and format its storage."""
        self._jars = fetch_jars()
        cluster_id = new_cluster_id()
        taken = [port for node in self._nodes for port in (node.port, node.secured_port)]
        controller_ports = free_ports(len(self._nodes), except_for=taken)
        voters = ",".join(
            f"{node.node_id}@{LOOPBACK}:{port}" for node, port in zip(self._nodes, controller_ports, strict=True)
        )
        for node, controller_port in zip(self._nodes, controller_ports, strict=True):
            self._home(node).mkdir()
            properties = self._properties(node, controller_port, voters)
            lines = "".join(f"{key}={value}\n" for key, value in properties.items())
            self._properties_file(node).write_text(lines, encoding="utf-8")
            arguments = ["format", "--cluster-id", cluster_id, "--config", str(self._properties_file(node))]
            arguments += self._settings.secured.format_arguments() if self._settings.secured else []
            self._processes[node.node_id] = self._launch(node, "kafka.tools.StorageTool", *arguments)
        for node in self._nodes:
            if self._wait(self._processes[node.node_id]) != 0:
                raise BrokerError(f"The storage of broker {node.node_id} was not formatted:\n{self.output_tail(node)}")

    def start(self, node: Node) -> None:
        """Start the node's process."""
        self._processes[node.node_id] = self._launch(node, "kafka.Kafka", str(self._properties_file(node)))

    def signal(self, node: Node, name: str) -> None:
        """Send the signal; `Popen` never signals a process that it has seen end."""
        process = self._processes[node.node_id]
        process.send_signal(signal.Signals[name])
        if name == "SIGKILL":
            self._wait(process)

    def has_ended(self, node: Node) -> bool:
        """Return whether the node's process has ended."""
        return self._processes[node.node_id].poll() is not None

    def output_tail(self, node: Node) -> str:
        """Return the end of what the node's processes printed, storage tool included."""
        text = self._output_file(node).read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    def reap(self) -> None:
        """Collect the exit codes of the processes."""
        for process in self._processes.values():
            process.wait()

    def _launch(self, node: Node, main_class: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [self._java, f"-Xmx{self._settings.heap_mib_max}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [f"-Dlog4j2.configurationFile={_LOG4J}", "-cp", f"{self._jars}/*", main_class, *arguments]
        with self._output_file(node).open("ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self._watchdog.watch_process(process.pid)
        return process

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        code = process.wait()
        self._watchdog.forget_process(process.pid)
        return code

    def _properties(self, node: Node, controller_port: int, voters: str) -> Mapping[str, str]:
        secured = self._settings.secured
        clients = f"BROKER://{node.address}"
        if secured:
            clients += f",{SECURED}://{LOOPBACK}:{node.secured_port}"
        return {
            **common_properties(len(self._nodes)),
            **(secured.properties() if secured else {}),
            "node.id": str(node.node_id),
            "listeners": f"{clients},CONTROLLER://{LOOPBACK}:{controller_port}",
            "advertised.listeners": clients,
            "listener.security.protocol.map": f"BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,{SECURED}:SASL_SSL",
            "controller.quorum.voters": voters,
            "log.dirs": str(self._home(node) / "data"),
        }

    def _home(self, node: Node) -> Path:
        return self._directory / f"node-{node.node_id}"

    def _properties_file(self, node: Node) -> Path:
        return self._home(node) / "server.properties"

    def _output_file(self, node: Node) -> Path:
        return self._home(node) / "output.log"
