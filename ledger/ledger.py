"""The ledger in one process: every use case, over whatever log, contents and store it is given.

``composition`` chooses the adapters; this module only wires the parts together and owns their life.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from ledger.alias import AliasKey
from ledger.barrier import Barrier
from ledger.closing import close_each, failure_logged
from ledger.commit import Committer
from ledger.content import ContentStore
from ledger.conversations import Conversations
from ledger.errors import Unavailable
from ledger.formatting import Formatter
from ledger.keeper import Keeping
from ledger.log import EventLog, Record
from ledger.policy import Policy
from ledger.query import Reader
from ledger.replica import Replica
from ledger.settings import LedgerSettings
from ledger.turn import Partition
from ledger.verdict import Fact, Outcome
from ledger.view import ViewStore

PROBE_INTERVAL_S = 2.0
"""Between two questions of an idle process to its log."""
PROBE_FAILURES_MIN = 2
"""Unanswered ones before a process says that it is not ready: one is a leader that moves."""


def wall_clock_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def random_id() -> bytes:
    """Return 16 random bytes: the name of a new content or a new ledger."""
    return secrets.token_bytes(16)


class Ledger:
    """One process's ledger. ``start`` before use, ``close`` after; also an async context manager."""

    def __init__(
        self,
        log: EventLog,
        contents: ContentStore,
        store: ViewStore,
        alias_key: AliasKey,
        *,
        partitions: Collection[Partition] | None = None,
        tables: EventLog | None = None,
        settings: LedgerSettings | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
        new_id: Callable[[], bytes] = random_id,
        on_outcome: Callable[[Record, Outcome], None] | None = None,
        keeper: Callable[[Reader, Replica], Keeping] | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``partitions`` are those that this process holds; None: all. ``tables`` (see ``Formatter``) are closed with
        the log. ``keeper`` makes the part that expires and erases in this process, or takes erased bytes off its disk.
        ``on_close`` runs when all else is closed."""
        self.settings = settings or LedgerSettings()
        self.alias_key = alias_key
        self.log = log
        self.contents = contents
        self.store = store
        self.now_ms = now_ms
        self._tables = tables
        self.replica = Replica(log, store, partitions=partitions, on_facts=self._on_facts, on_outcome=on_outcome)
        self.barrier = Barrier(log, self.replica, request_timeout_s=self.settings.read_index_timeout_s)
        parts: tuple[Any, ...] = (alias_key, self.settings, now_ms)
        self.reader = Reader(log, contents, self.replica, self.barrier, *parts)
        self.committer = Committer(log, contents, self.replica, alias_key, self.settings, now_ms, new_id)
        self.conversations = Conversations(self.committer, self.reader, self.replica, *parts)
        self.formatter = Formatter(log, tables, self.replica, self.barrier, alias_key, now_ms, new_id)
        self._keeper = None if keeper is None else keeper(self.reader, self.replica)
        self._on_close = on_close
        self.ledger_id = b""
        self._is_started = False
        self._probing: asyncio.Task[None] | None = None
        self._probe_failures: list[str] = []

    async def start(self, *, format_policy: Policy | None = None, timeout_s: float = 30.0) -> None:
        """Open the view, catch up and compare the log with this process.

        ``format_policy`` formats a log that is not formatted yet. Raises ``ManifestMismatch`` or ``Unavailable``, with
        everything closed again.
        """
        try:
            await self.replica.start(timeout_s=timeout_s)
            if format_policy is not None:
                await self.formatter.format(format_policy, timeout_s=timeout_s)
            self.ledger_id = await self.formatter.verify(timeout_s=timeout_s)
            await self.committer.start()
            if self._keeper is not None:
                await self._keeper.start()
            self._probing = asyncio.create_task(self._probe_forever())
            self._is_started = True
        except BaseException:
            with failure_logged():
                await self.close()
            raise

    async def close(self) -> None:
        """Stop everything and release log, contents and store.

        Waiting reads get ``Unavailable('closed')``; commits that wait for their verdict get ``Unknown``. Raises the
        first error of a part, with all others closed.
        """
        self._is_started = False
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        closings = [
            None if self._keeper is None else self._keeper.close,
            self.committer.close,
            self.reader.close,
            self.replica.stop,
            self.barrier.close,
            self.contents.close,
            self.log.close,
            None if self._tables is None else self._tables.close,
            self._close_store,
            self._on_close,
        ]
        await close_each(*(close for close in closings if close is not None))

    async def _close_store(self) -> None:
        self.store.close()

    async def __aenter__(self) -> Ledger:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def not_ready_reason(self) -> str:
        """Return why this process must not get traffic now, or an empty string."""
        if not self._is_started:
            return "starting: the view has not caught up yet"
        for partition, state in self.replica.states().items():
            if state.stopped is not None:
                return str(state.stopped)
            behind = state.end_seen - state.rows.position
            if behind > 0 and state.waiters:
                return f"partition {partition} is {behind} offsets behind"
        if len(self._probe_failures) >= PROBE_FAILURES_MIN:
            return self._probe_failures[-1]
        return ""

    async def _probe_forever(self) -> None:
        """Pass the barrier of one partition after the other, so that an idle process notices that its log is away.

        A partition that does not answer is asked again until it does.
        """
        partitions = itertools.cycle(self.replica.held)
        partition = next(partitions)
        while True:
            await asyncio.sleep(PROBE_INTERVAL_S)
            try:
                await self.barrier.pass_through(partition, timeout_s=self.settings.read_timeout_s)
            except Unavailable as error:
                self._probe_failures.append(str(error))
            else:
                self._probe_failures.clear()
                partition = next(partitions)

    async def set_policy(self, policy: Policy, *, timeout_s: float = 30.0) -> int:
        """Change the policy in every partition; return its generation."""
        return await self.formatter.set_policy(policy, timeout_s=timeout_s)

    def policy(self) -> Policy:
        """Return the policy of the first partition that is held: the same in all once a change has finished."""
        return self.replica.rows(min(self.replica.held)).meta.policy

    def _on_facts(self, partition: Partition, facts: Sequence[Fact]) -> None:
        if self._keeper is not None:
            self._keeper.take(partition, facts)

    async def confirm(self, *, timeout_s: float = 5.0) -> None:
        """Pass the barrier of every partition that is held: afterwards the view has all that was acknowledged there."""
        for partition in self.replica.states():
            await self.barrier.pass_through(partition, timeout_s=timeout_s)
