"""``turnledger delete``, ``erase`` and ``policy``."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run, ndjson, turn_in


def test_deleted_response_is_gone_and_its_child_keeps_the_history(published: Run) -> None:
    assert published("delete", "response", "resp_portable").code == 0
    gone = published("lookup", "response", "resp_portable", "--json")
    assert (gone.code, gone.json()["error"]["reason"]) == (3, "deleted")
    assert "What is a ledger?" in published("history", "response", "resp_continued").out


def test_second_deletion_is_refused_with_exit_three(published: Run) -> None:
    assert published("delete", "response", "resp_native", "--json").json()["verdict"] == "accepted"
    again = published("delete", "response", "resp_native")
    assert again.code == 3
    assert again.err.startswith("turnledger: refused: alias_gone")


def test_deletion_repeated_under_its_event_id_is_no_refusal(published: Run) -> None:
    for expected in ("accepted", "duplicate"):
        ran = published("delete", "response", "resp_native", "--event-id", "event_delete", "--json")
        assert ran.code == 0
        assert ran.json()["verdict"] == expected
        assert ran.json()["event_id"] == "event_delete"


@pytest.mark.parametrize(("cascade", "code"), [(False, 0), (True, 3)])
def test_deleted_conversation_takes_its_responses_along_only_with_cascade(
    published: Run, cascade: bool, code: int
) -> None:
    assert published("publish", "-", stdin=ndjson(turn_in("conv_1", "in"))).code == 0
    assert published("delete", "conversation", "conv_1", *(["--cascade"] if cascade else [])).code == 0
    assert published("lookup", "conversation", "conv_1").code == 3
    assert published("lookup", "response", "resp_in", "--strong").code == code


def test_deleted_item_leaves_the_history(published: Run) -> None:
    assert published("publish", "-", stdin=ndjson(turn_in("conv_1", "one"), turn_in("conv_1", "two"))).code == 0
    assert published("delete", "item", "conv_1", "msg_one").code == 0
    entries = published("history", "conversation", "conv_1", "--json").json()["history"]["entries"]
    assert [[item["content"] for item in entry.get("input", [])] for entry in entries] == [[], ["two"]]


def test_erased_principal_has_nothing_left(published: Run) -> None:
    assert published("erase", "--principal", "local", "--yes").code == 0
    for name in ("resp_native", "resp_portable", "resp_continued"):
        assert published("lookup", "response", name).code == 3


@pytest.mark.parametrize(
    ("arguments", "field"), [((), "principal"), (("--yes",), "principal"), (("--principal", "local"), "yes")]
)
def test_erasure_needs_a_named_principal_and_consent(published: Run, arguments: tuple[str, ...], field: str) -> None:
    ran = published("erase", *arguments, stdin="")
    assert ran.code == 2
    assert ran.err.startswith(f"turnledger: {field}: ")
    assert published("lookup", "response", "resp_native").code == 0


def test_policy_is_shown_and_changed_field_by_field(published: Run) -> None:
    assert "active_ttl_ms" in published("policy", "show").out
    before = published("policy", "show", "--json").json()
    ran = published("policy", "set", "active_ttl_ms=5000", "sliding=true", "--json")
    assert ran.code == 0
    assert ran.json()["policy"] == before["policy"] | {"active_ttl_ms": 5000, "sliding": True}
    assert ran.json()["generation"] == before["generation"] + 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("bogus=1", "bogus"),
        ("active_ttl_ms=1", "active_ttl_ms"),
        ("active_ttl_ms=soon", "active_ttl_ms"),
        ("x", "changes"),
    ],
)
def test_wrong_policy_names_the_field_and_changes_nothing(published: Run, change: str, field: str) -> None:
    before = published("policy", "show", "--json").out
    ran = published("policy", "set", change)
    assert ran.code == 2
    assert ran.err.startswith(f"turnledger: {field}: ")
    assert published("policy", "show", "--json").out == before
