"""The table from the ledger's errors and verdicts to the API: whole, and no outage says that an ID does not exist."""

from __future__ import annotations

import msgspec
import pytest

from ledger import errors
from ledger.answer import Token, Verdict
from ledger.fold import UnsupportedUpgrade
from ledger.formatting import PolicyConflict
from ledger.query import NativeHistory
from ledger.refusal import CONVERSATION, PREVIOUS, Refusal, not_found, refusal_of, refusal_of_verdict, unfinished
from ledger.turn import Offset, Partition
from ledger.verdict import Code

ABSENCES = {"previous_response_not_found", "conversation_not_found", "response_not_found", "item_not_found"}

ERRORS: list[tuple[errors.LedgerError, tuple[int, str]]] = [
    (errors.TooLarge("content", "has 9 bytes"), (413, "request_too_large")),
    (errors.InvalidInput("model", "must be a string"), (400, "invalid_value")),
    (errors.NotAuthenticated("no API key was sent"), (401, "invalid_api_key")),
    (errors.NotPermitted("the token lacks a role"), (403, "not_permitted")),
    (NativeHistory("its history is at its owner"), (409, "native_history")),
    (errors.NotHeld(3), (421, "not_held")),
    (errors.NeedsEveryPartition("the policy lies in all"), (400, "invalid_request")),
    (errors.Unavailable("holder", "m"), (503, "ledger_unavailable")),
    (PolicyConflict("another change stands"), (400, "invalid_request")),
    (errors.CallerError("is wrong"), (400, "invalid_request")),
    (errors.Unavailable("leader", "no leader"), (503, "ledger_unavailable")),
    (errors.Unknown("event-1", "no verdict"), (503, "ledger_unavailable")),
    (errors.RetryableError("later"), (503, "ledger_unavailable")),
    (errors.StoreFailed("IO error: /secret/path"), (503, "ledger_unavailable")),
    (errors.PurgeStopped("the secret store is being closed"), (503, "ledger_unavailable")),
    (errors.AncestorMissing(7), (500, "defect")),
    (errors.ContentLost("lost"), (500, "defect")),
    (errors.ManifestMismatch("other ledger"), (500, "defect")),
    (errors.StateDirectoryLocked("/secret/path"), (500, "defect")),
    (UnsupportedUpgrade("format 9"), (500, "defect")),
    (errors.FatalError("stop"), (500, "defect")),
    (errors.UndecodableRecord("not_msgpack"), (500, "defect")),
    (errors.LedgerError("any"), (500, "defect")),
    (Refusal(418, "mine", code="mine"), (418, "mine")),
]

VERDICTS: dict[Code, tuple[int, str | None, str | None, str | None]] = {
    Code.RESPONSE_EXISTS: (502, "id_conflict", None, "response_exists"),
    Code.OWNER_CONFLICT: (502, "id_conflict", None, "owner_conflict"),
    Code.REVISION_CONFLICT: (409, "conflict", None, "revision_conflict"),
    Code.IDEMPOTENCY_CONFLICT: (409, "idempotency_conflict", None, "idempotency_conflict"),
    Code.KEY_IN_PROGRESS: (409, "idempotency_in_progress", None, "idempotency_in_progress"),
    Code.TOO_LATE: (503, "turn_not_stored", None, "too_late"),
    Code.ALIAS_GONE: (409, "conflict", None, "alias_gone"),
    Code.PARENT_UNKNOWN: (400, "previous_response_not_found", PREVIOUS, "unknown"),
    Code.PARENT_NOT_PORTABLE: (409, "native_history", PREVIOUS, "parent_not_portable"),
    Code.PARENT_GONE: (400, "previous_response_not_found", PREVIOUS, "gone"),
    Code.PARENT_UNFINISHED: (400, "previous_response_unfinished", PREVIOUS, "unfinished"),
    Code.CONVERSATION_UNKNOWN: (404, "conversation_not_found", CONVERSATION, "unknown"),
    Code.CONVERSATION_GONE: (404, "conversation_not_found", CONVERSATION, "gone"),
    Code.CONVERSATION_LOCKED: (400, "conversation_locked", CONVERSATION, "conversation_locked"),
    Code.LEASE_EXPIRED: (409, "turn_ended", None, "lease_expired"),
    Code.TURN_UNKNOWN: (503, "turn_not_stored", None, "turn_unknown"),
    Code.TURN_ENDED: (409, "turn_ended", None, "turn_ended"),
    Code.ABANDONED: (503, "turn_not_stored", None, "abandoned"),
    Code.KEPT: (503, "turn_not_stored", None, "kept"),
    Code.LIMIT_EXCEEDED: (413, "request_too_large", None, "lineage_bytes_max"),
    Code.PRINCIPAL_ERASED: (409, "principal_erased", None, "principal_erased"),
    Code.CONTENT_STALE: (503, "turn_not_stored", None, "content_stale"),
    Code.RESPONSE_UNKNOWN: (404, "response_not_found", "response_id", "unknown"),
    Code.ITEM_UNKNOWN: (404, "item_not_found", "item_id", "unknown"),
    Code.ITEM_CONFLICT: (409, "conflict", None, "item_conflict"),
    Code.STALE_GENERATION: (503, "turn_not_stored", None, "stale_generation"),
    Code.INVALID: (503, "turn_not_stored", None, "invalid"),
    Code.QUARANTINED: (503, "turn_not_stored", None, "quarantined"),
}


def verdict(code: Code, *, first: Code | None = None) -> Verdict:
    reason = "lineage_bytes_max" if Code.LIMIT_EXCEEDED in (code, first) else ""
    return Verdict(code=code, token=Token(Partition(0), Offset(7)), first=first, reason=reason)


def said(refusal: Refusal | None) -> tuple[int, str | None, str | None, str | None]:
    assert refusal is not None
    return refusal.status, refusal.code, refusal.param, refusal.reason


def every_error(root: type[errors.LedgerError] = errors.LedgerError) -> set[type[errors.LedgerError]]:
    """Return every error class of the library, the router's own included."""
    below = {kind for kind in root.__subclasses__() if kind.__module__.startswith("ledger.")}
    return {root} | {kind for child in below for kind in every_error(child)}


def test_every_error_of_the_ledger_is_in_the_table() -> None:
    assert every_error() == {type(error) for error, _ in ERRORS}


@pytest.mark.parametrize(("error", "expected"), ERRORS, ids=lambda value: type(value).__name__)
def test_error_has_its_status_and_code(error: errors.LedgerError, expected: tuple[int, str]) -> None:
    refusal = refusal_of(error)
    assert (refusal.status, refusal.code) == expected
    # Only what a caller did is a caller's error, and no outage says that something does not exist.
    if not isinstance(error, Refusal):
        assert (refusal.status < 500) == isinstance(error, errors.CallerError)
        assert refusal.code not in ABSENCES


@pytest.mark.parametrize("error", [error for error, (status, _) in ERRORS if status >= 500], ids=str)
def test_outage_repeats_nothing_of_what_failed(error: errors.LedgerError) -> None:
    assert "secret" not in refusal_of(error).message
    assert "event-1" not in refusal_of(error).message


def test_field_of_a_wrong_request_is_its_param() -> None:
    assert refusal_of(errors.InvalidInput("input[2].role", "is unknown")).param == "input[2].role"
    assert refusal_of(errors.TooLarge("input", "is too long")).param == "input"


@pytest.mark.parametrize("code", [code for code in Code if code not in (Code.ACCEPTED, Code.DUPLICATE)])
def test_verdict_has_its_status_code_param_and_reason(code: Code) -> None:
    assert said(refusal_of_verdict(verdict(code))) == VERDICTS[code]


@pytest.mark.parametrize("code", [code for code in Code if code not in (Code.ACCEPTED, Code.DUPLICATE)])
def test_duplicate_of_a_refusal_is_that_refusal(code: Code) -> None:
    assert said(refusal_of_verdict(verdict(Code.DUPLICATE, first=code))) == VERDICTS[code]


@pytest.mark.parametrize("first", [None, Code.ACCEPTED, Code.DUPLICATE])
def test_accepted_turn_and_its_duplicates_are_no_refusal(first: Code | None) -> None:
    assert refusal_of_verdict(verdict(Code.ACCEPTED if first is None else Code.DUPLICATE, first=first)) is None


def test_body_has_the_four_fields_of_the_api_and_a_reason_where_there_is_one() -> None:
    with_reason = not_found(PREVIOUS, "expired").body()["error"]
    assert {name: with_reason[name] for name in ("type", "param", "code", "reason")} == {
        "type": "invalid_request_error",
        "param": "previous_response_id",
        "code": "previous_response_not_found",
        "reason": "expired",
    }
    assert set(Refusal(500, "no").body()["error"]) == {"message", "type", "param", "code"}
    assert Refusal(500, "no").body()["error"]["type"] == "server_error"
    assert msgspec.json.encode(with_reason)


def test_clients_are_told_when_to_come_back_and_when_not_to() -> None:
    assert refusal_of(errors.Unavailable("leader", "none")).headers() == {"retry-after": "1"}
    assert refusal_of(errors.ContentLost("lost")).headers() == {"x-should-retry": "false"}
    assert refusal_of(errors.NotAuthenticated("none")).headers() == {"www-authenticate": "Bearer"}
    assert unfinished("failed").headers() == {}
    final = {
        code for code in VERDICTS if (refusal := refusal_of_verdict(verdict(code))) is not None and refusal.is_final
    }
    assert final == {
        Code.IDEMPOTENCY_CONFLICT,
        Code.PRINCIPAL_ERASED,
        Code.PARENT_NOT_PORTABLE,
        Code.TOO_LATE,
        Code.INVALID,
        Code.QUARANTINED,
    }
