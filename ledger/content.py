"""Port ``ContentStore``: items and metadata, kept apart from the event log so that erasing them is real.

Write-once under a unique key: scope digest (20 bytes), random content ID (16), chunk number (4, big endian). The key
is the reference; the offset in a ``ContentRef`` is a hint and the read's barrier. This module also holds the encoding
of a content into chunks: one format byte, then a zstandard frame over UTF-8 JSON, cut every 512 KiB.

Adapters: ``memory``, ``embedded``, ``kafka`` (a compacted topic and a local copy). Contract suite:
``tests/contracts/test_content_store.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

import msgspec
import orjson
import zstandard

from ledger.errors import ContentLost, InvalidInput, TooLarge
from ledger.turn import Partition

CHUNK_BYTES_MAX = 512 * 1024
"""A chunk's bytes: below the broker's default record limit of 1 MiB with room for headers."""
CONTENT_BYTES_MAX = 64 * 1024 * 1024
"""A content's bytes before compression; one turn with a few large images fits, a video does not."""
CONTENT_FORMAT = 1
"""First byte of the first chunk: zstandard over UTF-8 JSON."""

Digest20 = Annotated[bytes, msgspec.Meta(min_length=20, max_length=20)]
Id16 = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class ContentRef(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Where a content is, how large it is, and since when."""

    scope: Digest20
    """Scope digest; readers compare it with the scope they read for."""
    id: Id16
    """Random, so a key is never written twice with different bytes."""
    chunks: Annotated[int, msgspec.Meta(ge=1, le=256)]
    """Number of chunks; their numbers run from 0."""
    size_bytes: Natural
    """Bytes before compression: what limits count."""
    last_offset: Natural
    """Offset of the last chunk on the content topic: wait for it before saying that a chunk is lost."""
    oldest_at_ms: Natural
    """Append time of the oldest chunk; the fold refuses a reference older than ``content_grace_s``."""


def chunk_key(scope: bytes, content_id: bytes, chunk: int) -> bytes:
    """Return the 40-byte key of one chunk."""
    return scope + content_id + chunk.to_bytes(4, "big")


class ContentStore(Protocol):
    """Chunks by key; durable before ``put`` returns."""

    async def put(
        self, partition: Partition, scope: bytes, content_id: bytes, chunks: Sequence[bytes], *, timeout_s: float
    ) -> ContentRef:
        """Write all chunks durably and return the reference (``size_bytes`` 0: the caller sets it).

        Raises ``Unavailable``; chunks written until then are orphans that are swept later.
        """
        ...

    async def get(self, partition: Partition, ref: ContentRef, *, timeout_s: float) -> list[bytes]:
        """Return the chunks of ``ref`` in order.

        Waits until the local copy has passed ``ref.last_offset``; raises ``Unavailable('content_lag')`` if it does
        not in time, and ``ContentLost`` if a chunk is missing after that.
        """
        ...

    async def erase(self, partition: Partition, refs: Sequence[ContentRef], *, timeout_s: float) -> None:
        """Delete the chunks for good (a null record per chunk where the log is compacted). Idempotent, harmless when
        late."""
        ...

    async def close(self) -> None: ...


_compressor = zstandard.ZstdCompressor(level=3)
_decompressor = zstandard.ZstdDecompressor()


def document_bytes(document: dict[str, Any]) -> bytes:
    """Return a JSON document as bytes. Raises ``InvalidInput`` for what a content cannot say."""
    try:
        return orjson.dumps(document)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput("content", f"is not JSON: {error}") from None


def encode_content(document: dict[str, Any]) -> tuple[list[bytes], int]:
    """Return (chunks, bytes before compression) of a JSON document.

    Raises ``InvalidInput`` for what JSON cannot say (lone surrogates, NaN, other types) and ``TooLarge`` above
    ``CONTENT_BYTES_MAX``.
    """
    raw = document_bytes(document)
    if len(raw) > CONTENT_BYTES_MAX:
        raise TooLarge("content", f"has {len(raw)} bytes; at most {CONTENT_BYTES_MAX} are allowed")
    packed = bytes([CONTENT_FORMAT]) + _compressor.compress(raw)
    return [packed[start : start + CHUNK_BYTES_MAX] for start in range(0, len(packed), CHUNK_BYTES_MAX)], len(raw)


def decode_content(chunks: Sequence[bytes]) -> dict[str, Any]:
    """Return the JSON document of ``chunks``. Raises ``ContentLost`` when they are not what ``encode_content`` made."""
    packed = b"".join(chunks)
    if not packed or packed[0] != CONTENT_FORMAT:
        raise ContentLost("a content has an unknown format byte")
    try:
        raw = _decompressor.decompress(packed[1:], max_output_size=CONTENT_BYTES_MAX)
        document: dict[str, Any] = orjson.loads(raw)
    except (zstandard.ZstdError, orjson.JSONDecodeError) as error:
        raise ContentLost(f"a content cannot be decoded: {error}") from None
    return document
