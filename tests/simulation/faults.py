"""What goes wrong between one replica and everything it depends on; every decision is drawn from the seed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from ledger.adapters.memory import AppendFate, AppendOutcome, MemoryViewStore
from ledger.errors import StoreFailed
from ledger.turn import Partition, Position

WRITES_LOST_MAX = 12
"""How many of the newest writes a crash may take back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How likely each fault is while this weather lasts; probabilities per call, seconds on average."""

    refuse: float = 0.0
    unacknowledged: float = 0.0
    late: float = 0.0
    duplicate: float = 0.0
    append_delay_s: float = 0.002
    late_delay_s: float = 5.0
    freeze: float = 0.0
    """That a tail stops seeing new records for a while."""
    freeze_s: float = 0.3
    end_fails: float = 0.0
    end_delay_s: float = 0.001
    content_fails: float = 0.0
    content_freeze: float = 0.0
    store_fails: float = 0.0


CALM = Weather(freeze=0.1, freeze_s=0.05)
"""Even then a tail is behind now and then."""
HEALED = Weather()
WEATHERS: dict[str, Weather] = {
    "calm": CALM,
    "lossy": Weather(refuse=0.1, unacknowledged=0.2, late=0.15, duplicate=0.15, end_fails=0.1, append_delay_s=0.02),
    "laggy": Weather(
        freeze=0.3, freeze_s=0.6, end_delay_s=0.08, content_freeze=0.1, append_delay_s=0.05, unacknowledged=0.05
    ),
    "cut_off": Weather(
        refuse=0.6, unacknowledged=0.3, late=0.1, late_delay_s=20.0, end_fails=0.9, freeze=0.5, freeze_s=4.0
    ),
    "silent": Weather(freeze=0.2, freeze_s=4.0, unacknowledged=0.1, late=0.1),
    "failing_disk": Weather(store_fails=0.3, content_fails=0.3, unacknowledged=0.1),
}


class HostFaults:
    """One replica's weather, and what follows from it for the log (``LogFaults``)."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.weather = CALM
        self.on_append: Callable[[], None] | None = None
        """Called before an append is decided: a crash may be due right there."""
        self._lag = Lag(random)

    def append(self, partition: Partition) -> AppendFate:
        if self.on_append is not None:
            self.on_append()
        weather, draw = self.weather, self._random.random()
        delay_s = self._random.expovariate(1 / weather.append_delay_s)
        for outcome, chance in (
            (AppendOutcome.REFUSED, weather.refuse),
            (AppendOutcome.UNACKNOWLEDGED, weather.unacknowledged),
            (AppendOutcome.LATE, weather.late),
            (AppendOutcome.DUPLICATED, weather.duplicate),
        ):
            if draw < chance:
                if outcome is AppendOutcome.LATE:
                    delay_s = self._random.expovariate(1 / weather.late_delay_s)
                return AppendFate(outcome=outcome, delay_s=delay_s)
            draw -= chance
        return AppendFate(outcome=AppendOutcome.DELIVERED, delay_s=delay_s)

    def visible(self, partition: Partition, end: Position) -> Position:
        return self._lag.visible(partition, end, self.weather.freeze, self.weather.freeze_s)

    def end(self, partition: Partition) -> float | None:
        if self._random.random() < self.weather.end_fails:
            return None
        return self._random.expovariate(1 / self.weather.end_delay_s)

    def store_fails(self) -> bool:
        return self.weather.store_fails > 0 and self._random.random() < self.weather.store_fails


class HostContentFaults:
    """What the same weather does to contents (``ContentFaults``)."""

    def __init__(self, faults: HostFaults, random: Random) -> None:
        self._faults = faults
        self._random = random
        self._lag = Lag(random)

    def put(self, partition: Partition, chunks: int) -> int | None:
        return self._random.randint(0, chunks) if self._random.random() < self._faults.weather.content_fails else None

    def visible(self, partition: Partition, end: Position) -> Position:
        return self._lag.visible(partition, end, self._faults.weather.content_freeze, self._faults.weather.freeze_s)


class Lag:
    """A view of growing ends that stops now and then."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._seen: dict[Partition, Position] = {}
        self._frozen_until_s: dict[Partition, float] = {}

    def visible(self, partition: Partition, end: Position, chance: float, freeze_s: float) -> Position:
        seen = self._seen.get(partition, Position(0))
        if not chance:
            self._seen[partition] = end
            return end
        now_s = asyncio.get_running_loop().time()
        if now_s < self._frozen_until_s.get(partition, 0.0):
            return seen
        if seen < end and self._random.random() < chance:
            self._frozen_until_s[partition] = now_s + self._random.expovariate(1 / freeze_s)
            return seen
        self._seen[partition] = end
        return end


class CrashableStore(MemoryViewStore):
    """Rows of which a crash may lose the newest writes, and whose writes and reads may fail."""

    def __init__(self, fails: Callable[[], bool]) -> None:
        super().__init__()
        self._fails = fails
        self._undo: deque[dict[bytes, bytes | None]] = deque(maxlen=WRITES_LOST_MAX)

    def get(self, key: bytes) -> bytes | None:
        if self._fails():
            raise StoreFailed("the disk does not answer")
        return super().get(key)

    def scan(self, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        if self._fails():
            raise StoreFailed("the disk does not answer")
        return super().scan(lower, upper)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        if self._fails():
            raise StoreFailed("the disk is full")
        self._undo.append({key: MemoryViewStore.get(self, key) for key in changes})
        super().write(changes)

    def after_crash(self, writes_lost: int) -> CrashableStore:
        """Return the store as a crash leaves it: as of some earlier write."""
        left = type(self)(self._fails)
        left.copy_from(dict(self.copy().scan(b"", b"\xff" * 64)))
        for _ in range(min(writes_lost, len(self._undo))):
            left.copy_from(self._undo.pop())
        return left

    def copy_from(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Write without a fault and without a way back."""
        super().write(rows)
