"""Processes of ``turnledger`` that are measured from outside, and a ledger on Kafka for them."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.in_process import ALIAS_KEY, kafka, prepare_kafka


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[str]:
    """Run ``turnledger`` with these arguments and give the address that its first line ends with."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TURNLEDGER_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli", *arguments, stdout=subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode().strip()
        assert line.startswith("turnledger "), f"{arguments[0]} did not start; it says why on stderr"
        yield line.rsplit(" ", 1)[1]
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def ledger_on_kafka(bootstrap: str, directory: Path, prefix: str) -> Sequence[str]:
    """Make a ledger of its own on the broker and return the options with which a process uses it."""
    settings = await prepare_kafka(bootstrap, f"{prefix}-{secrets.token_hex(4)}")
    async with kafka(settings, directory / "formatting"):
        pass
    key_file = directory / "alias.key"
    key_file.write_text(ALIAS_KEY.secret.hex())
    return ["--bootstrap", bootstrap, "--prefix", settings.prefix, "--alias-key-file", str(key_file)]
