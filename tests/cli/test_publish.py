"""``turnledger publish``."""

from __future__ import annotations

from pathlib import Path

from cli.publish import BATCH_TURNS_MAX
from tests.cli.conftest import NATIVE, PORTABLE, Run, ndjson


def test_file_is_published_and_counted_by_verdict(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "turns.ndjson"
    file.write_text(ndjson(NATIVE, PORTABLE) + "\n")
    ran = run("publish", str(file))
    assert ran.code == 0
    assert "2 turns" in ran.out
    assert "accepted" in ran.out
    assert run("lookup", "response", "resp_portable", "--json").json()["owner"]["target"] == "beta"


def test_file_published_again_is_duplicates_and_no_error(published: Run) -> None:
    ran = published("publish", "-", "--json", stdin=ndjson(NATIVE, PORTABLE))
    assert ran.code == 0
    assert ran.json()["verdicts"] == {"duplicate": 2}


def test_refused_turns_are_listed_with_their_lines_and_exit_three(published: Run) -> None:
    claimed = NATIVE | {"event_id": "event_claim", "owner": {"native": True, "target": "gamma"}}
    ran = published("publish", "-", "--json", stdin=ndjson(NATIVE, claimed))
    assert ran.code == 3
    (refusal,) = ran.json()["refused"]
    assert (refusal["line"], refusal["verdict"]) == (2, "owner_conflict")
    assert ran.err == "turnledger: 1 of 2 turns were refused\n"


def test_wrong_line_is_named_after_the_lines_before_it_were_published(run: Run) -> None:
    ran = run("publish", "-", "--json", stdin=ndjson(NATIVE, PORTABLE | {"response_id": ""}))
    assert ran.code == 2
    assert ran.json()["verdicts"] == {"accepted": 1}
    assert ran.err.startswith("turnledger: line 2: response_id: must not be empty")


def test_line_that_is_not_json_is_named(run: Run) -> None:
    ran = run("publish", "-", stdin="not json\n")
    assert ran.code == 2
    assert ran.err.startswith("turnledger: line 1: ")
    assert ran.err.count("\n") == 1


def test_more_turns_than_one_batch_are_all_published(run: Run) -> None:
    turns = [NATIVE | {"event_id": f"event_{n}", "response_id": f"resp_{n}"} for n in range(BATCH_TURNS_MAX + 1)]
    assert run("publish", "-", "--json", stdin=ndjson(*turns)).json()["verdicts"] == {"accepted": BATCH_TURNS_MAX + 1}


def test_missing_file_is_the_callers_error(run: Run, tmp_path: Path) -> None:
    assert run("publish", str(tmp_path / "nothing")).code == 2


def test_principal_of_a_line_comes_before_the_option(run: Run) -> None:
    assert run("publish", "-", "--principal", "ann", stdin=ndjson(NATIVE, PORTABLE | {"principal": "bob"})).code == 0
    assert run("lookup", "response", "resp_native", "--principal", "ann").code == 0
    assert run("lookup", "response", "resp_portable", "--principal", "bob").code == 0
    assert run("lookup", "response", "resp_portable", "--principal", "ann").code == 3
