"""One upstream of many: its name, its clock and the IDs it gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable


class Instance:
    """IDs carry the name and a number, so that a test can say which upstream answered, and for the how-many-th time."""

    def __init__(self, name: str, now_s: Callable[[], float]) -> None:
        self.name = name
        self._now_s = now_s
        self._given: Counter[str] = Counter()

    def new_id(self, kind: str) -> str:
        """Return the next ID of a kind, such as ``msg_p1_3``."""
        return f"{kind}_{self.name}_{self._next(kind)}"

    def new_input_id(self, kind: str) -> str:
        """Return an ID for an item that came without one; it takes no number of the answers."""
        return f"{kind}_{self.name}_in{self._next('in')}"

    def new_completion_id(self) -> str:
        """Return the next ID of a chat completion, such as ``chatcmpl-p1-3``."""
        return f"chatcmpl-{self.name}-{self._next('chatcmpl')}"

    def now(self) -> int:
        """Return the seconds since 1970."""
        return int(self._now_s())

    def _next(self, kind: str) -> int:
        self._given[kind] += 1
        return self._given[kind]
