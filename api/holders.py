"""Who holds which partitions: the static map that a partial replica is given.

::

    0-7=http://a:8420|http://a2:8420,8-15=https://b.internal:8420

Each range has one base URL or more, asked in this order. A host may be a DNS name of several addresses. The same map
may be given to every replica of a fleet: what it says of partitions that a replica holds itself is not used.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from api.urls import URL_BYTES_MAX, problem_of
from ledger.errors import InvalidInput
from ledger.holding import parse_range, partitions_text
from ledger.turn import Partition

SETTING = "holders"
"""Field of every ``InvalidInput`` that is raised here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderRange:
    """Some consecutive partitions, and who holds them."""

    partitions: range
    urls: tuple[str, ...]
    """Base URLs without a slash at their end, in the order in which they are asked."""

    def __str__(self) -> str:
        return partitions_text(self.partitions)


class Holders:
    """The map."""

    def __init__(self, ranges: Sequence[HolderRange]) -> None:
        """Raises ``InvalidInput`` for ranges that overlap."""
        self._by_partition: dict[int, HolderRange] = {}
        for one in ranges:
            for number in one.partitions:
                if number in self._by_partition:
                    raise InvalidInput(SETTING, f"partition {number} is in two ranges; give each range once")
                self._by_partition[number] = one

    @classmethod
    def parse(cls, text: str) -> Holders:
        """Return the map that a setting says. Raises ``InvalidInput``."""
        return cls([_range(part) for part in text.split(",")])

    def of(self, partition: Partition) -> HolderRange:
        """Return the range that a partition is in; ``check`` has seen to it that there is one."""
        return self._by_partition[partition]

    def check(self, held: Collection[Partition], partition_count: int) -> None:
        """Raise ``InvalidInput`` unless every partition is held here or by somebody, and there are no others."""
        unknown = [number for number in self._by_partition if number >= partition_count]
        if unknown:
            reason = f"the log has the partitions 0 to {partition_count - 1}, not {partitions_text(unknown)}"
            raise InvalidInput(SETTING, reason)
        missing = [number for number in range(partition_count) if number not in held]
        missing = [number for number in missing if number not in self._by_partition]
        if missing:
            raise InvalidInput(
                SETTING,
                f"must say who holds partitions {partitions_text(missing)}, which this replica does not hold; "
                "add '<range>=<url>' for them",
            )


def _range(text: str) -> HolderRange:
    partitions, separator, listed = text.partition("=")
    if not separator:
        raise InvalidInput(SETTING, f"'{text.strip()}' must be <range>=<url>, such as 0-7=http://a:8420")
    urls = [url.strip() for url in listed.split("|")]
    for url in urls:
        problem = problem_of(url)
        if len(url) > URL_BYTES_MAX:
            problem = f"must have at most {URL_BYTES_MAX} bytes"
        if problem is not None:
            # Never repeated: a password may be in it.
            raise InvalidInput(SETTING, f"a URL of the range {partitions.strip()} {problem}")
    bases = tuple(url.rstrip("/") for url in urls)
    if len(set(bases)) < len(bases):
        raise InvalidInput(SETTING, f"the range {partitions.strip()} names a URL twice")
    return HolderRange(partitions=parse_range(partitions, SETTING), urls=bases)
