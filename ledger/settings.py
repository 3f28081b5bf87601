"""Settings of one process, and where its ledger is by default.

Nothing here may change a verdict: limits and lifetimes are in the log's policy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ledger.errors import InvalidInput


def default_directory() -> Path:
    """Return where the embedded ledger of this user is (XDG Base Directory Specification)."""
    data_home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data_home).expanduser() / "turnledger"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """Deadlines and freshness of one process; seconds."""

    commit_timeout_s: float = 5.0
    """After it a commit is ``Unknown``. Long enough for a broker's leader to move (2 to 5 s were measured)."""
    read_timeout_s: float = 2.0
    """After it a read is ``Unavailable``; a client would rather retry on another replica."""
    read_index_timeout_s: float = 1.0
    """For one request of an end offset; after it the next one is asked with fresh metadata."""
    max_staleness_s: float = 1.0
    """How long ago the end of a partition may have been confirmed for a continuation look-up to be answered at once:
    the time for which a very recent deletion can be missed."""
    tick_interval_s: float = 1.0
    """At most one clock tick per partition and interval is appended by this process."""
    commit_window_ms: int = 12 * 3_600_000
    """How long after its ``begun_at`` a commit may be retried. Half of the policy's ``event_window_max_ms``, so that
    a router whose clock is ahead is not refused."""
    abandon_retry_s: float = 1.0
    """Between attempts to write abandonments that could not be written."""
    reporter_name: str | None = None
    """On Kafka: what people call this replica; None: the host's name."""
    report_interval_s: float = 60.0
    """On Kafka: at most between two reports of what this replica holds of a partition."""
    digest_interval_s: float = 3_600.0
    """On Kafka: between two digests of all rows of one partition, which others compare with theirs."""

    def __post_init__(self) -> None:
        for name in (
            "commit_timeout_s",
            "read_timeout_s",
            "read_index_timeout_s",
            "tick_interval_s",
            "abandon_retry_s",
            "report_interval_s",
            "digest_interval_s",
        ):
            if getattr(self, name) <= 0:
                raise InvalidInput(name, "must be above 0")
        if self.max_staleness_s < 0:
            raise InvalidInput("max_staleness_s", "must not be negative")
        if self.commit_window_ms < 1_000:
            raise InvalidInput("commit_window_ms", "must be at least 1000")
