"""Server-sent events as bytes: frames are passed on exactly as they came, so they are cut apart and never rebuilt.

The libraries for this format give decoded events and keep no bytes; what is here is only the cutting (WHATWG HTML,
server-sent events: a frame ends with a blank line; a line ends with LF, CR LF or CR).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

MEDIA_TYPE = "text/event-stream"
FRAME_BYTES_MAX = 64 * 1024 * 1024
"""A frame that does not end is not kept for ever; the largest is a terminal with the whole answer."""

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_encoder = msgspec.json.Encoder()


class FrameTooLong(Exception):
    """The sender has not ended a frame within ``FRAME_BYTES_MAX``."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event: its exact bytes with the blank line, and what it says."""

    raw: bytes
    event: str
    """Empty where the sender names none."""
    data: bytes


class FrameCutter:
    """Cuts a stream of chunks into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0
        """How much of the rest has no end of a frame in it: a long frame comes in many chunks."""

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield the frames that ``chunk`` completes. Raises ``FrameTooLong``."""
        rest = self._rest
        rest += chunk
        # A CR at the very end may be half of a CR LF.
        bound = len(rest) - 1 if rest.endswith(b"\r") else len(rest)
        ends = [end.end() for end in _END.finditer(rest, self._searched, bound)]
        start = 0
        frames = []
        for end in ends:
            frames.append(bytes(rest[start:end]))
            start = end
        del rest[:start]
        # What ends a frame has at most four bytes, and at least one of them is still to come.
        self._searched = max(0, bound - start - 3)
        for frame in frames:
            yield parse(frame)
        if len(rest) > FRAME_BYTES_MAX:
            raise FrameTooLong

    def rest(self) -> Frame | None:
        """Return what came after the last blank line, as a frame, once the stream has ended; None: nothing did."""
        return parse(bytes(self._rest)) if self._rest.strip() else None


def parse(raw: bytes) -> Frame:
    """Return a frame with its event name and data."""
    event, data = "", []
    for line in _LINE_END.split(raw):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            event = value.decode("utf-8", "replace")
    return Frame(raw, event, data[0] if len(data) == 1 else b"\n".join(data))


def encode(event: Mapping[str, Any]) -> bytes:
    """Return a streaming event of the API as a frame; its name is its ``type``."""
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + _encoder.encode(event) + b"\n\n"
