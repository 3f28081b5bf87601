"""The launcher on real brokers: ready means ready, a given broker is left alone, and nothing outlives its owner."""

import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from broker.errors import BrokerError
from broker.launcher import Cluster
from broker.readiness import check_answers
from broker.settings import ClusterSettings

REPOSITORY = Path(__file__).parents[2]


async def create_topic(bootstrap: str, *, copies: int) -> str:
    topic = f"launcher-{uuid.uuid4()}"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        response = await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=copies)])
    finally:
        await admin.close()
    assert [error for _, error, *_ in response.topic_errors] == [0]
    return topic


async def append(bootstrap: str, topic: str, value: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True) as producer:
        await producer.send_and_wait(topic, value)


async def first_value(bootstrap: str, topic: str) -> bytes | None:
    async with AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        value: bytes | None = (await consumer.getone()).value
        return value


def own_processes() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


async def test_a_ready_broker_stores_a_record_and_returns_it(kafka_bootstrap: str) -> None:
    topic = await create_topic(kafka_bootstrap, copies=1)
    await append(kafka_bootstrap, topic, b"turn")
    assert await first_value(kafka_bootstrap, topic) == b"turn"


def test_a_given_broker_is_used_and_nothing_is_started(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP", kafka_bootstrap)
    monkeypatch.setenv("PATH", str(tmp_path))
    before = own_processes()
    with Cluster.from_environment() as cluster:
        assert cluster.bootstrap == kafka_bootstrap
        assert own_processes() == before
        with pytest.raises(BrokerError, match="was not started here"):
            cluster.kill(0)
    check_answers(kafka_bootstrap)


def test_a_given_broker_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # Port 1 is reserved for a service that nobody runs.
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "127.0.0.1:1")
    with pytest.raises(BrokerError, match=r"KAFKA_BOOTSTRAP=127\.0\.0\.1:1 does not answer"):
        Cluster.from_environment().start()


def test_without_java_maven_and_docker_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    before = own_processes()
    with pytest.raises(BrokerError) as failure:
        Cluster().start()
    message = str(failure.value)
    assert "install Java 17 or later and Maven (no java on PATH, no mvn on PATH)" in message
    assert "install Docker and start its daemon (no docker on PATH)" in message
    assert "KAFKA_BOOTSTRAP=host:port" in message
    assert own_processes() == before


def test_a_broker_that_cannot_start_shows_its_last_lines_and_leaves_nothing() -> None:
    before = own_processes()
    with pytest.raises(BrokerError, match="Too small maximum heap"):
        Cluster(ClusterSettings(heap_mib_max=1)).start()
    assert own_processes() == before


async def test_a_killed_broker_comes_back_with_its_data_and_port() -> None:
    with Cluster() as cluster:
        bootstrap = cluster.bootstrap
        topic = await create_topic(bootstrap, copies=1)
        await append(bootstrap, topic, b"before the kill")
        cluster.kill(0)
        with pytest.raises(BrokerError, match="does not answer"):
            check_answers(bootstrap)
        cluster.restart(0)
        assert cluster.bootstrap == bootstrap
        assert await first_value(bootstrap, topic) == b"before the kill"


def test_a_launcher_killed_with_sigkill_leaves_no_broker_behind() -> None:
    command = [sys.executable, "-m", "broker", "up"]
    environment = {name: value for name, value in psutil.Process().environ().items() if name != "KAFKA_BOOTSTRAP"}
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout
        bootstrap = launcher.stdout.readline().strip()
        check_answers(bootstrap)
        started = psutil.Process(launcher.pid).children(recursive=True)
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
    _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []
    with pytest.raises(BrokerError, match="does not answer"):
        check_answers(bootstrap)


def test_run_gives_the_program_the_broker_and_returns_its_exit_code(kafka_bootstrap: str) -> None:
    program = "import os, sys; print(os.environ['KAFKA_BOOTSTRAP']); sys.exit(3)"
    done = subprocess.run(
        [sys.executable, "-m", "broker", "run", "--", sys.executable, "-c", program],
        cwd=REPOSITORY,
        env={**psutil.Process().environ(), "KAFKA_BOOTSTRAP": kafka_bootstrap},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, f"{kafka_bootstrap}\n", "")
