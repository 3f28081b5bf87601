"""The JSON bodies of the ledger service: what ``api`` reads and writes, and ``adapters.http`` writes and reads.

One module for both, so that service and client cannot drift apart; ``wire`` turns bodies into the ledger's own values
and back. Rules of the JSON:

- Unknown fields are refused; a field that does not apply is absent from an answer.
- Bytes (digests, the router's record) travel as lower-case hexadecimal, as ``replay`` prints them.
- The namespace is never in a body: it comes from the caller's token. ``principal`` and ``route`` may be, and must be
  when the token allows several.
- Bounds that a schema states without enforcing are enforced by ``ledger.turn``, which names the field.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ledger.policy import Policy
from ledger.turn import (
    ID_BYTES_MAX,
    INT64_MAX,
    ITEMS_MAX,
    RECORD_BYTES_MAX,
    SCOPE_BYTES_MAX,
    TARGET_BYTES_MAX,
    SelectorKind,
    Status,
)
from ledger.verdict import Code

BATCH_TURNS_MAX = 1_000
"""Turns of one batch: about a second of one principal's commits, after which a client wants to hear how far it is."""
LOOKUPS_MAX = 256
"""Selectors of one request: as many as a turn may have items."""


def _text(bytes_max: int) -> Meta:
    return Meta(extra_json_schema={"minLength": 1, "maxLength": bytes_max})


def _hex(bytes_max: int) -> Meta:
    return Meta(pattern="^([0-9a-f]{2})*$", extra_json_schema={"maxLength": 2 * bytes_max})


Id = Annotated[str, _text(ID_BYTES_MAX)]
ScopePart = Annotated[str, _text(SCOPE_BYTES_MAX)]
Natural = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Digest = Annotated[str, _hex(32)]
RecordHex = Annotated[str, _hex(RECORD_BYTES_MAX)]
ItemIds = Annotated[list[Id], Meta(extra_json_schema={"maxItems": ITEMS_MAX})]
KindWord = Annotated[str, Meta(extra_json_schema={"enum": [kind.name.lower() for kind in SelectorKind]})]
StatusWord = Annotated[str, Meta(extra_json_schema={"enum": [status.name.lower() for status in Status]})]
CodeWord = Annotated[str, Meta(extra_json_schema={"enum": [code.word for code in Code]})]


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What all requests share: whose it is, within what the token allows."""

    principal: ScopePart | None = None
    """Needed when the token allows several."""
    route: ScopePart | None = None
    """Needed when the token allows several."""


class _Change(_Request, frozen=True, kw_only=True):
    """A request that changes something."""

    event_id: Id | None = None
    """The caller's name for this append, kept over its retries; the service makes one when it is absent."""


class OwnerBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Who holds the state that a continuation needs."""

    native: bool
    target: Annotated[str, _text(TARGET_BYTES_MAX)]
    digest: Digest = ""


class ContentBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a portable turn adds; any JSON values."""

    input: list[Any] = []
    output: list[Any] = []
    metadata: dict[str, Any] = {}
    record: Any = None


class TurnBody(_Change, frozen=True, kw_only=True):
    """One completed request and answer."""

    response_id: Id
    owner: OwnerBody
    status: StatusWord = "completed"
    conversation_id: Id | None = None
    previous_response_id: Id | None = None
    item_ids: ItemIds = []
    content: ContentBody | None = None
    record: RecordHex = ""
    begun_at_ms: Natural | None = None
    """When the request arrived at the router; absent: when it arrived at the service."""
    expected_revision: Natural | None = None
    read_revision: Natural | None = None
    idempotency_key: Id | None = None
    request_digest: Digest = ""
    turn_id: Id | None = None


class StartBody(_Change, frozen=True, kw_only=True):
    """A turn that others must see before it ends, or the renewal of its lease."""

    turn_id: Id
    lease_ms: Annotated[int, Meta(ge=1, le=INT64_MAX)]
    begun_at_ms: Natural | None = None
    response_id: Id | None = None
    conversation_id: Id | None = None
    exclusive: bool = False
    idempotency_key: Id | None = None
    request_digest: Digest = ""
    queued: bool = False
    record: RecordHex = ""


class AbandonBody(_Request, frozen=True, kw_only=True):
    """The commit to give up."""

    event_id: Id


class ErasureBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whom to erase, on every route."""

    principal: ScopePart | None = None
    """Needed when the token allows several."""
    event_id: Id | None = None


class ConversationBody(_Change, frozen=True, kw_only=True):
    """A conversation to create."""

    id: Id
    owner: OwnerBody | None = None
    """Absent: the ledger itself."""
    metadata: dict[str, Any] = {}
    items: list[Any] = []
    item_ids: ItemIds = []


class MetadataBody(_Change, frozen=True, kw_only=True):
    """New metadata of a conversation; replaces the old."""

    id: Id
    metadata: dict[str, Any]
    expected_revision: Natural | None = None


class ItemsBody(_Change, frozen=True, kw_only=True):
    """Items to append to a conversation outside a turn."""

    id: Id
    items: list[Any]
    item_ids: ItemIds = []
    expected_revision: Natural | None = None


class SelectorBody(_Request, frozen=True, kw_only=True):
    """One opaque ID to look up."""

    kind: KindWord
    id: Id
    token: str | None = None
    strong: bool = False


class LookupsBody(_Request, frozen=True, kw_only=True):
    """Many opaque IDs; principal and route given here hold where a selector names none."""

    selectors: Annotated[list[SelectorBody], Meta(extra_json_schema={"maxItems": LOOKUPS_MAX})]


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request has no other answer."""

    code: str
    message: str
    field: str | None = None
    reason: str | None = None
    kind: KindWord | None = None
    at_ms: int | None = None
    event_id: str | None = None
    partition: int | None = None
    """The one that is not held."""
    advice: str | None = None


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Body of every answer that is an error, ``Missing`` or ``Gone``."""

    error: ErrorBody


class VerdictBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the log decided about a commit."""

    event_id: str
    verdict: CodeWord
    token: str
    accepted: bool
    first_verdict: CodeWord | None = None
    revision: int = 0
    reason: str = ""
    response_id: str | None = None


class WaitingBody(msgspec.Struct, frozen=True, kw_only=True):
    """An abandonment that could not be written yet; it is on disk and retried."""

    event_id: str
    waiting: bool = True


class EntryBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn or item batch of a history."""

    node: int
    status: StatusWord
    accepted_at_ms: int
    response_id: str | None = None
    input: list[Any] = []
    output: list[Any] = []
    metadata: dict[str, Any] = {}
    record: Any = None


class HistoryBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole history, oldest entry first."""

    entries: list[EntryBody]
    revision: int = 0


class FoundBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An ID that is known and lives."""

    kind: KindWord
    owner: OwnerBody
    status: StatusWord
    node: int
    lineage: str
    created_at_ms: int
    expires_at_ms: int
    revision: int = 0
    record: str = ""
    response_id: str | None = None
    conversation_id: str | None = None
    turn_id_digest: str | None = None
    metadata: dict[str, Any] | None = None
    """Of a conversation, when it was asked for by its own route."""
    history: HistoryBody | None = None


class BatchResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn of a batch: its verdict or its error, with the status that it would have had alone."""

    index: int
    status: int
    verdict: VerdictBody | None = None
    error: ErrorBody | None = None


class BatchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a batch, in the order of its turns."""

    results: list[BatchResult]


class LookupResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One selector of many: what was found, or its error, with the status that it would have had alone."""

    index: int
    status: int
    found: FoundBody | None = None
    error: ErrorBody | None = None


class LookupsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The results of many look-ups, in the order of the selectors."""

    results: list[LookupResult]


PolicyChanges = msgspec.defstruct(
    "PolicyChanges",
    [(field.name, field.type | msgspec.UnsetType, msgspec.UNSET) for field in msgspec.structs.fields(Policy)],
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
)
"""Fields of the policy to change; those that are absent stay."""


class PolicyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The policy, and the generation that it came with."""

    generation: int
    policy: dict[str, int | bool]
