"""Usage: tokens by length, and a prompt cache that shows whether a request began with bytes that were seen before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

CHARACTERS_PER_TOKEN = 4
PREFIXES_MAX = 1_000_000
"""Prefixes that are remembered; then all are forgotten, as a cache may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a prompt counts for."""

    tokens: int
    cached: int
    """Tokens of the longest prefix, in whole messages, that an earlier prompt began with."""


def tokens(length: int) -> int:
    """Return the tokens of a text of this length."""
    return -(-length // CHARACTERS_PER_TOKEN)


class PromptCache:
    """The prefixes of all prompts of one instance."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def count(self, head: bytes, messages: Iterable[bytes]) -> Prompt:
        """Count a prompt and remember it. ``head``: what stands before the messages, such as tools; no tokens."""
        if len(self._seen) > PREFIXES_MAX:
            self._seen.clear()
        running = blake2b(head, digest_size=16)
        total = cached = 0
        for message in messages:
            running.update(b"%d:" % len(message))
            running.update(message)
            total += tokens(len(message))
            prefix = running.digest()
            if prefix in self._seen:
                cached = total
            else:
                self._seen.add(prefix)
        return Prompt(tokens=total, cached=cached)
