"""The port ``Router``: a router behaves alike over its own memory, the ledger in its process, and the service.

What differs is where the memory is; every verdict and every answer is the same, up to references to contents, which
stay behind in the service.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from api.app import create_app
from api.auth import Access, Caller, Role
from ledger.adapters.http import HttpRouter, LedgerClient
from ledger.adapters.memory import MemoryViewStore
from ledger.alias import AliasKey
from ledger.answer import Found, Gone, History, Missing
from ledger.composition import open_embedded, open_kafka
from ledger.errors import InvalidInput, TooLarge
from ledger.ledger import Ledger, wall_clock_ms
from ledger.policy import Policy
from ledger.query import NativeHistory
from ledger.router import LedgerRouter, LocalRouter, Router
from ledger.turn import Content, Owner, Revision, Scope, Selector, SelectorKind, Status, Turn
from ledger.verdict import Code
from tests.adapters.kafka_world import made_topics

POLICY = Policy(commit_grace_ms=0)
"""Without grace a parent is gone at once, so that no test has to wait for it."""
SCOPE = Scope(namespace="n", route="default", principal="alice")
NATIVE = Owner(native=True, target="provider-a", digest=b"\1\2")
PORTABLE = Owner(native=False, target="provider-a")
_numbers = itertools.count()

RouterFactory = Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Router]]


@asynccontextmanager
async def local(_: pytest.FixtureRequest) -> AsyncIterator[Router]:
    yield LocalRouter(MemoryViewStore(), policy=POLICY)


@asynccontextmanager
async def embedded(request: pytest.FixtureRequest) -> AsyncIterator[Router]:
    async with await open_embedded(request.getfixturevalue("tmp_path"), policy=POLICY) as ledger:
        yield LedgerRouter(ledger)


@asynccontextmanager
async def kafka(request: pytest.FixtureRequest) -> AsyncIterator[Router]:
    settings = await made_topics(request.getfixturevalue("kafka_bootstrap"))
    directory = request.getfixturevalue("tmp_path")
    async with await open_kafka(settings, directory, AliasKey(b"k" * 32), format_policy=POLICY) as ledger:
        yield LedgerRouter(ledger)


@asynccontextmanager
async def http(request: pytest.FixtureRequest) -> AsyncIterator[Router]:
    async with (
        await open_embedded(request.getfixturevalue("tmp_path"), policy=POLICY) as ledger,
        client(ledger) as asked,
    ):
        yield HttpRouter(asked)


def client(ledger: Ledger) -> LedgerClient:
    """Return a client of a service whose one token may name every principal of the namespace."""
    caller = Caller(namespace=SCOPE.namespace, principals=None, routes=None, roles=frozenset({Role.ROUTER}))
    app = create_app(ledger, _Anybody(caller))
    return LedgerClient(transport=httpx.ASGITransport(app))


class _Anybody(Access):
    """Access for one caller without a token."""

    def __init__(self, caller: Caller) -> None:
        super().__init__({})
        self._caller = caller

    def caller(self, authorization: str | None) -> Caller:
        return self._caller


ROUTERS: dict[str, RouterFactory] = {"local": local, "embedded": embedded, "kafka": kafka, "http": http}


@pytest.fixture(params=ROUTERS)
async def router(request: pytest.FixtureRequest) -> AsyncIterator[Router]:
    async with ROUTERS[request.param](request) as opened:
        yield opened


def native(response_id: str, **rest: Any) -> Turn:
    given: dict[str, Any] = {
        "scope": SCOPE,
        "event_id": f"event-{next(_numbers)}",
        "owner": NATIVE,
        "begun_at_ms": wall_clock_ms(),
    }
    return Turn(response_id=response_id, **{**given, **rest})


def portable(response_id: str, text: str, **rest: Any) -> Turn:
    content = Content(
        input=[{"id": f"in-{text}", "text": text}],
        output=[{"text": text.upper(), "n": 1.5, "none": None}],
        metadata={"é": text},
        record={"target": ["x", 2]},
    )
    return native(response_id, owner=PORTABLE, content=content, **rest)


def response(opaque_id: str, scope: Scope = SCOPE) -> Selector:
    return Selector(scope=scope, kind=SelectorKind.RESPONSE, id=opaque_id)


def conversation(opaque_id: str) -> Selector:
    return Selector(scope=SCOPE, kind=SelectorKind.CONVERSATION, id=opaque_id)


async def history_of(router: Router, selector: Selector) -> History:
    found = await router.load(selector, history=True)
    assert isinstance(found, Found)
    assert found.history is not None
    return found.history


async def test_committed_turn_is_found_with_its_owner(router: Router) -> None:
    verdict = await router.commit(native("r/1 é", record=b"\0\xff", item_ids=("i1",)))
    assert (verdict.code, verdict.accepted) == (Code.ACCEPTED, True)
    found = await router.load(response("r/1 é"), token=verdict.token)
    assert isinstance(found, Found)
    assert (found.owner, found.status, found.record) == (NATIVE, Status.COMPLETED, b"\0\xff")
    assert (found.response_id, found.node) == ("r/1 é", verdict.token.offset)
    item = await router.load(Selector(scope=SCOPE, kind=SelectorKind.ITEM, id="i1"))
    assert isinstance(item, Found)
    assert (item.owner, item.response_id) == (NATIVE, "r/1 é")


async def test_unknown_id_is_missing(router: Router) -> None:
    for kind in SelectorKind:
        assert await router.load(Selector(scope=SCOPE, kind=kind, id="nope")) == Missing(kind=kind)


async def test_id_of_another_scope_is_missing(router: Router) -> None:
    await router.commit(native("r1"))
    for scope in (replace(SCOPE, principal="bob"), replace(SCOPE, route="other")):
        assert await router.load(response("r1", scope)) == Missing(kind=SelectorKind.RESPONSE)


async def test_same_event_id_again_is_a_duplicate_without_a_second_effect(router: Router) -> None:
    turn = portable("r1", "a", conversation_id="c")
    first = await router.commit(turn)
    again = await router.commit(turn)
    assert (again.code, again.first, again.accepted) == (Code.DUPLICATE, Code.ACCEPTED, True)
    assert (again.token, again.response_id) == (first.token, "r1")
    assert len((await history_of(router, conversation("c"))).entries) == 1


async def test_duplicate_of_a_refused_turn_is_not_accepted(router: Router) -> None:
    await router.commit(native("r1"))
    turn = native("r1")
    assert (await router.commit(turn)).code is Code.RESPONSE_EXISTS
    again = await router.commit(turn)
    assert (again.code, again.first, again.accepted) == (Code.DUPLICATE, Code.RESPONSE_EXISTS, False)


async def test_response_claimed_by_another_owner_keeps_its_first(router: Router) -> None:
    await router.commit(native("r1"))
    assert (await router.commit(native("r1"))).code is Code.RESPONSE_EXISTS
    others = (Owner(native=True, target="provider-b", digest=NATIVE.digest), Owner(native=True, target="provider-a"))
    for other in others:
        verdict = await router.commit(native("r1", owner=other))
        assert (verdict.code, verdict.accepted) == (Code.OWNER_CONFLICT, False)
    found = await router.load(response("r1"))
    assert isinstance(found, Found)
    assert found.owner == NATIVE


async def test_stale_revision_is_refused_with_the_current_one(router: Router) -> None:
    first = await router.commit(portable("r1", "a", conversation_id="c", expected_revision=Revision(0)))
    second = await router.commit(portable("r2", "b", conversation_id="c", expected_revision=first.revision))
    assert second.accepted
    stale = await router.commit(portable("r3", "x", conversation_id="c", expected_revision=first.revision))
    assert (stale.code, stale.revision) == (Code.REVISION_CONFLICT, second.revision)
    found = await router.load(conversation("c"))
    assert isinstance(found, Found)
    assert found.revision == second.revision


async def test_idempotency_key_answers_with_the_first_turn(router: Router) -> None:
    key = {"idempotency_key": "k", "request_digest": b"\1" * 32}
    await router.commit(portable("r1", "a", **key))
    again = await router.commit(portable("r2", "b", **key))
    assert (again.code, again.response_id) == (Code.DUPLICATE, "r1")
    other = await router.commit(portable("r3", "c", idempotency_key="k", request_digest=b"\2"))
    assert other.code is Code.IDEMPOTENCY_CONFLICT
    for opaque_id in ("r2", "r3"):
        assert isinstance(await router.load(response(opaque_id)), Missing)


async def test_history_has_every_item_in_order(router: Router) -> None:
    await router.commit(portable("r1", "a"))
    await router.commit(portable("r2", "b", previous_response_id="r1"))
    await router.commit(portable("branch", "x", previous_response_id="r1"))
    history = await history_of(router, response("r2"))
    assert [entry.response_id for entry in history.entries] == ["r1", "r2"]
    assert [item["text"] for item in history.items()] == ["a", "A", "b", "B"]
    first = history.entries[0]
    assert (first.metadata, first.record) == ({"é": "a"}, {"target": ["x", 2]})
    assert first.output == [{"text": "A", "n": 1.5, "none": None}]


async def test_history_of_a_conversation_ends_at_its_head(router: Router) -> None:
    first = await router.commit(portable("r1", "a", conversation_id="c"))
    await router.commit(portable("branch", "x", previous_response_id="r1"))
    second = await router.commit(portable("r2", "b", conversation_id="c"))
    history = await history_of(router, conversation("c"))
    assert [entry.node for entry in history.entries] == [first.token.offset, second.token.offset]
    assert history.revision == second.revision


async def test_native_turn_has_no_history_here(router: Router) -> None:
    await router.commit(native("r1"))
    with pytest.raises(NativeHistory):
        await router.load(response("r1"), history=True)


async def test_history_of_a_missing_id_is_missing(router: Router) -> None:
    assert isinstance(await router.load(response("nope"), history=True), Missing)


async def test_portable_turn_needs_a_portable_parent_that_can_be_continued(router: Router) -> None:
    await router.commit(native("native"))
    await router.commit(portable("failed", "a", status=Status.FAILED))
    refusals = {
        "nobody": Code.PARENT_UNKNOWN,
        "native": Code.PARENT_NOT_PORTABLE,
        "failed": Code.PARENT_UNFINISHED,
    }
    for parent, code in refusals.items():
        assert (await router.commit(portable(f"child of {parent}", "b", previous_response_id=parent))).code is code


async def test_native_turn_may_have_a_parent_that_was_never_seen(router: Router) -> None:
    assert (await router.commit(native("r1", previous_response_id="before the ledger"))).accepted


async def test_abandoned_commit_is_undone_and_its_id_gone(router: Router) -> None:
    turn = portable("r1", "a")
    await router.commit(turn)
    verdict = await router.abandon(SCOPE, turn.event_id)
    assert verdict is not None
    assert verdict.accepted
    gone = await router.load(response("r1"))
    assert isinstance(gone, Gone)
    assert (gone.reason, gone.kind) == ("deleted", SelectorKind.RESPONSE)
    assert isinstance(await router.load(response("r1"), history=True), Gone)
    assert (await router.commit(portable("r2", "b", previous_response_id="r1"))).code is Code.PARENT_GONE
    assert (await router.commit(native("r1"))).code is Code.ALIAS_GONE


async def test_commit_abandoned_before_it_came_never_takes_effect(router: Router) -> None:
    turn = native("r1")
    verdict = await router.abandon(SCOPE, turn.event_id)
    assert verdict is not None
    assert verdict.accepted
    late = await router.commit(turn)
    assert not late.accepted
    assert isinstance(await router.load(response("r1")), Missing)


async def test_abandonment_of_a_turn_that_was_built_on_keeps_it(router: Router) -> None:
    turn = portable("r1", "a")
    await router.commit(turn)
    await router.commit(portable("r2", "b", previous_response_id="r1"))
    verdict = await router.abandon(SCOPE, turn.event_id)
    assert verdict is not None
    assert verdict.code is Code.KEPT
    assert isinstance(await router.load(response("r1")), Found)


@pytest.mark.parametrize("value", [object(), "\ud800", 2**70, {1: 2}], ids=["object", "surrogate", "integer", "key"])
async def test_content_that_json_cannot_say_is_refused(router: Router, value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        await router.commit(native("r1", owner=PORTABLE, content=Content(input=[value])))
    assert refused.value.field == "content"
    assert isinstance(await router.load(response("r1")), Missing)


async def test_ids_and_record_that_do_not_fit_together_are_refused(router: Router) -> None:
    with pytest.raises(TooLarge) as refused:
        await router.commit(native("r" * 512, conversation_id="c" * 512))
    assert refused.value.field == "response_id and conversation_id"


async def test_late_commit_is_refused(router: Router) -> None:
    verdict = await router.commit(native("r1", begun_at_ms=1))
    assert verdict.code is Code.TOO_LATE
    assert isinstance(await router.load(response("r1")), Missing)
