"""The load: turns of many principals as a router commits them, and logs to rebuild from."""

from __future__ import annotations

import itertools

from ledger.ledger import wall_clock_ms
from ledger.turn import Content, Owner, Scope, Selector, SelectorKind, Turn

PRINCIPALS = 64
"""Enough to spread over all partitions."""
NATIVE = Owner(native=True, target="provider-a", digest=b"\x01" * 16)
PORTABLE = Owner(native=False, target="provider-c")
TEXT = "The quick brown fox jumps over the lazy dog. " * 45
"""About 2 kB: a question or an answer of 500 tokens."""


class Load:
    """Makes turns; numbers of one load never repeat."""

    def __init__(self, seed: int, *, scopes: list[Scope] | None = None) -> None:
        self._seed = seed
        self._numbers = itertools.count()
        self._scopes = scopes or [
            Scope(namespace="bench", route="default", principal=f"principal-{seed}-{index}")
            for index in range(PRINCIPALS)
        ]

    def response_id(self, number: int) -> str:
        """Return the ID of turn ``number``."""
        return f"resp_{self._seed}_{number:032x}"

    def scope(self, number: int) -> Scope:
        """Return the scope of turn ``number``: turns of one principal follow each other."""
        return self._scopes[number % len(self._scopes)]

    def native(self) -> Turn:
        """Return the next native turn; it continues its principal's previous one four times out of five."""
        number = next(self._numbers)
        parent = number - PRINCIPALS
        continues = parent >= 0 and number // PRINCIPALS % 5 != 0
        return Turn(
            scope=self.scope(number),
            event_id=f"event-{number}",
            response_id=self.response_id(number),
            previous_response_id=self.response_id(parent) if continues else None,
            owner=NATIVE,
            begun_at_ms=wall_clock_ms(),
        )

    def portable(self) -> Turn:
        """Return the next portable turn with about 4 kB of content; it begins a chain of its own."""
        number = next(self._numbers)
        return Turn(
            scope=self.scope(number),
            event_id=f"event-{number}",
            response_id=self.response_id(number),
            owner=PORTABLE,
            begun_at_ms=wall_clock_ms(),
            content=Content(input=[{"role": "user", "content": TEXT}], output=[{"role": "assistant", "content": TEXT}]),
        )

    def selector(self, number: int) -> Selector:
        """Return the selector of the response of turn ``number``."""
        return Selector(scope=self.scope(number), kind=SelectorKind.RESPONSE, id=self.response_id(number))
