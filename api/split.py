"""Requests of many parts, some of which concern partitions that other replicas hold: asked there, and put together.

Each partition gets one request with the parts that are its, in their order, also where one replica holds several. A
part is answered as if it had been sent alone: a holder that cannot be asked is the error of its parts only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.requests import Request

from api.errors import status_and_body
from api.forwarding import Forwarding, refuse_again
from api.requests import JSON
from api.service import Service
from ledger.bodies import BatchResult, ErrorAnswer, ErrorBody, LookupResult
from ledger.errors import LedgerError, Unavailable, Unknown
from ledger.turn import Partition, Scope

R = TypeVar("R", BatchResult, LookupResult)

_error = msgspec.json.Decoder(ErrorAnswer)


@dataclass(slots=True, kw_only=True)
class Split(Generic[R]):
    """The parts of one request that others answer."""

    service: Service
    request: Request
    result: type[R]
    decode: Callable[[bytes], list[R]]
    """Reads the results in an answer. Raises ``msgspec.DecodeError``."""
    listed_as: str
    """Name of the list that the parts are in, for the fields of their errors."""
    body_of: Callable[[Sequence[int]], bytes]
    """Makes the body of a request of some of the parts."""
    answers_within_s: Callable[[Sequence[int]], float]
    """What a holder may take for some of the parts, by its deadlines."""
    event_id_of: Callable[[int], str] | None = None
    """Names the change that a part is; None: nothing is changed by the request, so it may be sent twice."""
    _parts: dict[Partition, list[int]] = field(default_factory=dict)

    def takes(self, index: int, scope: Scope) -> bool:
        """Take a part that another replica is to answer; False: it is this one's.

        Raises ``NotHeld`` when another replica has sent the request here: its parts are of one partition.
        """
        ledger = self.service.ledger
        partition = ledger.reader.partition(scope)
        if self.service.forwarding is None or partition in ledger.replica.held:
            return False
        refuse_again(self.request, partition)
        self._parts.setdefault(partition, []).append(index)
        return True

    async def results(self) -> dict[int, R]:
        """Return the results of the parts that were taken, by index."""
        forwarding, results = self.service.forwarding, dict[int, R]()
        if forwarding is not None:
            asked = [self._ask(forwarding, partition, indexes) for partition, indexes in self._parts.items()]
            for answered in await asyncio.gather(*asked):
                results |= answered
        return results

    def failed(self, index: int, error: LedgerError) -> R:
        """Return the result of a part that ended with an error."""
        status, body = status_and_body(error, f"{self.listed_as}[{index}].")
        return self.result(index=index, status=status, error=body)

    async def _ask(self, forwarding: Forwarding, partition: Partition, indexes: Sequence[int]) -> dict[int, R]:
        try:
            status, answer = await forwarding.ask(
                partition,
                self.request,
                self.body_of(indexes),
                JSON,
                reads=self.event_id_of is None,
                answers_within_s=self.answers_within_s(indexes),
            )
            return self._read(status, answer, indexes)
        except Unknown as error:
            assert self.event_id_of is not None, "what only reads has no outcome"
            return {index: self.failed(index, Unknown(self.event_id_of(index), error.detail)) for index in indexes}
        except LedgerError as error:
            return {index: self.failed(index, error) for index in indexes}

    def _read(self, status: int, answer: bytes, indexes: Sequence[int]) -> dict[int, R]:
        """Return a holder's results under the indexes that the parts have here."""
        try:
            if status != 200:
                error = _error.decode(answer).error
                return {index: self.result(index=index, status=status, error=error) for index in indexes}
            results = self.decode(answer)
            if sorted(one.index for one in results) != list(range(len(indexes))):
                raise msgspec.ValidationError("it answers other parts than it was sent")
        except (msgspec.DecodeError, UnicodeDecodeError):
            message = f"HTTP {status} with an answer that is none to what was asked"
            raise Unavailable("holder", message) if self.event_id_of is None else Unknown("", message) from None
        return {indexes[one.index]: self._renumbered(one, indexes[one.index]) for one in results}

    def _renumbered(self, result: R, index: int) -> R:
        error = result.error
        if error is not None and error.field is not None:
            error = _renamed(error, f"{self.listed_as}[{result.index}].", f"{self.listed_as}[{index}].")
        return replace(result, index=index, error=error)


def _renamed(error: ErrorBody, before: str, after: str) -> ErrorBody:
    assert error.field is not None, "asked by the caller"
    message = error.message
    if message.startswith(before):
        message = f"{after}{message.removeprefix(before)}"
    return replace(error, field=f"{after}{error.field.removeprefix(before)}", message=message)
