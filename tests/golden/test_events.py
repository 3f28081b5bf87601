"""The bytes of every event type, pinned: golden files only grow, and old ones stay readable for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from ledger import codec
from ledger.content import ContentRef
from ledger.event import (
    ClockTicked,
    ConversationCreated,
    ConversationDeleted,
    ConversationUpdated,
    Event,
    FormatRaised,
    ItemDeleted,
    ItemsAppended,
    LedgerFormatted,
    OwnerRef,
    PolicyChanged,
    PrincipalErased,
    ResponseDeleted,
    TurnAbandoned,
    TurnCompleted,
    TurnStarted,
)
from ledger.policy import Policy

FOLDER = Path(__file__).parent / "events"
LINE_HEX_DIGITS = 100
BEGUN_MS = 1_700_000_000_000
POLICY = Policy(
    active_ttl_ms=2_592_000_000,
    sliding=False,
    tombstone_ttl_ms=2_592_000_000,
    tombstones_per_principal_max=100_000,
    commit_grace_ms=900_000,
    idempotency_ttl_ms=86_400_000,
    lineage_turns_max=10_000,
    lineage_bytes_max=536_870_912,
    principal_records_max=1_000_000,
    principal_bytes_max=17_179_869_184,
    content_grace_ms=3_600_000,
    clock_step_max_ms=300_000,
    event_window_max_ms=86_400_000,
    lease_max_ms=3_600_000,
)
"""Every field is given, so that a new default changes no golden file."""


def digest(number: int) -> bytes:
    return bytes([number]) * 20


def id16(number: int) -> bytes:
    return bytes([number]) * 16


def content(number: int) -> ContentRef:
    return ContentRef(
        scope=digest(0xA0),
        id=id16(number),
        chunks=2,
        size_bytes=600_000,
        last_offset=70_000,
        oldest_at_ms=1_700_000_000_000,
    )


SCOPED: dict[str, Any] = {
    "event_id": id16(0x01),
    "principal": digest(0x02),
    "written_at_ms": 1_700_000_000_123,
    "not_after_ms": 1_700_000_900_123,
}
PORTABLE = OwnerRef(native=False, target="gpt", digest=b"")
NATIVE = OwnerRef(native=True, target="azure-east", digest=bytes(range(32)))

EVENTS: dict[str, Event] = {
    "ledger-formatted": LedgerFormatted(
        ledger_id=id16(0x11),
        partition=3,
        partition_count=16,
        digest_version=1,
        key_check=id16(0x12),
        format=1,
        fold_version=1,
        written_at_ms=1_700_000_000_123,
        policy=POLICY,
    ),
    "format-raised": FormatRaised(generation=2, written_at_ms=1_700_000_000_123, format=2, fold_version=3),
    "policy-changed": PolicyChanged(
        generation=1, written_at_ms=1_700_000_000_123, policy=replace(POLICY, active_ttl_ms=3_600_000, sliding=True)
    ),
    "clock-ticked": ClockTicked(written_at_ms=1_700_000_000_123),
    "turn-started": TurnStarted(
        **SCOPED,
        begun_at_ms=BEGUN_MS,
        turn_id=id16(0x03),
        lease_ms=30_000,
        status=5,
        response=digest(0x04),
        conversation=digest(0x05),
        exclusive=True,
        idempotency=digest(0x06),
        request_digest=bytes(32),
        sealed=codec.encode_sealed(codec.SealedPart(response_id="resp_1", conversation_id="conv_1")),
    ),
    "turn-completed-native": TurnCompleted(
        **SCOPED,
        begun_at_ms=BEGUN_MS,
        status=1,
        response=digest(0x04),
        parent=digest(0x07),
        conversation=None,
        items=(),
        owner=NATIVE,
        content=None,
        expected_revision=None,
        read_revision=None,
        idempotency=None,
        request_digest=b"",
        turn_id=None,
        sealed=codec.encode_sealed(codec.SealedPart(response_id="resp_1", record=b"\x00router")),
    ),
    "turn-completed-portable": TurnCompleted(
        **SCOPED,
        begun_at_ms=BEGUN_MS,
        status=2,
        response=digest(0x04),
        parent=None,
        conversation=digest(0x05),
        items=(digest(0x08), digest(0x09)),
        owner=PORTABLE,
        content=content(0x0A),
        expected_revision=41,
        read_revision=40,
        idempotency=digest(0x06),
        request_digest=bytes(range(32)),
        turn_id=id16(0x03),
        sealed=codec.encode_sealed(codec.SealedPart(response_id="resp_1", conversation_id="conv_1")),
    ),
    "turn-abandoned": TurnAbandoned(**SCOPED, abandoned=id16(0x0B)),
    "response-deleted": ResponseDeleted(**SCOPED, response=digest(0x04)),
    "conversation-created": ConversationCreated(
        **SCOPED,
        begun_at_ms=BEGUN_MS,
        conversation=digest(0x05),
        owner=PORTABLE,
        metadata=content(0x0C),
        items=(digest(0x08),),
        content=content(0x0A),
        sealed=codec.encode_sealed(codec.SealedPart(conversation_id="conv_1")),
    ),
    "conversation-updated": ConversationUpdated(
        **SCOPED, begun_at_ms=BEGUN_MS, conversation=digest(0x05), metadata=content(0x0C), expected_revision=0
    ),
    "conversation-deleted": ConversationDeleted(**SCOPED, conversation=digest(0x05), cascade=True),
    "items-appended": ItemsAppended(
        **SCOPED,
        begun_at_ms=BEGUN_MS,
        conversation=digest(0x05),
        items=(digest(0x08), digest(0x09)),
        content=content(0x0A),
        expected_revision=None,
    ),
    "item-deleted": ItemDeleted(
        **SCOPED, conversation=digest(0x05), item=digest(0x08), old_content=id16(0x0A), content=content(0x0D)
    ),
    "principal-erased": PrincipalErased(**SCOPED),
}


def written(event: Event) -> str:
    """Return a golden file: the event as a person reads it, then its bytes."""
    lines = [f"{type(event).__name__}, format {codec.FORMAT}"]
    lines += [f"  {name} = {_readable(getattr(event, name))}" for name in event.__struct_fields__]
    digits = codec.encode(event).hex()
    lines += ["", *(digits[start : start + LINE_HEX_DIGITS] for start in range(0, len(digits), LINE_HEX_DIGITS))]
    return "\n".join(lines) + "\n"


def _readable(value: object) -> str:
    if isinstance(value, bytes):
        return f"h'{value.hex()}'"
    if isinstance(value, tuple):
        return "[" + ", ".join(_readable(each) for each in value) + "]"
    if hasattr(value, "__struct_fields__"):
        return "{" + ", ".join(f"{name}: {_readable(getattr(value, name))}" for name in value.__struct_fields__) + "}"
    return str(value)


def bytes_of(text: str) -> bytes:
    return bytes.fromhex("".join(text.split("\n\n", 1)[1].split()))


@pytest.mark.parametrize("name", EVENTS)
def test_event_is_encoded_as_its_golden_file_says(name: str, pytestconfig: pytest.Config) -> None:
    path = FOLDER / f"{name}.{codec.FORMAT}.txt"
    if pytestconfig.getoption("--rewrite") and not path.exists():
        path.write_text(written(EVENTS[name]))
    assert path.read_text() == written(EVENTS[name]), "a golden file never changes: a new meaning needs a new format"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.name)
def test_every_golden_file_is_readable_for_ever(path: Path) -> None:
    event = codec.decode(bytes_of(path.read_text()))
    assert path.read_text().startswith(type(event).__name__)


def test_every_event_type_has_a_golden_file() -> None:
    assert {type(event) for event in EVENTS.values()} == set(get_args(Event))
