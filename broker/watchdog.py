"""Ends what a launcher started, once the launcher lets go of it or is gone.

The launcher tells a small process of its own, over a pipe, what it has started. The end of that pipe is the order to
clean up: it comes when the launcher stops its cluster, and equally when the launcher crashes or is killed with SIGKILL.
So there is one way of cleaning up, and it needs neither signal handlers nor atexit, works on Linux and macOS, and does
not depend on which thread started a broker (as Linux's PR_SET_PDEATHSIG does).
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from broker.errors import BrokerError


class Watchdog:
    """The launcher's end of the pipe."""

    def __init__(self, directory: Path) -> None:
        """Start the process; it will remove the directory as the last thing it does."""
        command = [sys.executable, "-m", "broker.watchdog", str(directory)]
        self._process = subprocess.Popen(
            command,
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            # Ctrl-C in a terminal goes to the launcher, which then lets go.
            start_new_session=True,
        )

    def watch_process(self, pid: int) -> None:
        """Have the process killed at the end."""
        self._say(f"process {pid}")

    def forget_process(self, pid: int) -> None:
        """Leave the process alone from now on: it has ended, and its PID may come to mean another."""
        self._say(f"forget {pid}")

    def watch_container(self, name: str) -> None:
        """Have the Docker container removed at the end."""
        self._say(f"container {name}")

    def watch_network(self, name: str) -> None:
        """Have the Docker network removed at the end, after the containers."""
        self._say(f"network {name}")

    def let_go(self) -> None:
        """Have everything cleaned up, and wait for it."""
        assert self._process.stdin
        self._process.stdin.close()
        if self._process.wait() != 0:
            raise BrokerError("The broker's watchdog failed; its message is above")

    def _say(self, line: str) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise BrokerError("The broker's watchdog has ended before the launcher") from error


def clean_up_at_end_of(lines: Iterable[str], directory: Path) -> None:
    """Read what was started until the lines end, then end it all and remove the directory."""
    processes: dict[str, psutil.Process] = {}
    containers: list[str] = []
    networks: list[str] = []
    for line in lines:
        word, name = line.split()
        match word:
            case "process":
                # psutil remembers the start time too, and never signals another process that got the same PID.
                if psutil.pid_exists(int(name)):
                    processes[name] = psutil.Process(int(name))
            case "forget":
                processes.pop(name, None)
            case "container":
                containers.append(name)
            case "network":
                networks.append(name)
            case _:
                raise AssertionError(f"the launcher never says {word}")
    for process in processes.values():
        _kill(process)
    for container in containers:
        subprocess.run(["docker", "rm", "--force", "--volumes", container], stdout=subprocess.DEVNULL, check=True)
    for network in networks:
        subprocess.run(["docker", "network", "rm", network], stdout=subprocess.DEVNULL, check=True)
    shutil.rmtree(directory)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
        # A zombie is the launcher's to reap; it writes no more files either.
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
    except psutil.NoSuchProcess:
        return


if __name__ == "__main__":
    clean_up_at_end_of(sys.stdin, Path(sys.argv[1]))
