"""Routers and their clients: random work over all replicas, each remembering what it was told.

They behave as the design asks of them: the same event ID over the retries of one commit, an abandonment only for a
commit that is not retried afterwards, a new event ID for a new request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from ledger.answer import Found, Gone, Token, Verdict
from ledger.commit import TurnStart
from ledger.conversations import ITEM_DELETE_ATTEMPTS_MAX
from ledger.errors import CallerError, LedgerError, StoreFailed, Unavailable, Unknown
from ledger.ledger import Ledger
from ledger.query import NativeHistory
from ledger.turn import Content, Owner, Position, Revision, Scope, Selector, SelectorKind, Status, Turn
from ledger.verdict import Code
from tests.simulation.evidence import Attempt, Items, Read, Sent
from tests.simulation.world import Host, Lost, World

ATTEMPTS_MAX = 4
NATIVE_OWNERS = [
    Owner(native=True, target="P1", digest=b"account-1"),
    Owner(native=True, target="P1", digest=b"account-2"),
    Owner(native=True, target="P2", digest=b"account-1"),
]
PORTABLE_OWNERS = [Owner(native=False, target="C"), Owner(native=False, target="D")]


@dataclass(slots=True, kw_only=True)
class Named:
    """An ID that some router has used, whatever became of it."""

    selector: Selector
    owner: Owner
    conversation: Selector | None = None
    """Of an item: where it is."""


@dataclass(slots=True)
class Board:
    """What all routers know of each other's IDs."""

    scopes: list[Scope]
    named: dict[SelectorKind, list[Named]] = field(default_factory=lambda: {kind: [] for kind in SelectorKind})
    requests: list[tuple[Scope, str, bytes]] = field(default_factory=list)
    """Idempotency keys in use."""
    revisions: dict[Selector, Revision] = field(default_factory=dict)
    """Revisions that a router has read, perhaps long ago."""
    tokens: list[Token] = field(default_factory=list)
    count: int = 0

    def new(self, word: str) -> str:
        self.count += 1
        return f"{word}_{self.count}"


class Router:
    """One router process with its clients."""

    def __init__(self, name: str, world: World, board: Board, random: Random) -> None:
        self.name = name
        self._world = world
        self._board = board
        self._random = random
        self._home = random.choice(world.hosts)

    async def work(self, operations: int) -> None:
        """Do that many operations with pauses between them."""
        random = self._random
        actions: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (34, self._turn),
            (8, self._request_with_key),
            (22, self._read),
            (8, self._delete_response),
            (6, self._create_conversation),
            (3, self._update_conversation),
            (3, self._delete_conversation),
            (8, self._append_items),
            (5, self._delete_items),
            (1, self._erase_principal),
            (1, self._set_policy),
        ]
        weights = [weight for weight, _ in actions]
        for _ in range(operations):
            await asyncio.sleep(random.expovariate(1 / 0.2))
            await asyncio.sleep(max(0.0, self._world.idle_until_s - self._world.loop.time()))
            if self._world.evidence.violations:
                return
            _, action = random.choices(actions, weights)[0]
            await action()

    # Turns

    async def _turn(self) -> None:
        turn, is_plain = self._new_turn()
        sent = self._sent("turn", turn.scope, turn.event_id, is_plain=is_plain)
        verdict = await self._settle(sent, lambda ledger, timeout_s: ledger.committer.commit(turn, timeout_s=timeout_s))
        if is_plain:
            # Named only now, so that nobody else can have claimed it.
            self._name(SelectorKind.RESPONSE, turn.scope, turn.response_id, turn.owner)
        if verdict is None:
            return
        if verdict.accepted and turn.conversation_id is not None:
            conversation = Selector(scope=turn.scope, kind=SelectorKind.CONVERSATION, id=turn.conversation_id)
            self._board.revisions[conversation] = verdict.revision
            await self._follow_up(conversation)
        else:
            await self._follow_up(Selector(scope=turn.scope, kind=SelectorKind.RESPONSE, id=turn.response_id))

    def _new_turn(self, *, scope: Scope | None = None, key: tuple[str, bytes] | None = None) -> tuple[Turn, bool]:
        random, board = self._random, self._board
        scope = scope or random.choice(board.scopes)
        conversation_id = previous_id = None
        expected: Revision | None = None
        owner = random.choice(NATIVE_OWNERS if random.random() < 0.3 else PORTABLE_OWNERS)
        style = random.random()
        if style < 0.3 and (parent := self._pick(SelectorKind.RESPONSE, scope)):
            previous_id = parent.selector.id
            owner = self._mostly(parent.owner, owner)
        elif style < 0.8:
            known = self._pick(SelectorKind.CONVERSATION, scope)
            if known is None or random.random() < 0.1:
                conversation_id = board.new("conv")
                self._name(SelectorKind.CONVERSATION, scope, conversation_id, owner)
                expected = Revision(0) if random.random() < 0.3 else None
            else:
                conversation_id, owner = known.selector.id, self._mostly(known.owner, owner)
                if random.random() < 0.5:
                    expected = board.revisions.get(known.selector)
        response_id, is_fresh = board.new("resp"), True
        if random.random() < 0.1 and (taken := self._pick(SelectorKind.RESPONSE, scope)):
            response_id, is_fresh = taken.selector.id, False
        event_id = board.new("event")
        status = random.choices([Status.COMPLETED, Status.INCOMPLETE, Status.FAILED, Status.CANCELLED], [85, 6, 6, 3])[
            0
        ]
        items, item_ids = self._new_items(scope, event_id, conversation_id, is_portable=not owner.native)
        turn = Turn(
            scope=scope,
            event_id=event_id,
            response_id=response_id,
            owner=owner,
            status=status,
            conversation_id=conversation_id,
            previous_response_id=previous_id,
            item_ids=item_ids,
            content=None if owner.native else Content(input=items[0], output=items[1]),
            begun_at_ms=self._world.wall_ms(),
            expected_revision=expected,
            idempotency_key=None if key is None else key[0],
            request_digest=b"" if key is None else key[1],
        )
        is_plain = is_fresh and conversation_id is None and previous_id is None and key is None
        if is_fresh and not is_plain:
            self._name(SelectorKind.RESPONSE, scope, response_id, owner)
        return turn, is_plain

    def _new_items(
        self, scope: Scope, event_id: str, conversation_id: str | None, *, is_portable: bool
    ) -> tuple[Items, tuple[str, ...]]:
        if not is_portable:
            return ([], []), ()
        ids = [self._board.new("item") for _ in range(self._random.randint(1, 3))]
        made: list[Any] = [{"id": item_id, "text": self._random.randbytes(12).hex()} for item_id in ids]
        items: Items = (made[:1], made[1:])
        alias = self._world.alias_key
        self._world.evidence.documents[alias.event_id(scope, event_id)] = items
        named = [item_id for item_id in ids if self._random.random() < 0.6]
        conversation = None
        if conversation_id is not None:
            conversation = Selector(scope=scope, kind=SelectorKind.CONVERSATION, id=conversation_id)
        for item_id in named:
            self._name(SelectorKind.ITEM, scope, item_id, PORTABLE_OWNERS[0], conversation)
            self._world.evidence.alias_names[alias.alias_of(scope, SelectorKind.ITEM, item_id)] = item_id
        return items, tuple(named)

    async def _request_with_key(self) -> None:
        """A client's request with an idempotency key; other attempts at the same request may run elsewhere."""
        random, board = self._random, self._board
        if board.requests and random.random() < 0.6:
            scope, key, digest = random.choice(board.requests[-4:])
            if random.random() < 0.1:
                digest = b"another request"
        else:
            scope, key, digest = random.choice(board.scopes), board.new("key"), random.randbytes(8)
            board.requests.append((scope, key, digest))
        turn_id: str | None = None
        if random.random() < 0.7:
            start = TurnStart(
                scope=scope,
                event_id=board.new("event"),
                turn_id=board.new("turn"),
                begun_at_ms=self._world.wall_ms(),
                lease_ms=random.choice([2_000, 10_000]),
                idempotency_key=key,
                request_digest=digest,
            )
            sent = self._sent("start", scope, start.event_id)
            verdict = await self._settle(
                sent, lambda ledger, timeout_s: ledger.committer.begin(start, timeout_s=timeout_s), may_abandon=False
            )
            if verdict is None or verdict.code is not Code.ACCEPTED:
                return
            turn_id = start.turn_id
            await asyncio.sleep(random.expovariate(1 / 1.0))
        turn, _ = self._new_turn(scope=scope, key=(key, digest))
        turn = replace(turn, turn_id=turn_id)
        sent = self._sent("turn", scope, turn.event_id)
        await self._settle(sent, lambda ledger, timeout_s: ledger.committer.commit(turn, timeout_s=timeout_s))

    async def _follow_up(self, selector: Selector) -> None:
        """Read what has just been changed, at once or soon after it was acknowledged, on any replica."""
        if self._random.random() < 0.8:
            if self._random.random() < 0.3:
                await asyncio.sleep(self._random.expovariate(1 / 0.7))
            host = self._random.choice(self._world.hosts)
            await read(self._world, host, selector, self._choose_mode(), timeout_s=self._world.settings.read_timeout_s)

    # Changes outside a turn

    async def _delete_response(self) -> None:
        if known := self._pick(SelectorKind.RESPONSE):
            await self._change(
                "delete_response",
                known.selector.scope,
                lambda ledger, event_id, timeout_s: ledger.conversations.delete_response(
                    known.selector, event_id=event_id, timeout_s=timeout_s
                ),
            )
            await self._follow_up(known.selector)

    async def _create_conversation(self) -> None:
        random, board = self._random, self._board
        scope, event_id = random.choice(board.scopes), board.new("event")
        owner = NATIVE_OWNERS[0] if random.random() < 0.2 else Owner(native=False, target="ledger")
        known = self._pick(SelectorKind.CONVERSATION, scope) if random.random() < 0.2 else None
        conversation_id = known.selector.id if known else board.new("conv")
        selector = Selector(scope=scope, kind=SelectorKind.CONVERSATION, id=conversation_id)
        with_items = not owner.native and random.random() < 0.5
        items, item_ids = self._new_items(scope, event_id, conversation_id, is_portable=with_items)
        metadata = {"topic": board.new("topic")} if not owner.native and random.random() < 0.5 else None
        self._world.evidence.documents[self._world.alias_key.event_id(scope, event_id)] = ([*items[0], *items[1]], [])
        sent = self._sent("create", scope, event_id)
        await self._settle(
            sent,
            lambda ledger, timeout_s: ledger.conversations.create(
                selector,
                event_id=event_id,
                owner=owner,
                metadata=metadata,
                items=[*items[0], *items[1]] or None,
                item_ids=item_ids,
                timeout_s=timeout_s,
            ),
        )
        if known is None:
            self._name(SelectorKind.CONVERSATION, scope, conversation_id, owner)

    async def _update_conversation(self) -> None:
        if known := self._pick(SelectorKind.CONVERSATION):
            metadata = {"topic": self._board.new("topic")}
            await self._change(
                "update",
                known.selector.scope,
                lambda ledger, event_id, timeout_s: ledger.conversations.update(
                    known.selector, event_id=event_id, metadata=metadata, timeout_s=timeout_s
                ),
            )

    async def _delete_conversation(self) -> None:
        if known := self._pick(SelectorKind.CONVERSATION):
            cascade = self._random.random() < 0.5
            await self._change(
                "delete_conversation",
                known.selector.scope,
                lambda ledger, event_id, timeout_s: ledger.conversations.delete(
                    known.selector, event_id=event_id, cascade=cascade, timeout_s=timeout_s
                ),
            )

    async def _append_items(self) -> None:
        known = self._pick(SelectorKind.CONVERSATION)
        if known is None:
            return
        selector, event_id = known.selector, self._board.new("event")
        items, item_ids = self._new_items(selector.scope, event_id, selector.id, is_portable=True)
        together = [*items[0], *items[1]]
        self._world.evidence.documents[self._world.alias_key.event_id(selector.scope, event_id)] = (together, [])
        expected = self._board.revisions.get(selector) if self._random.random() < 0.4 else None
        sent = self._sent("append_items", selector.scope, event_id)
        verdict = await self._settle(
            sent,
            lambda ledger, timeout_s: ledger.conversations.append_items(
                selector,
                event_id=event_id,
                items=together,
                item_ids=item_ids,
                expected_revision=expected,
                timeout_s=timeout_s,
            ),
        )
        if verdict is not None and verdict.accepted:
            self._board.revisions[selector] = verdict.revision

    async def _delete_items(self) -> None:
        """Delete one item, or two that were added together, at once and perhaps on two replicas."""
        known = self._pick(SelectorKind.ITEM)
        if known is None:
            return
        named = self._board.named[SelectorKind.ITEM]
        following = named[named.index(known) + 1 :][:1]
        await asyncio.gather(*(self._delete_item(item) for item in (known, *following)))

    async def _delete_item(self, known: Named) -> None:
        conversation = known.conversation
        if conversation is None:
            other = self._pick(SelectorKind.CONVERSATION, known.selector.scope)
            if other is None:
                return
            conversation = other.selector
        # The library names its attempts itself, so this call is not retried here.
        event_id = self._board.new("event")
        await self._attempt(
            [
                self._sent("delete_item", known.selector.scope, f"{event_id}#{number}")
                for number in range(ITEM_DELETE_ATTEMPTS_MAX)
            ],
            self._choose_host(),
            lambda ledger, timeout_s: ledger.conversations.delete_item(
                conversation, known.selector, event_id=event_id, timeout_s=timeout_s
            ),
        )

    async def _erase_principal(self) -> None:
        scope = self._random.choice(self._board.scopes)
        await self._change(
            "erase",
            scope,
            lambda ledger, event_id, timeout_s: ledger.conversations.erase_principal(
                scope, event_id=event_id, timeout_s=timeout_s
            ),
        )

    async def _set_policy(self) -> None:
        """Change the lifetime of responses; several routers may do so at once."""
        world, host = self._world, self._choose_host()
        ttl_ms = self._random.choice([20_000, 60_000, 600_000])

        async def change(ledger: Ledger) -> int:
            policy = ledger.policy()
            values = {name: getattr(policy, name) for name in type(policy).__struct_fields__}
            return await ledger.set_policy(type(policy)(**{**values, "active_ttl_ms": ttl_ms}), timeout_s=5.0)

        world.trace(self.name, f"sets the policy on {host.name}")
        try:
            generation = await world.call(host, change, 300.0)
        except (LedgerError, Lost) as error:
            world.trace(self.name, f"policy: {type(error).__name__}")
        else:
            world.trace(self.name, f"policy: generation {generation}")

    async def _change(self, kind: str, scope: Scope, use: Callable[[Ledger, str, float], Awaitable[Verdict]]) -> None:
        event_id = self._board.new("event")
        sent = self._sent(kind, scope, event_id)
        await self._settle(sent, lambda ledger, timeout_s: use(ledger, event_id, timeout_s), may_abandon=False)

    # Attempts

    async def _settle(
        self,
        sent: Sent,
        use: Callable[[Ledger, float], Awaitable[Verdict]],
        *,
        may_abandon: bool = True,
    ) -> Verdict | None:
        """Try, retry here or elsewhere, or give up, as a router does; return the verdict if it was told one."""
        random = self._random
        host = self._choose_host()
        for number in range(ATTEMPTS_MAX):
            verdict = await self._attempt([sent], host, use)
            failure = sent.attempts[-1].failure
            if verdict is not None and random.random() > 0.05:
                return verdict
            if failure == "refused":
                return None
            if verdict is None and may_abandon and random.random() < 0.4:
                await self._abandon(sent, host)
                return None
            if number + 1 < ATTEMPTS_MAX:
                await asyncio.sleep(random.expovariate(1 / 1.0))
                if random.random() < 0.5:
                    host = self._choose_host()
        return None

    async def _attempt(
        self, sent: list[Sent], host: Host, use: Callable[[Ledger, float], Awaitable[Verdict]]
    ) -> Verdict | None:
        world = self._world
        timeout_s = self._random.choice([0.5, world.settings.commit_timeout_s])
        attempt = Attempt(host=host.owner, began_s=world.loop.time(), timeout_s=timeout_s)
        for one in sent:
            one.attempts.append(attempt)
        name = f"{sent[0].kind} {sent[0].event_id}"
        world.trace(self.name, f"{name} to {host.owner}")
        try:
            verdict = await world.call(host, lambda ledger: use(ledger, timeout_s), timeout_s)
        except Unknown:
            attempt.failure = "unknown"
        except Unavailable as error:
            attempt.failure = "unavailable"
            world.trace(self.name, str(error))
        except Lost:
            attempt.failure = "lost"
        except CallerError as error:
            attempt.failure = "refused"
            world.trace(self.name, str(error))
        except LedgerError as error:
            attempt.failure = "unknown"
            world.trace(self.name, f"{type(error).__name__}: {error}")
        else:
            attempt.verdict = verdict
            self._board.tokens.append(verdict.token)
            world.acknowledge(verdict.token.partition, _after(verdict.token))
        attempt.ended_s = world.loop.time()
        answer = attempt.failure
        if attempt.verdict is not None:
            answer = f"{attempt.verdict.code.word} {attempt.verdict.first} {attempt.verdict.token}"
        world.trace(self.name, f"{name}: {answer}")
        return attempt.verdict

    async def _abandon(self, sent: Sent, host: Host) -> None:
        world = self._world
        lost_before = host.lost_writes_count
        timeout_s = world.settings.commit_timeout_s
        world.trace(self.name, f"abandons {sent.event_id} on {host.owner}")
        try:
            verdict = await world.call(
                host,
                lambda ledger: ledger.committer.abandon(sent.scope, sent.event_id, timeout_s=timeout_s),
                timeout_s,
            )
        except (LedgerError, Lost) as error:
            world.trace(self.name, f"abandonment of {sent.event_id}: {type(error).__name__}")
            return
        if verdict is not None:
            world.acknowledge(verdict.token.partition, _after(verdict.token))
            sent.is_abandoned = True
        else:
            world.kept.append((sent, host, lost_before))
        world.trace(self.name, f"abandonment of {sent.event_id}: {verdict}")

    # Reads

    async def _read(self) -> None:
        random = self._random
        kind = random.choices([SelectorKind.RESPONSE, SelectorKind.CONVERSATION, SelectorKind.ITEM], [60, 30, 10])[0]
        known = self._pick(kind)
        selector = Selector(scope=random.choice(self._board.scopes), kind=kind, id="never")
        if known is not None and random.random() < 0.95:
            selector = known.selector
        token = random.choice(self._board.tokens) if self._board.tokens and random.random() < 0.2 else None
        await read(
            self._world,
            self._choose_host(),
            selector,
            "strong" if kind is SelectorKind.ITEM else self._choose_mode(),
            token=token,
            timeout_s=random.choice([0.3, self._world.settings.read_timeout_s]),
        )

    # Choices

    def _choose_host(self) -> Host:
        return self._home if self._random.random() < 0.5 else self._random.choice(self._world.hosts)

    def _choose_mode(self) -> str:
        return self._random.choice(["weak", "weak", "strong", "history"])

    def _pick(self, kind: SelectorKind, scope: Scope | None = None) -> Named | None:
        known = [named for named in self._board.named[kind] if scope is None or named.selector.scope == scope]
        if not known:
            return None
        return self._random.choice(known[-4:] if self._random.random() < 0.7 else known)

    def _mostly(self, owner: Owner, other: Owner) -> Owner:
        return owner if self._random.random() < 0.85 else other

    def _name(
        self, kind: SelectorKind, scope: Scope, opaque_id: str, owner: Owner, conversation: Selector | None = None
    ) -> None:
        selector = Selector(scope=scope, kind=kind, id=opaque_id)
        self._board.named[kind].append(Named(selector=selector, owner=owner, conversation=conversation))

    def _sent(self, kind: str, scope: Scope, event_id: str, *, is_plain: bool = False) -> Sent:
        digest = self._world.alias_key.event_id(scope, event_id)
        sent = Sent(
            kind=kind,
            scope=scope,
            partition=self._world.partition(scope),
            event_id=event_id,
            digest=digest,
            is_plain=is_plain,
        )
        self._world.evidence.sent.append(sent)
        return sent


async def read(
    world: World, host: Host, selector: Selector, mode: str, *, token: Token | None = None, timeout_s: float
) -> None:
    """Read an ID on a host and keep what it answered."""
    partition = world.partition(selector.scope)
    began_s = world.loop.time()
    staleness_s = world.settings.max_staleness_s if mode == "weak" else 0.0
    one = Read(
        host=host.owner,
        selector=selector,
        partition=partition,
        mode=mode,
        began_s=began_s,
        acknowledged=world.acknowledged(partition, began_s),
        acknowledged_before=world.acknowledged(partition, began_s - staleness_s),
        timeout_s=timeout_s,
    )
    name = f"{mode} {selector.kind.name.lower()} {selector.id}"
    world.trace("reader", f"{name} on {host.owner}")
    try:
        one.answer = await world.call(
            host,
            lambda ledger: ledger.reader.load(
                selector, history=mode == "history", strong=mode == "strong", token=token, timeout_s=timeout_s
            ),
            timeout_s,
        )
    except NativeHistory:
        one.failure = "native"
    except (Lost, Unavailable) as error:
        one.failure = str(error)
    except LedgerError as error:
        one.failure = f"{type(error).__name__}: {error}"
        one.is_broken = not isinstance(error, StoreFailed)
    one.ended_s = world.loop.time()
    one.end = world.topic.end(partition)
    world.evidence.reads.append(one)
    answer = type(one.answer).__name__ if one.answer is not None else one.failure
    world.trace("reader", f"{name}: {answer} {one.answer if isinstance(one.answer, Gone) else ''}")
    if isinstance(one.answer, Found) and one.answer.node:
        world.acknowledge(partition, Position(one.answer.node + 1))


def _after(token: Token) -> Position:
    return Position(token.offset + 1)
