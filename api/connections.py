"""HTTP calls to other processes: the only file that opens connections, for targets of the gateway and for replicas.

Rules it keeps: a call that was never sent is told from one that broke, which decides whether it may be made elsewhere;
what changes something is sent once; bodies are passed on without being changed; every address that a name resolves to
is tried until one is connected, and each can be asked by itself.
"""

from __future__ import annotations

import asyncio
import functools
import io
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import NoReturn

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection
from yarl import URL

SAFE_METHODS = frozenset({"GET", "HEAD"})
"""What only reads (RFC 9110, 9.2.1), and may be sent twice."""
CHUNK_BYTES = 64 * 1024
BODY_AT_ONCE_BYTES_MAX = 1024 * 1024
"""A larger body is written piece by piece, so that other requests are served meanwhile; aiohttp warns otherwise."""
KEEP_ALIVE_S = 30
"""Below the idle time after which servers drop a connection: what is reused must not be about to be closed."""

RESOLVED_S = 5.0
"""For so long the addresses of a name are remembered: requests that are passed over come in numbers while a holder
starts. Shorter than aiohttp remembers them for the connections that it makes by itself (10 s)."""
PROBES = 5
"""Within the time after which a peer is lost: one that is dropped does not end a connection."""


class CallFailed(Exception):
    """A call was not answered, or not to the end. Without the driver's text: it may quote a URL or a header."""

    def __init__(self, reason: str, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.reason = reason
        """``unreachable``, ``timeout`` or ``broken``."""
        self.was_sent = was_sent
        """False: no connection was made, so the call may be made elsewhere."""


class Address:
    """One address of a name, as it was resolved."""

    def __init__(self, resolved: ResolveResult) -> None:
        self.resolved = resolved

    def __str__(self) -> str:
        return self.resolved["host"]


class Incoming:
    """An answer that is still coming."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self.peer = answer.peer
        """The address that gave it, as ``Address`` writes it; None: its connection did not say."""
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self.raw_headers = answer.raw_headers
        self.media_type = answer.content_type

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises ``CallFailed``."""
        try:
            async for chunk in self._answer.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _fail(error, was_sent=True)

    def close(self) -> None:
        """Give the connection back if the answer was read to its end, else close it."""
        self._answer.release() if self._answer.content.at_eof() else self._answer.close()


class Connections:
    """The outgoing connections of one process; ``start`` before use, ``close`` after."""

    def __init__(self, *, lost_after_s: int | None = None) -> None:
        """``lost_after_s``: a machine that does not even acknowledge is given up after it; None: as the kernel does."""
        self._lost_after_s = lost_after_s
        self._session: aiohttp.ClientSession | None = None
        self._names = _Names()

    async def start(self) -> None:
        """Make the pool of connections."""
        self._session = self._new_session()

    async def close(self) -> None:
        """Close all connections."""
        await self._names.close()
        if self._session is not None:
            await self._session.close()

    async def addresses(self, url: str, *, timeout_s: float) -> list[Address]:
        """Return the addresses of a URL's host if it has several; none when that cannot be told in time."""
        parts = URL(url, encoded=True)
        assert parts.host is not None, "checked when it was configured"
        try:
            async with asyncio.timeout(timeout_s):
                found = await self._names.resolve(parts.host, parts.port or 0)
        except OSError:
            return []
        return [Address(one) for one in found] if len(found) > 1 else []

    def _new_session(self, at: Address | None = None) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=KEEP_ALIVE_S,
                socket_factory=None if self._lost_after_s is None else self._socket,
                resolver=None if at is None else _Only(at),
            ),
            # A cookie is of the client whose answer set it; kept here it would go along with everybody's requests.
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=CHUNK_BYTES,
            response_class=_Answer,
        )

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        """Return a socket that asks a silent peer whether it is there, and fails when nothing is acknowledged.

        A peer's kernel acknowledges also while its process thinks (RFC 1122, 4.2.3.6; ``TCP_USER_TIMEOUT``: RFC 5482).
        """
        assert self._lost_after_s is not None, "only used with it"
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        interval_s = max(1, self._lost_after_s // PROBES)
        for name, value in (
            ("TCP_KEEPIDLE", interval_s),
            ("TCP_KEEPINTVL", interval_s),
            ("TCP_KEEPCNT", PROBES - 1),
            ("TCP_USER_TIMEOUT", 1000 * self._lost_after_s),
        ):
            # Linux has all of them; others have their own names or none.
            if hasattr(socket, name):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return made

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        *,
        headers: Iterable[tuple[str, str]],
        added: Iterable[str] = (),
        body: bytes | None = None,
        connect_timeout_s: float,
        idle_timeout_s: float,
        answer_timeout_s: float | None = None,
        at: Address | None = None,
    ) -> AsyncIterator[Incoming]:
        """Send a request and give its answer once the headers are there; leaving closes it.

        ``url`` is taken as it is, without the normalising that would change a client's query. Of the headers that the
        driver adds by itself only those of ``added`` are. ``idle_timeout_s``: between any two bytes of the answer.
        ``answer_timeout_s``: for its headers, from now on; more than ``connect_timeout_s``, so that a call that was
        never sent is told from one that was. ``at``: ask this address of the URL's name and no other, on a connection
        of its own. Raises ``CallFailed``.
        """
        async with self._session_at(at) as session:
            # With the name's resolution, which `sock_connect` leaves out; no call waits for a connection of the pool.
            timeout = aiohttp.ClientTimeout(total=None, connect=connect_timeout_s, sock_read=idle_timeout_s)
            try:
                async with asyncio.timeout(answer_timeout_s):
                    answer = await session.request(
                        method,
                        URL(url, encoded=True),
                        data=_data(body),
                        headers=list(headers),
                        timeout=timeout,
                        allow_redirects=False,
                        skip_auto_headers=_AUTOMATIC.difference(added),
                        middlewares=() if method in SAFE_METHODS else (_sent_once,),
                    )
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                not_sent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
                _fail(error, was_sent=not not_sent)
            assert isinstance(answer, _Answer), "the session's own class"
            incoming = Incoming(answer)
            try:
                yield incoming
            finally:
                incoming.close()

    @asynccontextmanager
    async def _session_at(self, at: Address | None) -> AsyncIterator[aiohttp.ClientSession]:
        """Give the pool's session, or one for a single call: the pool knows connections by name, not by address."""
        assert self._session is not None, "started before use"
        if at is None:
            yield self._session
            return
        async with self._new_session(at) as session:
            yield session


class _Names:
    """Asks for the addresses of a name once at a time, however many wait for them: each question holds a thread."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], asyncio.Task[list[ResolveResult]]] = {}

    async def resolve(self, host: str, port: int) -> list[ResolveResult]:
        """Return the addresses as they were told within ``RESOLVED_S``. Raises ``OSError``."""
        name = host, port
        if name not in self._asked:
            asking = asyncio.create_task(aiohttp.ThreadedResolver().resolve(host, port, socket.AF_UNSPEC))
            asking.add_done_callback(functools.partial(self._answered, name))
            self._asked[name] = asking
        # Who does not wait any longer does not end it for the others.
        return await asyncio.shield(self._asked[name])

    def _answered(self, name: tuple[str, int], asking: asyncio.Task[list[ResolveResult]]) -> None:
        if asking.cancelled() or asking.exception() is not None:
            self._asked.pop(name)
        else:
            asyncio.get_running_loop().call_later(RESOLVED_S, self._asked.pop, name)

    async def close(self) -> None:
        """End what is asked."""
        for asking in self._asked.values():
            asking.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)


class _Answer(aiohttp.ClientResponse):
    """Remembers who gave it: an answer that has come whole has given its connection back."""

    peer: str | None = None

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        name = None if connection.transport is None else connection.transport.get_extra_info("peername")
        self.peer = name[0] if isinstance(name, tuple) else None
        return await super().start(connection)


class _Only(AbstractResolver):
    """Resolves a name to one address of it, so that ``Host`` and the name in the certificate stay those of the URL."""

    def __init__(self, at: Address) -> None:
        self._at = at

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [self._at.resolved]

    async def close(self) -> None: ...


_AUTOMATIC = frozenset({"accept", "accept-encoding", "content-type", "user-agent"})


class _BrokeOff(aiohttp.ClientError):
    """A connection ended after a request was sent on it."""


async def _sent_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Let a request that broke off fail: the driver sends a DELETE or PUT again, whatever the first one has done."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _BrokeOff from error


def _data(body: bytes | None) -> bytes | io.BytesIO | None:
    return body if body is None or len(body) <= BODY_AT_ONCE_BYTES_MAX else io.BytesIO(body)


def _fail(error: BaseException, *, was_sent: bool) -> NoReturn:
    if isinstance(error, TimeoutError):
        raise CallFailed("timeout", "it did not answer in time", was_sent=was_sent) from error
    if not was_sent:
        raise CallFailed("unreachable", "no connection could be made", was_sent=False) from error
    raise CallFailed("broken", "it closed the connection before its answer ended", was_sent=True) from error
