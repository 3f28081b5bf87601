"""The broker's jar files, fetched by Maven once per version into the user's cache.

A download becomes visible by one rename, and callers take turns by a file lock, so nobody ever runs half of it.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.errors import BrokerError

_POM = Path(__file__).with_name("pom.xml")


def kafka_version() -> str:
    """Return the Kafka version that pom.xml names."""
    match = re.search(r"<kafka\.version>(.+?)</kafka\.version>", _POM.read_text(encoding="utf-8"))
    assert match, "pom.xml has the property kafka.version"
    return match[1]


def cached_jars() -> Path | None:
    """Return the directory of the jar files, or None if they have not been fetched."""
    directory = _cache() / _directory_name()
    return directory if directory.is_dir() else None


def fetch_jars() -> Path:
    """Return the directory of the jar files, fetching them first if need be; raises BrokerError."""
    cache = _cache()
    cache.mkdir(parents=True, exist_ok=True)
    directory = cache / _directory_name()
    with _lock(cache / f"{directory.name}.lock"):
        if not directory.is_dir():
            partial = cache / f"{directory.name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            _download(partial)
            partial.rename(directory)
    return directory


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnledger"


def _directory_name() -> str:
    # The digest makes a changed list of dependencies a new directory, though Kafka's version stays.
    return f"kafka-{kafka_version()}-{hashlib.sha256(_POM.read_bytes()).hexdigest()[:8]}"


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(directory: Path) -> None:
    command = ["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(_POM)]
    command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={directory}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise BrokerError(f"Maven could not fetch Kafka {kafka_version()}:\n{tail}")
