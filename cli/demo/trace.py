"""The demo's traffic: a slice of a public trace of a chat service, with made-up text of the traced lengths."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib import resources
from typing import Any

CHARACTERS_PER_TOKEN = 4
"""About what English has."""
WORDS = tuple(
    "the ledger keeps every turn of a conversation where each router can find it, whichever replica took it and "  # noqa: SIM905  # prose
    "however many of them have gone since, so that a client may continue what another began.".split()
)
TARGETS = ("alpha", "beta", "gamma")
"""Providers between which the demo's routers choose."""
NATIVE_EVERY = 4
"""Of this many conversations one is native: its state lives at its provider only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One traced request and where it stands in its conversation."""

    arrival_ms: int
    """Since the beginning of the trace."""
    turn: int
    parent_turn: int | None
    new_input_tokens: int
    output_tokens: int
    root_turn: int
    """The first turn of its conversation."""
    depth: int
    """Turns before it in its chain; continuations alternate between replicas by it."""

    @property
    def response_id(self) -> str:
        return response_id(self.turn)

    @property
    def previous_response_id(self) -> str | None:
        return None if self.parent_turn is None else response_id(self.parent_turn)

    @property
    def native(self) -> bool:
        """Whether the turn's state lives at its provider only; the same for a whole conversation."""
        return self.root_turn % NATIVE_EVERY == 0

    @property
    def target(self) -> str:
        """The provider that serves it; one conversation stays with one."""
        return TARGETS[self.root_turn % len(TARGETS)]

    def content(self) -> dict[str, Any]:
        """Return made-up items of the traced lengths."""
        return {
            "input": [{"type": "message", "role": "user", "content": text(self.turn, self.new_input_tokens)}],
            "output": [{"type": "message", "role": "assistant", "content": text(-self.turn, self.output_tokens)}],
        }


def response_id(turn: int) -> str:
    """Return the ID of a traced turn's answer."""
    return f"resp_{turn:05d}"


def read_trace() -> list[Request]:
    """Return the slice that ships with the command, in order of arrival: parents before their children."""
    requests: dict[int, Request] = {}
    source = resources.files("cli") / "data" / "conversation_trace.csv"
    with source.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            turn = int(row["turn"])
            parent = requests[int(row["parent_turn"])] if row["parent_turn"] else None
            requests[turn] = Request(
                arrival_ms=int(row["arrival_ms"]),
                turn=turn,
                parent_turn=None if parent is None else parent.turn,
                new_input_tokens=int(row["new_input_tokens"]),
                output_tokens=int(row["output_tokens"]),
                root_turn=turn if parent is None else parent.root_turn,
                depth=0 if parent is None else parent.depth + 1,
            )
    return list(requests.values())


def text(seed: int, tokens: int) -> str:
    """Return made-up text of ``tokens`` tokens; the same for the same seed."""
    length = tokens * CHARACTERS_PER_TOKEN
    start = seed % len(WORDS)
    cycle = " ".join(WORDS[start:] + WORDS[:start]) + " "
    return (cycle * (length // len(cycle) + 1))[:length]
