"""One believable value of every body, for the OpenAPI description."""

from __future__ import annotations

import msgspec

from ledger.answer import Gone, Missing
from ledger.bodies import (
    AbandonBody,
    BatchAnswer,
    BatchResult,
    ContentBody,
    ConversationBody,
    EntryBody,
    ErasureBody,
    ErrorAnswer,
    ErrorBody,
    FoundBody,
    HistoryBody,
    ItemsBody,
    LookupResult,
    LookupsAnswer,
    LookupsBody,
    MetadataBody,
    OwnerBody,
    PolicyAnswer,
    PolicyChanges,
    SelectorBody,
    StartBody,
    TurnBody,
    VerdictBody,
    WaitingBody,
)
from ledger.policy import DAY_MS, Policy
from ledger.turn import SelectorKind
from ledger.wire import absence_body

_AT_MS = 1_760_000_000_000
_LINEAGE = "4be1c0a90f5d2f0c6f5e6f1a3b7d9c2e8a4f6b10"
_QUESTION = {"type": "message", "role": "user", "id": "msg_1", "content": "What is a ledger?"}
_ANSWER = {"type": "message", "role": "assistant", "id": "msg_2", "content": "A book of facts."}

TURN = TurnBody(
    event_id="router-7f3a-000042",
    response_id="resp_68af4030",
    owner=OwnerBody(native=True, target="provider-a", digest="9f86d081884c7d65"),
    previous_response_id="resp_68af3fff",
    begun_at_ms=_AT_MS,
)
START = StartBody(
    event_id="router-7f3a-000041",
    turn_id="turn-19",
    lease_ms=60_000,
    response_id="resp_68af4030",
    queued=True,
    begun_at_ms=_AT_MS,
)
ABANDON = AbandonBody(event_id="router-7f3a-000042")
CONVERSATION = ConversationBody(id="conv_1", metadata={"topic": "demo"}, items=[_QUESTION], item_ids=["msg_1"])
METADATA = MetadataBody(id="conv_1", metadata={"topic": "another"}, expected_revision=12)
ITEMS = ItemsBody(id="conv_1", items=[_ANSWER], item_ids=["msg_2"])
ERASURE = ErasureBody(principal="alice", event_id="erasure-2031")
LOOKUPS = LookupsBody(
    selectors=[SelectorBody(kind="response", id="resp_68af4030"), SelectorBody(kind="conversation", id="conv_0")]
)
CHANGES: msgspec.Struct = PolicyChanges(active_ttl_ms=7 * DAY_MS)
CONTENT = ContentBody(input=[_QUESTION], output=[_ANSWER])

ACCEPTED = VerdictBody(event_id="router-7f3a-000042", verdict="accepted", token="3:1207", accepted=True)  # noqa: S106 (a place in the log, not a secret)
REFUSED = VerdictBody(event_id="router-7f3a-000042", verdict="owner_conflict", token="3:1208", accepted=False)  # noqa: S106 (a place in the log, not a secret)
WAITING = WaitingBody(event_id="router-7f3a-000042")
FOUND = FoundBody(
    kind="response",
    owner=OwnerBody(native=True, target="provider-a", digest="9f86d081884c7d65"),
    status="completed",
    node=1207,
    lineage=_LINEAGE,
    created_at_ms=_AT_MS,
    expires_at_ms=_AT_MS + 30 * DAY_MS,
    response_id="resp_68af4030",
)
CONVERSATION_FOUND = FoundBody(
    kind="conversation",
    owner=OwnerBody(native=False, target="ledger"),
    status="completed",
    node=12,
    lineage=_LINEAGE,
    created_at_ms=_AT_MS,
    expires_at_ms=_AT_MS + 30 * DAY_MS,
    revision=12,
    conversation_id="conv_1",
    metadata={"topic": "demo"},
)
WITH_HISTORY = msgspec.structs.replace(
    CONVERSATION_FOUND,
    metadata=None,
    history=HistoryBody(
        revision=12,
        entries=[EntryBody(node=12, status="completed", accepted_at_ms=_AT_MS, input=[_QUESTION], output=[_ANSWER])],
    ),
)
MISSING_ERROR = absence_body(Missing(kind=SelectorKind.CONVERSATION))
MISSING = ErrorAnswer(error=MISSING_ERROR)
GONE = ErrorAnswer(error=absence_body(Gone(kind=SelectorKind.RESPONSE, reason="expired", at_ms=_AT_MS)))
NATIVE_HISTORY = ErrorAnswer(
    error=ErrorBody(
        code="native_history",
        message="the ID names a native turn; its history is at its owner",
        advice="ask the owner named in the look-up",
    )
)
INVALID_ERROR = ErrorBody(
    code="invalid_input",
    message="turns[1].response_id: must not be empty",
    field="turns[1].response_id",
    advice="correct the request",
)
BATCH = BatchAnswer(
    results=[BatchResult(index=0, status=200, verdict=ACCEPTED), BatchResult(index=1, status=400, error=INVALID_ERROR)]
)
LOOKED_UP = LookupsAnswer(
    results=[LookupResult(index=0, status=200, found=FOUND), LookupResult(index=1, status=404, error=MISSING_ERROR)]
)
POLICY = PolicyAnswer(generation=2, policy=msgspec.structs.asdict(Policy(active_ttl_ms=7 * DAY_MS)))
REPLAYED = (
    '{"partition":3,"offset":1207,"appended_at_ms":1760000000000,"type":"TurnCompleted","verdict":"accepted",'
    '"response_id":"resp_68af4030","event":{"response":"4be1c0a90f5d2f0c6f5e6f1a3b7d9c2e8a4f6b10"}}\n'
)
METRICS = '# TYPE turnledger_appends_total counter\nturnledger_appends_total{verdict="accepted"} 42.0\n'
