"""The simulated world: several replicas with the real code, one log, one clock, and everything that can go wrong.

One ``World`` is one run of one seed. Hosts stand for processes: they crash at any await, lose unsynced writes, are
paused and come back. Nothing in here draws from anything but the seed, so that a run can be repeated.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from functools import partial
from random import Random
from typing import Any, TypeVar

from ledger.adapters.memory import MemoryContents, MemoryContentStore, MemoryLog, MemoryTopic
from ledger.alias import AliasKey, partition_of
from ledger.errors import LedgerError
from ledger.keeper import Keeper
from ledger.ledger import Ledger
from ledger.log import Appended, Record
from ledger.policy import Policy
from ledger.query import Reader
from ledger.replica import Replica
from ledger.settings import LedgerSettings
from ledger.turn import Partition, Position, Scope
from ledger.verdict import Outcome
from tests.simulation.evidence import Evidence, Folded, Sent
from tests.simulation.faults import HEALED, WRITES_LOST_MAX, CrashableStore, HostContentFaults, HostFaults
from tests.simulation.loop import CALL, OWNER, VirtualLoop
from tests.simulation.replay import rows_digest

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000
"""Wall clock at virtual time 0."""
ALIAS_KEY = AliasKey(b"simulation-alias-key")
UNWIND_S = 30.0
"""Virtual time in which a cancelled process must have ended all its tasks."""
HANG_S = 3.0
"""How long a call may take beyond its own deadline."""
START_TIMEOUT_S = 5.0


class Lost(Exception):
    """The replica crashed, was closed or hung before it answered."""


class Topic(MemoryTopic):
    """The log, telling the world of everything that lands."""

    def __init__(self, partition_count: int, on_landed: Callable[[Partition, Appended, bytes], None]) -> None:
        super().__init__(partition_count, log_id="simulated")
        self._on_landed = on_landed

    def land(self, partition: Partition, key: bytes, value: bytes | None, appended_at_ms: int) -> Appended:
        assert value is not None, "an event is no null record"
        appended = super().land(partition, key, value, appended_at_ms)
        self._on_landed(partition, appended, value)
        return appended


class Host:
    """One process: what survives it (its disk), and what runs in it now."""

    def __init__(self, name: str, random: Random, skew_ms: int) -> None:
        self.name = name
        self.skew_ms = skew_ms
        self.incarnation = 0
        self.faults = HostFaults(random)
        self.content_faults = HostContentFaults(self.faults, random)
        self.store = CrashableStore(self.faults.store_fails)
        self.ledger: Ledger | None = None
        """None while it is down, starting or closing."""
        self.is_busy = False
        """It is being started or closed."""
        self.lost_writes_count = 0
        """How often a crash took writes back."""

    @property
    def owner(self) -> str:
        return f"{self.name}#{self.incarnation}"


class World:
    """All hosts, the log, and the record of what happened."""

    def __init__(self, seed: str, loop: VirtualLoop, *, settings: LedgerSettings, policy: Policy) -> None:
        self.loop = loop
        self.random = Random(f"{seed}/world")
        self.settings = settings
        self.policy = policy
        self.alias_key = ALIAS_KEY
        partition_count = self.random.choice([1, 2, 3])
        self.topic = Topic(partition_count, self._landed)
        self.contents = MemoryContents()
        self.broker_offset_ms = 0
        self.idle_until_s = 0.0
        """Routers do nothing until then."""
        self.evidence = Evidence(partition_count=partition_count)
        self.trace_lines: list[str] = []
        self._trace_digest = hashlib.blake2b(digest_size=16)
        self._spawned: list[asyncio.Task[object]] = []
        self._ids = Random(f"{seed}/ids")
        self._acknowledged: dict[Partition, list[tuple[float, Position]]] = {}
        self.kept: list[tuple[Sent, Host, int]] = []
        """Abandonments that a host keeps on its disk, and how often that disk had lost writes by then."""
        self.hosts = [
            Host(f"r{number}", Random(f"{seed}/host/{number}"), self.random.choice([0, 0, -2_000, 1_500, 20_000]))
            for number in range(1, self.random.choice([2, 3, 3]) + 1)
        ]

    # Time, names and the trace

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self.loop.time() * 1000)

    def broker_ms(self) -> int:
        return self.wall_ms() + self.broker_offset_ms

    def host_ms(self, host: Host) -> int:
        return self.wall_ms() + host.skew_ms

    def trace(self, who: str, what: str) -> None:
        line = f"{self.loop.time():12.6f} {who:8} {what}"
        self.trace_lines.append(line)
        self._trace_digest.update(line.encode() + b"\n")

    @property
    def trace_digest(self) -> str:
        """Digest over every line of the trace: equal for equal seeds."""
        return self._trace_digest.hexdigest()

    def violation(self, message: str) -> None:
        self.trace("CHECK", message)
        self.evidence.violations.append(message)

    def _landed(self, partition: Partition, appended: Appended, value: bytes) -> None:
        digest = hashlib.blake2b(value, digest_size=6).hexdigest()
        self.trace("log", f"{partition}:{appended.offset} at {appended.appended_at_ms} {digest}")

    # Hosts

    @property
    def partitions(self) -> list[Partition]:
        return [Partition(number) for number in range(self.topic.partition_count)]

    def partition(self, scope: Scope) -> Partition:
        return partition_of(self.alias_key.principal(scope), self.topic.partition_count)

    def up(self) -> list[Host]:
        return [host for host in self.hosts if host.ledger is not None]

    def spawn(self, host: Host, work: Coroutine[Any, Any, object]) -> None:
        """Start or close a host in the background; ``heal`` waits for it."""
        host.is_busy = True
        self._spawned.append(self.loop.create_task(work))

    async def start(self, host: Host) -> bool:
        """Start a host's next incarnation; return whether it serves."""
        host.incarnation += 1
        owner = host.owner
        self.trace(host.name, f"starts as {owner}")
        try:
            ledger = await self.run_in(host, self._open(host))
        except (LedgerError, Lost) as error:
            self.trace(host.name, f"did not start: {error}")
            if owner == host.owner:
                await self._wiped_out(owner)
                host.store = host.store.after_crash(0)
            return False
        finally:
            host.is_busy = False
        if owner != host.owner:
            return False
        host.ledger = ledger
        self.trace(host.name, "serves")
        return True

    async def _open(self, host: Host) -> Ledger:
        log = MemoryLog(self.topic, now_ms=self.broker_ms, faults=host.faults)
        contents = MemoryContentStore(self.contents, now_ms=self.broker_ms, faults=host.content_faults)

        async def purge() -> None:
            """Memory is given back at once."""

        async def trim(_: Position) -> None:
            """The log is kept for the checkers."""

        def keeper(reader: Reader, replica: Replica) -> Keeper:
            return Keeper(contents, reader, replica, sweeps=lambda _: [], purge=purge, trim=trim)

        ledger = Ledger(
            log,
            contents,
            host.store,
            self.alias_key,
            settings=self.settings,
            now_ms=partial(self.host_ms, host),
            new_id=lambda: self._ids.randbytes(16),
            on_outcome=partial(self._judged, host.owner),
            keeper=keeper,
        )
        await ledger.start(format_policy=self.policy, timeout_s=START_TIMEOUT_S)
        return ledger

    def _judged(self, owner: str, record: Record, outcome: Outcome) -> None:
        place = (record.partition, record.offset)
        known = self.evidence.outcomes.get(place)
        if known is None:
            self.evidence.outcomes[place] = (owner, outcome)
            self.trace(owner, f"judged {record.partition}:{record.offset} {outcome.code.word} {outcome.reason}")
        elif known[1] != outcome:
            self.violation(
                f"verdicts differ at {record.partition}:{record.offset}: {known[0]} said {known[1]}, "
                f"{owner} said {outcome}"
            )

    def crash(self, host: Host) -> None:
        """Kill -9, perhaps with the newest writes lost; the disk stays."""
        writes_lost = self.random.choice([0, 0, self.random.randint(1, WRITES_LOST_MAX)])
        self.trace(host.name, f"crashes and loses {writes_lost} writes")
        owner = host.owner
        host.ledger = None
        host.incarnation += 1
        host.store = host.store.after_crash(writes_lost)
        host.lost_writes_count += bool(writes_lost)
        self.loop.kill(owner)
        self.loop.create_task(self._wiped_out(owner))

    async def _wiped_out(self, owner: str) -> None:
        if tasks := self.loop.tasks(owner):
            await asyncio.wait(tasks, timeout=UNWIND_S)
        for task in self.loop.tasks(owner):
            self.violation(f"a task of {owner} did not end: {task.get_coro()}")

    async def close(self, host: Host) -> None:
        """Stop a host in the regular way, with calls under way."""
        ledger, owner = host.ledger, host.owner
        if ledger is not None:
            self.trace(host.name, "closes")
            host.ledger = None
            await self.run_in(host, ledger.close())
            await self._wiped_out(owner)
            self._count_waiting(owner, ledger)
            host.store = host.store.after_crash(0)
        host.is_busy = False

    def _count_waiting(self, owner: str, ledger: Ledger) -> None:
        if waiting := ledger.replica.pending_count():
            self.violation(f"{owner} still has {waiting} waiters although nobody waits")

    async def run_in(self, host: Host, work: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Run ``work`` as part of a host; raises ``Lost`` when the host does not live or answer that long."""
        owner = host.owner
        context = copy_context()
        context.run(OWNER.set, owner)
        task = self.loop.create_task(work, name=CALL, context=context)
        began_s = self.loop.time()
        await asyncio.wait([task], timeout=timeout_s)
        if not task.done():
            if timeout_s is not None and self.loop.ran_s(owner, began_s) >= timeout_s:
                self.violation(f"a call on {owner} hung for {timeout_s:.1f} s")
            task.add_done_callback(_ignored)
            raise Lost("no answer in time")
        if task.cancelled():
            raise Lost("the connection broke")
        return task.result()

    async def call(self, host: Host, use: Callable[[Ledger], Awaitable[T]], timeout_s: float) -> T:
        """Call a host as a client does: over a connection that breaks when the host does."""
        ledger = host.ledger
        if ledger is None:
            raise Lost("connection refused")

        async def work() -> T:
            return await use(ledger)

        return await self.run_in(host, work(), timeout_s=timeout_s + HANG_S)

    def pause(self, host: Host) -> str:
        """Stop a host as SIGSTOP does; return what ``loop.resume`` wants."""
        self.trace(host.name, "pauses")
        self.loop.pause(host.owner)
        return host.owner

    # What clients know, and rows

    def acknowledge(self, partition: Partition, position: Position) -> None:
        """A client was told of something below ``position``."""
        known = self._acknowledged.setdefault(partition, [(0.0, Position(0))])
        known.append((self.loop.time(), max(position, known[-1][1])))

    def acknowledged(self, partition: Partition, at_s: float) -> Position:
        """Return the position below which everything that was acknowledged by ``at_s`` lies."""
        position = Position(0)
        for when_s, known in self._acknowledged.get(partition, []):
            if when_s > at_s:
                break
            position = known
        return position

    def compare_rows(self, host: Host) -> None:
        """Digest a running host's rows and compare them with what others had at the same position."""
        if host.ledger is None:
            return
        for partition, state in host.ledger.replica.states().items():
            folded = Folded(
                host=host.owner,
                partition=partition,
                position=state.rows.position,
                digest=rows_digest(host.store.copy(), partition),
            )
            self.evidence.folded.append(folded)

    def check_alive(self, host: Host) -> None:
        """A replica that serves has its tail running and its partitions served."""
        if host.ledger is None:
            return
        for partition, state in host.ledger.replica.states().items():
            if state.stopped is not None:
                self.violation(f"{host.owner} stopped partition {partition}: {state.stopped}")

    # The end

    async def heal(self) -> None:
        """End all faults and bring every host up and to the end of the log."""
        self.trace("world", "heals")
        self.broker_offset_ms = 0
        for host in self.hosts:
            host.faults.weather = HEALED
            host.faults.on_append = None
            self.loop.resume(host.owner)
        if self._spawned:
            await asyncio.wait(self._spawned)
        await asyncio.sleep(self.settings.commit_timeout_s + HANG_S)
        for host in self.hosts:
            healed_s = self.loop.time()
            while host.ledger is None:
                if self.loop.time() - healed_s > UNWIND_S:
                    self.violation(f"{host.name} does not start although nothing fails")
                    return
                if not await self.start(host):
                    await asyncio.sleep(0.5)
        await asyncio.sleep(2 * self.settings.abandon_retry_s + self.settings.commit_timeout_s)

    async def settle(self) -> None:
        """Check, after ``heal``, that every replica is quiet, complete and equal to the others."""
        for host in self.hosts:
            ledger = host.ledger
            assert ledger is not None
            try:
                await self.call(host, lambda ledger: ledger.confirm(timeout_s=10.0), 30.0)
            except (LedgerError, Lost) as error:
                self.violation(f"{host.owner} did not catch up although nothing fails: {error}")
            if waiting := ledger.committer.abandonments_waiting():
                self.violation(f"{host.owner} still keeps {waiting} abandonments although it can write")
            self._count_waiting(host.owner, ledger)
            self.check_alive(host)
            self.compare_rows(host)
        for partition in self.partitions:
            end = self.topic.end(partition)
            self.evidence.records[partition] = list(self.topic.read(partition, Position(0), end))
        for sent, host, lost_writes_count in self.kept:
            sent.is_abandoned = host.lost_writes_count == lost_writes_count
        for death in self.loop.died:
            self.violation(death)


def _ignored(task: asyncio.Task[Any]) -> None:
    """Take note of how a call ended for which nobody waits any more."""
    if not task.cancelled():
        task.exception()
