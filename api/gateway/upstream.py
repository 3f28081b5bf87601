"""Calls to targets: the only file of the gateway that opens connections.

Rules it keeps: the client's key never goes to a target and the target's key never to a client; a body is read without
being changed (no compression is asked for); a call that nobody waits for any more is closed, so that the model stops.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import aiohttp
import msgspec
from yarl import URL

from api.gateway.config import TargetConfig

BODY_BYTES_MAX = 128 * 1024 * 1024
"""Of a buffered answer: an answer with images in it is some MB; one that never ends must not fill the memory."""
CHUNK_BYTES = 64 * 1024
BODY_AT_ONCE_BYTES_MAX = 1024 * 1024
"""A larger body is written piece by piece, so that other requests are served meanwhile; aiohttp warns otherwise."""
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

    def __init__(self, target: str, answer: aiohttp.ClientResponse) -> None:
        self._target = target
        self._answer = answer
        self.status = answer.status
        self.headers = _passed_on(answer)
        self.media_type = answer.content_type if _is_plain(answer.content_type) else "application/octet-stream"

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises ``UpstreamFailed``."""
        try:
            async for chunk in self._answer.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _fail(self._target, error, was_sent=True)

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
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Make the pool of connections."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
            # A cookie is of the client whose answer set it; kept here it would go along with everybody's requests.
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=CHUNK_BYTES,
            skip_auto_headers=("User-Agent",),
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

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
        assert self._session is not None, "started before use"
        config = self._targets[target]
        url = f"{config.base_url.rstrip('/')}{path}"
        sent = {"accept-encoding": "identity", **(headers or {})}
        if body is not None:
            sent["content-type"] = "application/json"
        if config.api_key is not None:
            sent["authorization"] = f"Bearer {config.api_key}"
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=config.connect_timeout_s, sock_read=config.idle_timeout_s
        )
        try:
            answer = await self._session.request(
                method, _url(url, query), data=_data(body), headers=sent, timeout=timeout, allow_redirects=False
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            not_sent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            _fail(target, error, was_sent=not not_sent)
        try:
            yield UpstreamStream(target, answer)
        finally:
            # Read to its end it goes back to the pool; cut off, it is closed.
            answer.release() if answer.content.at_eof() else answer.close()

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


def _data(body: bytes | None) -> bytes | io.BytesIO | None:
    return body if body is None or len(body) <= BODY_AT_ONCE_BYTES_MAX else io.BytesIO(body)


def _url(url: str, query: str) -> URL:
    """Return the address as it is, without the normalising that would change a client's query."""
    return URL(f"{url}?{query}" if query else url, encoded=True)


def _passed_on(answer: aiohttp.ClientResponse) -> dict[str, str]:
    names = {name.lower(): value for name, value in answer.headers.items()}
    return {
        name: value
        for name, value in names.items()
        if name.startswith(FORWARDED_ANSWER_PREFIXES) and _is_plain(name + value)
    }


def _is_plain(text: str) -> bool:
    """Return whether a header may have this text on every way; other bytes have no one meaning (RFC 9110, 5.5)."""
    return text.isascii() and text.isprintable()


def _fail(target: str, error: BaseException, *, was_sent: bool) -> NoReturn:
    """Raise the driver's error as ours, without its text: it may quote a URL or a header."""
    if isinstance(error, TimeoutError):
        raise UpstreamFailed(target, "timeout", "it did not answer in time", was_sent=was_sent) from error
    if not was_sent:
        raise UpstreamFailed(target, "unreachable", "no connection could be made", was_sent=False) from error
    raise UpstreamFailed(target, "broken", "it closed the connection before its answer ended", was_sent=True) from error
