"""Structured logs of a service process: one JSON object a line, on stderr.

No ID and no content reaches a line. The ledger's own errors carry none; an exception of anything else may, so its text
is left out and only its type and place are logged.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any

import structlog
from structlog.typing import Processor

FRAMES_MAX = 8
"""Innermost frames of an exception that are logged."""

_levels = logging.getLevelNamesMapping()


def configure(level: str) -> None:
    """Send the logs of this process to stderr from ``level`` on; of libraries, warnings and worse only."""
    number = _levels[level.upper()]
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _without_values,
    ]
    render = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[remove, _without_values, render])
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)


def log_loop_failure(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what the event loop could not give to anybody; its own text would show the values."""
    error = context.get("exception")
    structlog.get_logger("api").error("task_failed", exc_info=error if error is not None else False)


def _without_values(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace an exception by its type and the places it went through."""
    given = event.pop("exc_info", None)
    if given is True:
        given = sys.exc_info()
    error = given if isinstance(given, BaseException) else given[1] if isinstance(given, tuple) else None
    if error is not None:
        event["error"] = type(error).__name__
        event["at"] = _places(error.__traceback__)
    return event


def _places(trace: TracebackType | None) -> list[str]:
    frames = traceback.extract_tb(trace)[-FRAMES_MAX:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
