"""The launcher's command line: a broker for the time of one command, or until Ctrl-C."""

import argparse
import os
import signal
import subprocess
import sys
from types import FrameType

from broker.errors import BrokerError
from broker.launcher import Cluster
from broker.settings import ClusterSettings


def main() -> int:
    """Run the command that the arguments name and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m broker", description="A Kafka broker for development.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a program with KAFKA_BOOTSTRAP set, then stop the broker")
    up = commands.add_parser("up", help="print the bootstrap address and stay until Ctrl-C")
    for command in (run, up):
        command.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    run.add_argument("program", nargs="+", help="the program and its arguments, after --")
    arguments = parser.parse_args()

    # SIGTERM unwinds like Ctrl-C does, so that the child is stopped in order.
    signal.signal(signal.SIGTERM, _raise_exit)
    try:
        with Cluster.from_environment(ClusterSettings(brokers=arguments.brokers)) as cluster:
            if arguments.command == "run":
                return _run(arguments.program, cluster.bootstrap)
            print(cluster.bootstrap, flush=True)
            signal.pause()
            return 0
    except BrokerError as error:
        print(f"broker: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run(program: list[str], bootstrap: str) -> int:
    environment = {**os.environ, "KAFKA_BOOTSTRAP": bootstrap}
    try:
        child = subprocess.Popen(program, env=environment)
    except OSError as error:
        raise BrokerError(f"{program[0]} cannot be run: {error.strerror}") from error
    try:
        code = _wait_through_interrupts(child)
    except SystemExit:
        child.terminate()
        child.wait()
        raise
    # A shell's convention for a program ended by a signal.
    return 128 - code if code < 0 else code


def _wait_through_interrupts(child: subprocess.Popen[bytes]) -> int:
    # Ctrl-C reaches the child too, and the child may need the broker to end well.
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue


def _raise_exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
