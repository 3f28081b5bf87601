"""The official JavaScript SDK against two replicas: once, so that nothing of the gateway fits the Python SDK alone.

The SDK is installed once for each lock file into the user's cache, beside the broker's. Where there is no ``node``
there is no JavaScript client either, and only then the test is skipped.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.gateway.world import World, key_of

SOURCE = Path(__file__).with_name("javascript")
INSTALL_TIMEOUT_S, RUN_TIMEOUT_S = 100, 60
INSTALLED = ("package.json", "package-lock.json", ".npmrc")


def installed() -> Path:
    """Return the directory of the installed SDK; a half-made one is never seen, since it comes by one rename."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnledger"
    cache.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(b"".join((SOURCE / name).read_bytes() for name in INSTALLED)).hexdigest()[:8]
    directory = cache / f"javascript-{digest}"
    with (cache / f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.is_dir():
            partial = cache / f"{directory.name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            for name in INSTALLED:
                shutil.copy(SOURCE / name, partial)
            run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], partial, timeout_s=INSTALL_TIMEOUT_S)
            partial.rename(directory)
    return directory


def run(command: list[str], directory: Path, *, timeout_s: int) -> str:
    """Run a command to its end and return what it wrote."""
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed, so no JavaScript client can run")
async def test_official_javascript_sdk_continues_on_the_other_replica(world: World, tmp_path: Path) -> None:
    # Node looks for packages from the script's own place upwards.
    (tmp_path / "node_modules").symlink_to(await asyncio.to_thread(installed) / "node_modules")
    shutil.copy(SOURCE / "smoke.mjs", tmp_path)
    urls = [replica.url for replica in world.replicas]
    command = ["node", "smoke.mjs", *urls, key_of(world.alice)]
    written = await asyncio.to_thread(run, command, tmp_path, timeout_s=RUN_TIMEOUT_S)
    assert written == "ok\n"
