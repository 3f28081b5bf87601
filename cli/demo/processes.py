"""The service processes of the Kafka demo: started, killed and stopped by their process ID, and only those."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ledger.errors import Unavailable

READY = "turnledger serving on "
"""How the line begins that a service prints when it serves."""
START_TIMEOUT_S = 60.0
"""For a service to catch up with its log on a busy machine."""
STOP_TIMEOUT_S = 30.0
"""Above the time that a service gives to requests under way."""


@dataclass(slots=True, kw_only=True)
class ServiceProcess:
    """One ``turnledger serve``; the same state directory and port whenever it is started."""

    name: str
    directory: Path
    arguments: tuple[str, ...]
    """Of ``turnledger serve``, but for directory and port."""
    port: int = 0
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start it and return when it serves. Raises ``Unavailable`` with the last line of its log when it does
        not."""
        self.directory.mkdir(exist_ok=True)
        log_path = self.directory / "service.log"
        with log_path.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "cli", "serve", "--port", str(self.port), "--directory", str(self.directory)),
                *self.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # Ctrl-C is for the demo, which then stops its services in order.
                start_new_session=True,
            )
        assert self.process.stdout is not None, "it is a pipe"
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                line = (await self.process.stdout.readline()).decode()
        except TimeoutError:
            line = ""
        if not line.startswith(READY):
            last = log_path.read_text().strip().rpartition("\n")[2]
            raise Unavailable("closed", f"{self.name} did not start: {last or 'it said nothing'}")
        self.port = int(line.strip().rpartition(":")[2])

    async def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        assert self.process is not None, "it was started"
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> None:
        """Let it end in order; kill it when it does not. Does nothing when it has ended."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self.process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                await self.kill()
