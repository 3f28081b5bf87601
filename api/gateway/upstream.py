"""Calls to targets.

Rules it keeps: the client's key never goes to a target and the target's key never to a client; a body is read without
being changed (no compression is asked for); a call that nobody waits for any more is closed, so that the model stops.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from api.connections import CallFailed, Connections, Incoming
from api.gateway.config import TargetConfig

BODY_BYTES_MAX = 128 * 1024 * 1024
"""Of a buffered answer: an answer with images in it is some MB; one that never ends must not fill the memory."""
FORWARDED_REQUEST_HEADERS = ("openai-beta", "traceparent", "tracestate", "x-client-request-id")
"""What of a client's headers concerns the model's answer or tracing; everything else stays here."""
FORWARDED_ANSWER_PREFIXES = ("openai-", "x-ratelimit-", "x-request-id", "retry-after")

_object_decoder = msgspec.json.Decoder(dict[str, Any])


class UpstreamFailed(Exception):
    """A target did not answer, or not to the end."""

    def __init__(self, target: str, reason: str, message: str, *, was_sent: bool) -> None:
        super().__init__(f"target {target}: {message}")
        self.target = target
        self.reason = reason
        """``unreachable``, ``timeout`` or ``broken``."""
        self.was_sent = was_sent
        """False: no connection was made, so another target may be asked instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamAnswer:
    """A buffered answer of a target."""

    status: int
    headers: Mapping[str, str]
    """Those that may be passed on."""
    media_type: str
    body: bytes = field(repr=False)

    def json_object(self) -> dict[str, Any] | None:
        """Return the body as a JSON object, None when it is anything else."""
        try:
            return _object_decoder.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


class UpstreamStream:
    """An answer that is still coming."""

    def __init__(self, target: str, answer: Incoming) -> None:
        self._target = target
        self._answer = answer
        self.status = answer.status
        self.headers = _passed_on(answer)
        self.media_type = answer.media_type if _is_plain(answer.media_type) else "application/octet-stream"

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises ``UpstreamFailed``."""
        try:
            async for chunk in self._answer.chunks():
                yield chunk
        except CallFailed as failure:
            raise _failed(self._target, failure) from failure

    async def read(self) -> UpstreamAnswer:
        """Return the whole answer. Raises ``UpstreamFailed``."""
        chunks, size = [], 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > BODY_BYTES_MAX:
                message = f"the answer has more than {BODY_BYTES_MAX} bytes"
                raise UpstreamFailed(self._target, "broken", message, was_sent=True)
            chunks.append(chunk)
        return UpstreamAnswer(
            status=self.status, headers=self.headers, media_type=self.media_type, body=b"".join(chunks)
        )


class Upstream:
    """The targets' connections of one process; ``start`` before use, ``close`` after."""

    def __init__(self, targets: Mapping[str, TargetConfig]) -> None:
        self._targets = targets
        self._connections = Connections()

    async def start(self) -> None:
        """Make the pool of connections."""
        await self._connections.start()

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()

    @asynccontextmanager
    async def open(
        self,
        target: str,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        query: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[UpstreamStream]:
        """Send a request to ``target`` and give its answer once the headers are there; leaving closes it.

        ``path`` follows the target's base URL. Raises ``UpstreamFailed``.
        """
        config = self._targets[target]
        url = f"{config.base_url.rstrip('/')}{path}"
        sent = {"accept-encoding": "identity", **(headers or {})}
        if body is not None:
            sent["content-type"] = "application/json"
        if config.api_key is not None:
            sent["authorization"] = f"Bearer {config.api_key}"
        calling = self._connections.open(
            method,
            f"{url}?{query}" if query else url,
            headers=sent.items(),
            added=("accept",),
            body=body,
            connect_timeout_s=config.connect_timeout_s,
            idle_timeout_s=config.idle_timeout_s,
        )
        async with AsyncExitStack() as stack:
            try:
                answer = await stack.enter_async_context(calling)
            except CallFailed as failure:
                raise _failed(target, failure) from failure
            yield UpstreamStream(target, answer)

    async def send(
        self,
        target: str,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        query: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> UpstreamAnswer:
        """Send a request and return the whole answer, whatever its status. Raises ``UpstreamFailed``."""
        async with self.open(target, method, path, body=body, query=query, headers=headers) as stream:
            return await stream.read()


def forwarded_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what of a client's headers goes to a target."""
    return {name: headers[name] for name in FORWARDED_REQUEST_HEADERS if name in headers}


def _passed_on(answer: Incoming) -> dict[str, str]:
    names = {name.lower(): value for name, value in answer.headers.items()}
    return {
        name: value
        for name, value in names.items()
        if name.startswith(FORWARDED_ANSWER_PREFIXES) and _is_plain(name + value)
    }


def _is_plain(text: str) -> bool:
    """Return whether a header may have this text on every way; other bytes have no one meaning (RFC 9110, 5.5)."""
    return text.isascii() and text.isprintable()


def _failed(target: str, failure: CallFailed) -> UpstreamFailed:
    return UpstreamFailed(target, failure.reason, str(failure), was_sent=failure.was_sent)
