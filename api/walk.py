"""Whom a request that is sent on is asked of, one after the other, and how long each is waited for.

The URLs of a range come in their order. When who answered under a name of several addresses is passed over, the name's
other addresses come before the next URL. Rules kept here:

- one deadline for all of them together: what one holder may take, whatever their number. Nobody is asked after it;
- an address that has answered is not asked again;
- ``unavailable`` is said of the ledger rather than of a process, and often after a deadline of the holder's own. Who is
  asked next mostly says the same, after as long: so one is only while all of its own deadlines are left to it, which
  is within the first ``margin_s``. An address of a name is one more holder here, as a URL of a range is. A caller who
  waits for one answer and the margin gets a second opinion, and not one per address;
- a read whose holder is silent leaves half of the margin to the next. An address that is silent is not followed by the
  others of its name: the driver does not say which it was, so that it would be waited for once more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from api.connections import Address, Connections
from api.errors import UNAVAILABLE

CONNECT_TIMEOUT_S = 1.0
"""For one URL, with its name's resolution and all its addresses: holders are in one network. A range of two that are
both cut off is answered within the default deadline of a read. An address that is asked by itself has as much again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One that is asked."""

    url: str
    address: Address | None = None
    """Of the URL's name; None: the driver chooses."""


class Walk:
    """The way of one request through the holders of its range."""

    def __init__(
        self, urls: Iterable[str], connections: Connections, *, answers_within_s: float, margin_s: float
    ) -> None:
        """``answers_within_s``: what one holder may take by its own deadlines; ``margin_s``: what all together may take
        above it, for the network, a pause of theirs, and those that are passed over."""
        self._targets = [Target(url=url) for url in urls]
        self._connections = connections
        self._answers_within_s = answers_within_s
        self._margin_s = margin_s
        self._ends_at_s = time.monotonic() + answers_within_s + margin_s

    @property
    def idle_timeout_s(self) -> float:
        """For how long an answer that has begun may pause."""
        return self._answers_within_s + self._margin_s

    @property
    def is_cut_short(self) -> bool:
        """Whether somebody is left for whom there is no time."""
        return bool(self._targets) and self._left_s <= 0

    def next(self) -> Target | None:
        """Return whom to ask; None: there is nobody, or no time."""
        return self._targets.pop(0) if self._targets and self._left_s > 0 else None

    def answer_timeout_s(self, *, reads: bool) -> float:
        """Return how long whoever was given last is waited for; ``reads``: another may be asked after it was silent."""
        if reads and self._targets:
            return min(self._left_s, self._answers_within_s + self._margin_s / 2)
        return self._left_s

    def connect_timeout_s(self, *, reads: bool) -> float:
        """Return which part of that a connection may take: half at most, since what is sent has to be answered."""
        return min(CONNECT_TIMEOUT_S, self.answer_timeout_s(reads=reads) / 2)

    async def goes_on(self, target: Target, word: str, *, answered_by: str | None = None) -> bool:
        """Return whether somebody is to be asked after ``target``, which is passed over for ``word``.

        The addresses of its name are, but for ``answered_by``, whose word it was; None: nobody has answered.
        """
        if word == UNAVAILABLE and self._left_s < self._answers_within_s:
            return False
        if target.address is None:
            timeout_s = min(CONNECT_TIMEOUT_S, max(0.0, self._left_s))
            found = await self._connections.addresses(target.url, timeout_s=timeout_s)
            self._targets[:0] = [Target(url=target.url, address=one) for one in found if str(one) != answered_by]
        return bool(self._targets)

    @property
    def _left_s(self) -> float:
        return self._ends_at_s - time.monotonic()
