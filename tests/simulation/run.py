"""One seed, one run: builds the world, lets routers and trouble loose in it, heals it and asks the checkers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from functools import partial
from random import Random
from typing import Any

import structlog.testing

from ledger.errors import ContentLost, RetryableError
from ledger.policy import Policy, check
from ledger.settings import LedgerSettings
from ledger.turn import Position, Scope, SelectorKind
from tests.simulation.checkers import CHECKERS
from tests.simulation.faults import WEATHERS
from tests.simulation.loop import Deadlock, OutOfTime, virtual_loop
from tests.simulation.model import Model
from tests.simulation.routers import Board, Router, read
from tests.simulation.world import Host, World

TIME_MAX_S = 4 * 3600.0
"""No run takes that long, so one that does has hung."""
TRACE_LINES_SHOWN = 60
DAY_MS = 24 * 3_600_000


class SimulationFailure(AssertionError):
    """A run broke a promise. The message has the seed, the violations and the last lines of the trace."""

    def __init__(self, seed: str, violations: list[str], trace: list[str]) -> None:
        self.seed = seed
        self.violations = violations
        self.trace = trace
        tail = "\n".join(trace[-TRACE_LINES_SHOWN:])
        broken = "\n".join(f"  * {violation}" for violation in violations[:20])
        super().__init__(
            f"seed {seed} broke {len(violations)} promises:\n{broken}\n\nlast lines of its trace:\n{tail}\n\n"
            f"repeat it with: python -m tests.simulation --seed {seed} --trace"
        )


def simulate(seed: str, *, weathers: Sequence[str] = ()) -> World:
    """Run one seed; return its world. Raises ``SimulationFailure``.

    ``weathers`` instead of those that the seed draws: for a defect that only some of them can show.
    """
    random = Random(f"{seed}/run")
    loop = virtual_loop(time_max_s=TIME_MAX_S, expected=(RetryableError, ContentLost))
    settings = LedgerSettings(
        commit_timeout_s=3.0,
        read_timeout_s=2.0,
        max_staleness_s=random.choice([0.0, 0.5, 1.0]),
        commit_window_ms=50_000,
    )
    world = World(seed, loop, settings=settings, policy=choose_policy(random))
    with structlog.testing.capture_logs() as logs:
        try:
            loop.run(_live(world, random, weathers))
        except (Deadlock, OutOfTime, AssertionError) as error:
            world.violation(f"the run did not end: {error!r}")
        finally:
            loop.drain()
    for entry in logs:
        if entry["log_level"] == "critical":
            world.violation(f"logged as critical: {entry}")
    violations = world.evidence.violations
    if not violations:
        model = Model(world.evidence, world.alias_key)
        for checker in CHECKERS:
            violations.extend(f"{checker.__name__}: {found}" for found in checker(world.evidence, model))
    if violations:
        raise SimulationFailure(seed, violations, world.trace_lines)
    return world


def choose_policy(random: Random) -> Policy:
    """Return lifetimes and limits short enough that a run reaches them."""
    commit_grace_ms = random.choice([0, 5_000, 15_000])
    policy = Policy(
        active_ttl_ms=random.choice([20_000, 60_000, 3_600_000, 3_600_000]),
        sliding=random.random() < 0.4,
        tombstone_ttl_ms=random.choice([commit_grace_ms, 30_000, 3_600_000]),
        tombstones_per_principal_max=random.choice([3, 100_000, 100_000]),
        commit_grace_ms=commit_grace_ms,
        idempotency_ttl_ms=random.choice([20_000, 600_000]),
        lineage_turns_max=random.choice([5, 10_000, 10_000]),
        principal_records_max=random.choice([6, 1_000_000, 1_000_000]),
        principal_bytes_max=random.choice([2_000, 2**40, 2**40, 2**40]),
        event_window_max_ms=random.choice([120_000, 600_000]),
        content_grace_ms=random.choice([60_000, 3_600_000]),
        lease_max_ms=20_000,
    )
    check(policy)
    return policy


async def _live(world: World, random: Random, weathers: Sequence[str]) -> None:
    """Everything that happens in one run."""
    loop = world.loop
    await asyncio.gather(*(world.start(host) for host in world.hosts))
    scopes = [
        Scope(namespace="prod", route=route, principal=f"tenant-{number}")
        for number in range(random.choice([1, 2, 4]))
        for route in (["main", "other"] if number == 0 else ["main"])
    ]
    board = Board(scopes=scopes)
    routers = [
        Router(f"router-{number}", world, board, Random(f"{random.random()}"))
        for number in range(random.choice([3, 5, 8]))
    ]
    trouble: list[Callable[[World, Random], Coroutine[Any, Any, None]]] = [
        partial(_weather, names=weathers or random.sample(sorted(WEATHERS), random.randint(2, len(WEATHERS)))),
        _redeliver,
        _compare,
    ]
    trouble += random.sample([_crashes, _pauses, _closes, _broker_clock, _long_pauses], random.randint(1, 4))
    troubles = [loop.create_task(make(world, Random(f"{random.random()}"))) for make in trouble]
    restarts = loop.create_task(_restart(world))
    operations = random.choice([20, 40])
    await asyncio.gather(*(router.work(operations) for router in routers))
    for task in (*troubles, restarts):
        task.cancel()
    await asyncio.wait([*troubles, restarts])
    if world.evidence.violations:
        return
    await world.heal()
    if not world.evidence.violations:
        await _read_everything(world, board)
        await world.settle()


async def _read_everything(world: World, board: Board) -> None:
    """Ask every replica for every ID that any router has used."""
    for host in world.hosts:
        for kind in SelectorKind:
            for named in board.named[kind]:
                if kind is SelectorKind.ITEM and host is not world.hosts[0]:
                    continue
                mode = "strong" if kind is SelectorKind.ITEM else "history"
                await read(world, host, named.selector, mode, timeout_s=10.0)
                last = world.evidence.reads[-1]
                if last.answer is None and last.failure != "native":
                    world.violation(
                        f"{host.owner} cannot answer for {named.selector.id} when all is well: {last.failure}"
                    )


# Trouble. Each goes on until it is cancelled.


async def _weather(world: World, random: Random, *, names: Sequence[str]) -> None:
    while True:
        await asyncio.sleep(random.expovariate(1 / 2.0))
        host = random.choice(world.hosts)
        name = random.choice([*names, "calm"])
        host.faults.weather = WEATHERS[name]
        world.trace(host.name, f"has {name} weather")


async def _crashes(world: World, random: Random) -> None:
    while True:
        await asyncio.sleep(random.expovariate(1 / 8.0))
        host = random.choice(world.hosts)
        if host.ledger is None or world.loop.is_paused(host.owner):
            continue
        if random.random() < 0.5:
            world.crash(host)
        else:
            host.faults.on_append = _crash_at_append(world, host, random.randint(1, 4), random.random() * 0.003)


def _crash_at_append(world: World, host: Host, appends: int, delay_s: float) -> Callable[[], None]:
    """Return what crashes ``host`` around one of its next appends: before, while or after it is acknowledged."""
    owner, left = host.owner, appends

    def appending() -> None:
        nonlocal left
        left -= 1
        if left == 0 and host.owner == owner and host.ledger is not None:
            host.faults.on_append = None
            # From outside of the process, so that its own end does not take this with it.
            Context().run(world.loop.call_later, delay_s, _crash_if, world, host, owner)

    return appending


def _crash_if(world: World, host: Host, owner: str) -> None:
    if host.owner == owner and host.ledger is not None:
        world.crash(host)


async def _restart(world: World) -> None:
    """Bring back what is down, some time later."""
    while True:
        await asyncio.sleep(0.7)
        for host in world.hosts:
            if host.ledger is None and not host.is_busy:
                world.spawn(host, world.start(host))


async def _closes(world: World, random: Random) -> None:
    while True:
        await asyncio.sleep(random.expovariate(1 / 15.0))
        host = random.choice(world.hosts)
        if host.ledger is not None and not world.loop.is_paused(host.owner):
            world.spawn(host, world.close(host))


async def _pauses(world: World, random: Random) -> None:
    while True:
        await asyncio.sleep(random.expovariate(1 / 10.0))
        host = random.choice(world.hosts)
        if host.ledger is not None and not world.loop.is_paused(host.owner):
            owner = world.pause(host)
            await asyncio.sleep(random.choice([0.5, 3.0, 12.0]))
            world.trace(host.name, "resumes")
            world.loop.resume(owner)


async def _long_pauses(world: World, random: Random) -> None:
    """Let so much time pass that things expire; routers stand still meanwhile."""
    while True:
        await asyncio.sleep(random.expovariate(1 / 10.0))
        world.trace("world", "time passes")
        world.idle_until_s = world.loop.time() + random.choice([15.0, 40.0, 200.0])
        await asyncio.sleep(max(0.0, world.idle_until_s - world.loop.time()))


async def _broker_clock(world: World, random: Random) -> None:
    while True:
        await asyncio.sleep(random.expovariate(1 / 6.0))
        world.broker_offset_ms = random.choice([0, 0, DAY_MS, -3_600_000, 90_000, -5_000])
        world.trace("log", f"broker clock is off by {world.broker_offset_ms} ms")


async def _redeliver(world: World, random: Random) -> None:
    """Land old records once more, as a stopped producer does when it wakes up; foreign and broken ones too."""
    while True:
        await asyncio.sleep(random.expovariate(1 / 3.0))
        partition = random.choice(world.partitions)
        records = world.topic.read(partition, Position(0), world.topic.end(partition))
        if not records:
            continue
        record = random.choice(records[-20:] if random.random() < 0.7 else records)
        value = record.value or b""
        if random.random() < 0.1:
            partition = random.choice(world.partitions)
        if random.random() < 0.1:
            value = value[: random.randint(0, len(value))]
        world.topic.land(partition, record.key or b"", value, world.broker_ms())


async def _compare(world: World, random: Random) -> None:
    while True:
        await asyncio.sleep(random.expovariate(1 / 2.0))
        world.compare_rows(random.choice(world.hosts))
