"""Settings of one ``turnledger process``; each may come from the environment as ``TURNLEDGER_<NAME>``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic_settings import SettingsConfigDict

from ledger.adapters.kafka_security import KafkaSecurity


class ProcessSettings(KafkaSecurity):
    """How one worker runs; none of these changes a verdict."""

    model_config = SettingsConfigDict(env_prefix="TURNLEDGER_", extra="forbid", frozen=True)

    kafka_bootstrap: str
    topic_prefix: str = "turnledger"
    process_directory: Path
    """Rows of this worker alone. They may be lost at any time."""
    checkpoint_key_file: Path
    """Hexadecimal digits of the Ed25519 key that signs checkpoints, the same for all workers; made when missing."""
    process_host: str = "127.0.0.1"
    process_port: int = 8430
    """Of metrics and status; 0: any free one."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
