"""What the Kafka adapters need to know: where the brokers are, what the topics are called, and how long to wait.

The timeouts are shorter than aiokafka's defaults on purpose: with those, a tail stayed silent for 37 s behind a paused
broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ledger.errors import InvalidInput

SECURITY_OPTIONS = frozenset(
    {
        "security_protocol",
        "ssl_context",
        "sasl_mechanism",
        "sasl_plain_username",
        "sasl_plain_password",
        "sasl_kerberos_service_name",
        "sasl_kerberos_domain_name",
        "sasl_oauth_token_provider",
    }
)
"""Names of aiokafka's own options that are passed through; everything else about a client is decided here."""

TURNS, CONTENT, TABLES, LIFECYCLE, CHECKPOINTS = "turns", "content", "tables", "lifecycle", "checkpoints"
REPORTS = "reports"
TOPICS = (TURNS, CONTENT, TABLES, LIFECYCLE, CHECKPOINTS, REPORTS)
"""The topics, without their prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """One deployment's Kafka."""

    bootstrap: str
    """host:port, separated by commas."""
    prefix: str = "turnledger"
    """First part of every topic's name; two ledgers on one cluster differ in it."""
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options of aiokafka named in ``SECURITY_OPTIONS``; not shown, since they hold secrets."""
    request_timeout_ms: int = 1500
    """How long a client waits for one answer before it closes the connection and looks for another leader. Above
    ``fetch_wait_ms_max``, since a fetch is allowed to take that long."""
    end_request_timeout_ms: int = 750
    """The same for requests that a leader answers at once; a read waits for them, so it is shorter."""
    metadata_max_age_ms: int = 1000
    """How old a client's idea of the leaders may become while nothing fails."""
    retry_backoff_ms: int = 50
    """Pause before a failed request is repeated."""
    fetch_wait_ms_max: int = 500
    """How long a broker may hold a fetch while nothing arrives; new records are sent at once."""
    tail_records_max: int = 500
    """Records that one ``Tail.next`` returns at most."""
    producer_start_timeout_s: float = 5.0
    """A producer that could not connect within this time is given up and another one is tried."""
    producer_stall_s: float = 5.0
    """A batch unanswered for this long makes a new producer worth trying; above three request timeouts."""

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.security) - SECURITY_OPTIONS):
            raise InvalidInput("security", f"has unknown options: {', '.join(unknown)}")
        if self.request_timeout_ms <= self.fetch_wait_ms_max:
            raise InvalidInput("request_timeout_ms", "must be above fetch_wait_ms_max")

    def topic(self, name: str) -> str:
        """Return the full name of one of the topics."""
        return f"{self.prefix}.{name}"

    def client_options(self) -> dict[str, Any]:
        """Return the options that every aiokafka client gets."""
        return {
            "bootstrap_servers": self.bootstrap,
            "request_timeout_ms": self.request_timeout_ms,
            "metadata_max_age_ms": self.metadata_max_age_ms,
            "retry_backoff_ms": self.retry_backoff_ms,
            **self.security,
        }
