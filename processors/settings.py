"""Settings of one ``turnledger process``; each may come from the environment as ``TURNLEDGER_<NAME>``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from ledger.adapters.kafka_security import KafkaSecurity
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.settings import default_directory


class ProcessSettings(KafkaSecurity):
    """How one worker runs; none of these changes a verdict."""

    model_config = SettingsConfigDict(env_prefix="TURNLEDGER_", extra="forbid", frozen=True)

    kafka_bootstrap: str
    topic_prefix: str = "turnledger"
    process_directory: Path = Field(default_factory=lambda: default_directory().with_name("turnledger-process"))
    """Rows of this worker alone. They may be lost at any time."""
    checkpoint_key_file: Path = Path("checkpoint.key")
    """Hexadecimal digits of the Ed25519 key that signs checkpoints, the same for all workers; made when missing."""
    process_host: str = "127.0.0.1"
    process_port: int = Field(default=8430, ge=0, le=65535)
    """Of metrics and status; 0: any free one."""
    sweep_interval_s: float = Field(default=600.0, gt=0)
    """Between two looks for orphaned contents in one partition."""
    reporter_name: str | None = None
    """What people call this worker; None: the host's name."""
    report_interval_s: float = Field(default=60.0, gt=0)
    """At most between two reports of what this worker holds of a partition."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def kafka_settings(self) -> KafkaSettings:
        """Return where the topics are. Raises ``InvalidInput``."""
        return KafkaSettings(bootstrap=self.kafka_bootstrap, prefix=self.topic_prefix, security=self.kafka_options())
