"""What the upstream was asked, for tests: every request to ``/v1/``, as it came."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

RECORDED_MAX = 10_000
"""Requests that are kept; the oldest go first, so that a benchmark does not fill the memory."""


@dataclass(slots=True, kw_only=True)
class Recorded:
    """One request. Changes until it has ended."""

    method: str
    path: str
    query: dict[str, str]
    raw: bytes
    """The body, byte for byte."""
    headers: dict[str, str]
    """``content-type``, ``idempotency-key``, and of ``authorization`` the scheme only: no key is ever kept."""
    status: int | None = None
    """Of the answer; None: it has not begun, or the connection was closed before it could."""
    left: bool = False
    """The client left before the end of the answer."""
    ended: bool = False

    @property
    def body(self) -> Any:
        """The JSON of the body, None when it is not JSON."""
        try:
            return msgspec.json.decode(self.raw)
        except msgspec.DecodeError:
            return None

    @property
    def text(self) -> str:
        """The body as text."""
        return self.raw.decode("utf-8", "replace")

    def listed(self) -> dict[str, Any]:
        """Return what ``GET /recorded`` says about it."""
        return {
            "method": self.method,
            "path": self.path,
            "query": self.query,
            "headers": self.headers,
            "body": self.body,
            "raw": self.text,
            "status": self.status,
            "left": self.left,
            "ended": self.ended,
        }


@dataclass(slots=True)
class Recorder:
    """The requests in the order in which their bodies had arrived."""

    requests: deque[Recorded] = field(default_factory=lambda: deque(maxlen=RECORDED_MAX))

    def add(self, recorded: Recorded) -> None:
        """Keep one more."""
        self.requests.append(recorded)

    def clear(self) -> None:
        """Forget all."""
        self.requests.clear()
