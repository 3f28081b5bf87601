"""Closing of several: what one of them refuses keeps none of the others open, and hides no error that came before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import structlog

from ledger.errors import LedgerError

logger = structlog.get_logger("ledger.closing")


async def close_each(*closings: Callable[[], Awaitable[None]]) -> None:
    """Close each in this order, whatever those before it raised. Raises what the first raised; the rest is logged."""
    first: BaseException | None = None
    for close in closings:
        try:
            await close()
        except BaseException as error:  # noqa: BLE001 - the first is raised, once the others are closed
            if first is None:
                first = error
            else:
                logger.warning("not_closed", message=f"{type(error).__name__}: {error}")
    if first is not None:
        raise first


@contextmanager
def failure_logged() -> Iterator[None]:
    """Log what a closing refuses that was made necessary by an error: that error is the one to raise."""
    try:
        yield
    except LedgerError as error:
        logger.warning("not_closed", message=f"{type(error).__name__}: {error}")
