"""Requests about partitions that this replica does not hold: sent to one that does, and its answer passed on.

A handler runs as on any replica. Where it raises ``NotHeld``, before which nothing is written, the same request goes to
a holder: method, path, query, body and all headers that are meant for the other end. Rules kept here:

- it is forwarded once: whoever gets a forwarded request and does not hold the partition either says so (421), and the
  replica that was asked first asks the next URL of the range;
- a holder that cannot be reached, has only just started, or says that it changed nothing because its ledger cannot
  answer now is passed over for the next; with none left the answer is 503, and nothing was changed anywhere. Who is the
  next, and until when, ``api.walk`` says;
- an answer that does not name this ledger is not believed, whatever it says: who gave it is passed over. Only a change
  that was answered by nobody knows whom, such as a proxy, has an unknown outcome;
- a request that was sent is not sent again when its connection breaks, but for one that only reads: its outcome is
  unknown, and the caller is told that;
- the answer is passed on as it comes, to the byte; when the client goes, the call ends.

What is in these requests was checked by nobody but the holder, who knows the same tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

import msgspec
import structlog
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from api.connections import SAFE_METHODS, CallFailed, Connections, Incoming
from api.errors import NOT_HELD, NOT_SERVED, STARTING, UNAVAILABLE
from api.holders import HolderRange, Holders
from api.leaving import CLIENT_LEFT, is_cancelled, unless_left
from api.ledger_name import ASKED_LEDGER, FORWARDED, LEDGER, OTHER_LEDGER, ledger_named
from api.metrics import Metrics
from api.walk import Target, Walk
from ledger.errors import NotHeld, TooLarge, Unavailable, Unknown
from ledger.turn import Partition

logger = structlog.get_logger("api.forwarding")

ANSWER_MARGIN_S = 3.0
"""Above what a holder may take for an answer by its own deadlines: for its network, a pause of it, and holders that
were passed over before."""
LOST_AFTER_S = 10
"""After so long without an acknowledgement a holder's machine is gone; its process may be silent for minutes."""
REST_S = 5.0
"""For so long a URL that could not be reached is asked after the others, so that a dead machine costs few requests its
timeout."""
STRANGER = "stranger"
"""Why an answer is passed over that names no ledger."""
DISAGREE = (
    "another replica sent the request here, so the maps of the replicas disagree; compare --holders there with "
    "--partitions here"
)
_HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer",
        "transfer-encoding", "upgrade",
    }
)  # fmt: skip
"""Of one connection only (RFC 9110, 7.6.1), with what ``Connection`` itself names."""
_NOT_SENT_ON = _HOP_BY_HOP | {"host", "content-length", "expect", FORWARDED, ASKED_LEDGER, LEDGER, NOT_SERVED}
"""The call has a host and a length of its own; the body that was expected is there. And a client does not say what
whoever repeats the headers of a request would be believed for."""
_NOT_PASSED_ON = _HOP_BY_HOP | {"date", LEDGER}
"""This server writes the date; whose answer it is was for this replica to know."""


class HolderBroke(Unknown):
    """A change was sent to a holder and not answered to the end: it may have been carried out."""


class _Named(msgspec.Struct):
    """Of a body only its event ID: what the caller needs to ask again."""

    event_id: str | None = None


_named = msgspec.json.Decoder(_Named)

_ELSEWHERE = "something else answers where --holders says that one is"
_SAID = {
    "unreachable": "one could not be reached",
    "timeout": "one did not answer in time",
    "broken": "one broke off",
    STARTING: "one is starting",
    UNAVAILABLE: "one cannot answer now",
    NOT_HELD: "one does not hold them",
    STRANGER: _ELSEWHERE,
    OTHER_LEDGER: _ELSEWHERE,
}
"""Why holders are passed over, as the caller is told: never who they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A request as it is sent on, the same to whomever it goes."""

    request: Request
    target: str
    """Path and query."""
    headers: list[tuple[str, str]]
    body: bytes
    reads: bool
    """It changes nothing, so it may be sent again."""

    def event_id(self) -> str:
        """Return the event ID that a change names; empty as far as that cannot be read."""
        try:
            return self.request.query_params.get("event_id") or _named.decode(self.body).event_id or ""
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""


class Forwarding:
    """Sends requests on. One per process; ``start`` before use, ``close`` after."""

    def __init__(
        self, holders: Holders, ledger_id: bytes, metrics: Metrics, *, answer_margin_s: float = ANSWER_MARGIN_S
    ) -> None:
        """``ledger_id`` is that of this replica, and has to be that of whoever answers. ``answer_margin_s``: so much
        longer than a call's ``answers_within_s`` all holders together may be silent."""
        self._holders = holders
        self._ledger = ledger_id.hex()
        self._metrics = metrics
        self._answer_margin_s = answer_margin_s
        self._connections = Connections(lost_after_s=LOST_AFTER_S)
        self._failed_at_s: dict[str, float] = {}

    async def start(self) -> None:
        """Make the pool of connections."""
        await self._connections.start()

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()

    async def served(
        self,
        handle: Callable[[Request], Awaitable[Response]],
        request: Request,
        *,
        body_bytes_max: int,
        answers_within_s: float,
        reads_first: bool = True,
    ) -> Response:
        """Return what ``handle`` answers, or what a holder does where it raises ``NotHeld``.

        ``answers_within_s``: what ``handle`` may take before its first byte, and between two, by its own deadlines.
        ``reads_first`` false: ``handle`` raises it before it reads any of the body, which need not be kept then. Raises
        what ``handle`` raises, ``NotHeld`` for a request that was forwarded already, ``Unavailable`` (``holder``) when
        nobody could be asked, and ``HolderBroke``.
        """
        body = _Body(request.receive)
        try:
            return await handle(Request(request.scope, body.receive) if reads_first else request)
        except NotHeld as error:
            partition = Partition(error.partition)
            refuse_again(request, partition)
        stack = AsyncExitStack()
        try:
            content = await body.whole(body_bytes_max)
            sent = self._sent(request, content, reads=request.method in SAFE_METHODS)
            opening = asyncio.create_task(self._open(stack, partition, sent, answers_within_s))
            return _PassedOn(await unless_left(request.receive, opening), stack, self._metrics)
        except (asyncio.CancelledError, ClientDisconnect):
            await stack.aclose()
            if is_cancelled():
                raise
            self._metrics.forwarded("left")
            return Response(status_code=CLIENT_LEFT)
        except BaseException:
            await stack.aclose()
            raise

    async def ask(
        self,
        partition: Partition,
        request: Request,
        body: bytes,
        media_type: str,
        *,
        reads: bool,
        answers_within_s: float,
    ) -> tuple[int, bytes]:
        """Ask a holder with another body than the request's; return its answer's status and body.

        ``reads``: nothing is changed by it. Raises like ``served``.
        """
        async with AsyncExitStack() as stack:
            sent = self._sent(request, body, media_type, reads=reads)
            incoming = await self._open(stack, partition, sent, answers_within_s)
            try:
                return incoming.status, b"".join([chunk async for chunk in incoming.chunks()])
            except CallFailed as failure:
                self._metrics.forwarded("broken")
                raise self._broken(partition, str(failure), "", reads=reads) from failure

    def _sent(self, request: Request, body: bytes, media_type: str | None = None, *, reads: bool) -> _Sent:
        """Return a request as it is sent on, with another body and type of it if these are given."""
        path = bytes(request.scope.get("raw_path") or request.url.path.encode()).decode("ascii")
        query = request.scope["query_string"].decode("ascii")
        headers = [*_sent_on(request.headers, media_type), (FORWARDED, "1"), (ASKED_LEDGER, self._ledger)]
        target = f"{path}?{query}" if query else path
        return _Sent(request=request, target=target, headers=headers, body=body, reads=reads)

    async def _open(
        self, stack: AsyncExitStack, partition: Partition, sent: _Sent, answers_within_s: float
    ) -> Incoming:
        """Send a request to the holders of a partition, one after the other; return the first answer."""
        holders = self._holders.of(partition)
        walk = Walk(
            self._in_order(holders.urls),
            self._connections,
            answers_within_s=answers_within_s,
            margin_s=self._answer_margin_s,
        )
        said: set[str] = set()
        while (target := walk.next()) is not None:
            at = None if target.address is None else str(target.address)
            asked: dict[str, str | None] = {"partitions": str(holders), "url": target.url, "address": at}
            async with AsyncExitStack() as trying:
                try:
                    incoming = await trying.enter_async_context(self._calling(target, sent, walk))
                    word = self._word(incoming)
                except CallFailed as failure:
                    self._failed_at_s[target.url] = time.monotonic()
                    logger.warning("holder_failed", **asked, reason=failure.reason)
                    if failure.was_sent and not sent.reads:
                        self._metrics.forwarded("broken")
                        raise self._broken(partition, str(failure), sent.event_id(), reads=False) from failure
                    said.add(failure.reason)
                    if failure.reason == "broken":
                        # Else no address could be connected, or one is silent.
                        await walk.goes_on(target, failure.reason)
                    continue
                if word == STRANGER and not sent.reads:
                    self._tell_passed_over(word, incoming, asked)
                    self._metrics.forwarded("broken")
                    raise HolderBroke(sent.event_id(), _of_a_stranger(holders, incoming))
                goes_on = word is not None and await walk.goes_on(target, word, answered_by=incoming.peer)
                # The last one's own reason says more than that nobody has answered.
                if word is None or (word == UNAVAILABLE and not goes_on):
                    self._failed_at_s.pop(target.url, None)
                    self._metrics.forwarded("answered")
                    stack.push_async_exit(trying.pop_all())
                    return incoming
                said.add(word)
                self._tell_passed_over(word, incoming, asked)
        raise self._nobody(partition, said, is_cut_short=walk.is_cut_short)

    def _calling(self, target: Target, sent: _Sent, walk: Walk) -> AbstractAsyncContextManager[Incoming]:
        method = sent.request.method
        return self._connections.open(
            method,
            f"{target.url}{sent.target}",
            headers=sent.headers,
            body=sent.body if sent.body or method not in SAFE_METHODS else None,
            connect_timeout_s=walk.connect_timeout_s(reads=sent.reads),
            answer_timeout_s=walk.answer_timeout_s(reads=sent.reads),
            idle_timeout_s=walk.idle_timeout_s,
            at=target.address,
        )

    def _word(self, incoming: Incoming) -> str | None:
        """Return why an answer is passed over, in one word; None: it is this ledger's."""
        not_served, ledger = incoming.headers.get(NOT_SERVED), incoming.headers.get(LEDGER)
        # A process that is starting does not know its ledger yet.
        if not_served == STARTING or ledger == self._ledger:
            return not_served
        return STRANGER if not_served is None and ledger_named(ledger) is None else OTHER_LEDGER

    def _tell_passed_over(self, word: str, incoming: Incoming, asked: Mapping[str, str | None]) -> None:
        if word in (STRANGER, OTHER_LEDGER):
            self._failed_at_s[str(asked["url"])] = time.monotonic()
            self._metrics.forwarded("misdirected")
            ledger = ledger_named(incoming.headers.get(LEDGER))
            logger.warning("holder_misdirected", **asked, status=incoming.status, ledger=ledger)
        elif word == NOT_HELD:
            logger.warning("maps_disagree", **asked)
        else:
            logger.warning("holder_passed_over", **asked, reason=word)

    def _in_order(self, urls: Iterable[str]) -> list[str]:
        """Return the URLs as the map has them, those that failed just now at the end."""
        now_s = time.monotonic()
        return sorted(urls, key=lambda url: now_s < self._failed_at_s.get(url, float("-inf")) + REST_S)

    def _nobody(self, partition: Partition, said: Set[str], *, is_cut_short: bool) -> NotHeld | Unavailable:
        """Return what a caller is told whose request no holder has answered, for these reasons; nothing was changed."""
        holders = self._holders.of(partition)
        if said == {NOT_HELD} and not is_cut_short:
            self._metrics.forwarded("disagreed")
            message = f"and neither by the replicas that --holders names for partitions {holders}; correct the map"
            return NotHeld(partition, message)
        self._metrics.forwarded("unreachable")
        why = [text for word, text in _SAID.items() if word in said]
        if said - _SAID.keys():
            why.append("one refused it")
        if is_cut_short:
            why.append("there was no time to ask the others")
        answered = f"no replica that holds partitions {holders} could answer"
        return Unavailable("holder", f"{answered}: {', '.join(dict.fromkeys(why))}; nothing was changed")

    def _broken(self, partition: Partition, how: str, event_id: str, *, reads: bool) -> Unavailable | HolderBroke:
        """Return what a caller is told whose request was sent and not answered to the end."""
        message = f"the replica that holds partitions {self._holders.of(partition)} failed: {how}"
        return Unavailable("holder", message) if reads else HolderBroke(event_id, message)


def refuse_again(request: Request, partition: Partition) -> None:
    """Raise ``NotHeld`` for a request about a partition that is not held, when another replica has sent it here."""
    if FORWARDED in request.headers:
        # No warning: any client may send the header. The replica that sent the request on gives it.
        logger.info("forwarded_not_held", partition=partition)
        raise NotHeld(partition, DISAGREE) from None


class _Body:
    """The body of a request as a handler reads it, kept for whoever gets it next."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._is_whole = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._chunks.append(message.get("body", b""))
            self._size_bytes += len(self._chunks[-1])
            self._is_whole = not message.get("more_body", False)
        return message

    async def whole(self, bytes_max: int) -> bytes:
        """Return the body, read to its end; it is kept once. Raises ``TooLarge``, ``ClientDisconnect``."""
        while not self._is_whole:
            if (await self.receive())["type"] == "http.disconnect":
                raise ClientDisconnect
            if self._size_bytes > bytes_max:
                raise TooLarge("body", f"has more than {bytes_max} bytes")
        if len(self._chunks) != 1:
            self._chunks = [b"".join(self._chunks)]
        return self._chunks[0]


class _PassedOn(Response):
    """A holder's answer on its way to the client."""

    def __init__(self, incoming: Incoming, stack: AsyncExitStack, metrics: Metrics) -> None:
        self.status_code = incoming.status
        self.background = None
        self.raw_headers = [(name.lower(), value) for name, value in incoming.raw_headers if _is_passed(incoming, name)]
        self._incoming = incoming
        self._stack = stack
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            sending = asyncio.create_task(self._send(send))
            try:
                await unless_left(receive, sending)
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                self._metrics.forwarded("left")
            except CallFailed as failure:
                # The answer has begun, so it can only be cut off: the server closes a connection whose answer has no
                # end, and the client sees that.
                self._metrics.forwarded("broken")
                logger.warning("forwarded_answer_broken", reason=failure.reason)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._incoming.chunks():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _sent_on(headers: Headers, media_type: str | None) -> list[tuple[str, str]]:
    """Return the headers of a forwarded request; ``media_type`` replaces that of the body."""
    dropped = _NOT_SENT_ON | _nominated(headers.getlist("connection"))
    if media_type is not None:
        dropped |= {"content-type", "content-encoding"}
    kept = []
    for name, value in headers.raw:
        if name.decode("latin-1").lower() not in dropped:
            # The driver writes UTF-8; other bytes have no one meaning (RFC 9110, 5.5).
            kept.append((name.decode("latin-1"), value.decode("utf-8", "replace")))
    if media_type is not None:
        kept.append(("content-type", media_type))
    return kept


def _is_passed(incoming: Incoming, name: bytes) -> bool:
    dropped = _NOT_PASSED_ON | _nominated([incoming.headers.get("connection", "")])
    return name.decode("latin-1").lower() not in dropped


def _nominated(connection: Iterable[str]) -> frozenset[str]:
    """Return the headers that a ``Connection`` header says are of this connection only."""
    return frozenset(name.strip().lower() for value in connection for name in value.split(","))


def _of_a_stranger(holders: HolderRange, incoming: Incoming) -> str:
    answered = f"what --holders names for partitions {holders} answered HTTP {incoming.status}"
    return f"{answered} and does not say that it is this ledger"
