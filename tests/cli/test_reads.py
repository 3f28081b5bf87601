"""``turnledger lookup``, ``history`` and ``replay``."""

from __future__ import annotations

from tests.cli.conftest import Run, ndjson, turn_in


def test_lookup_says_owner_and_where_the_state_is(published: Run) -> None:
    ran = published("lookup", "response", "resp_native")
    assert ran.code == 0
    assert "alpha" in ran.out
    assert "at its owner only" in ran.out


def test_lookup_of_many_answers_each_and_exits_three_when_one_is_missing(published: Run) -> None:
    ran = published("lookup", "response", "resp_native", "resp_never", "--json", "--strong")
    assert ran.code == 3
    found, missing = ran.lines()
    assert found["owner"] == {"native": True, "target": "alpha"}
    assert missing["error"]["code"] == "missing"


def test_missing_response_is_one_line_and_exit_three(published: Run) -> None:
    ran = published("lookup", "response", "resp_never")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == "turnledger: no such response is known here\n"


def test_lookup_of_an_unknown_kind_names_the_kinds(published: Run) -> None:
    ran = published("lookup", "thread", "resp_native")
    assert ran.code == 2
    assert ran.err.startswith("turnledger: kind: must be response, conversation, item")


def test_history_has_every_turn_oldest_first(published: Run) -> None:
    ran = published("history", "response", "resp_continued")
    assert ran.code == 0
    assert ran.out.index("What is a ledger?") < ran.out.index("only added to") < ran.out.index("And then?")
    entries = published("history", "response", "resp_continued", "--json").json()["history"]["entries"]
    assert [entry["response_id"] for entry in entries] == ["resp_portable", "resp_continued"]


def test_history_of_a_native_turn_is_the_callers_error(published: Run) -> None:
    ran = published("history", "response", "resp_native")
    assert ran.code == 2
    assert "ask the owner" in ran.err


def test_replay_prints_every_event_with_its_verdict(published: Run) -> None:
    ran = published("replay")
    assert ran.code == 0
    for word in ("TurnCompleted", "accepted", "resp_native", "resp_portable", "resp_continued"):
        assert word in ran.out


def test_replay_of_a_response_shows_its_lineage_only(published: Run) -> None:
    events = published("replay", "--response", "resp_portable", "--json").lines()
    assert [event["response_id"] for event in events] == ["resp_portable", "resp_continued"]


def test_replay_of_a_conversation_shows_its_turns_only(published: Run) -> None:
    assert published("publish", "-", stdin=ndjson(turn_in("conv_1", "in"))).code == 0
    events = published("replay", "--conversation", "conv_1", "--json").lines()
    assert [event["response_id"] for event in events] == ["resp_in"]


def test_replay_ends_at_an_offset_or_a_time(published: Run) -> None:
    assert [event["offset"] for event in published("replay", "--until-offset", "2", "--json").lines()] == [1, 2]
    assert published("replay", "--until-time", "2020-01-01", "--json").lines() == []
    assert len(published("replay", "--until-time", "2999-01-01T00:00:00Z", "--json").lines()) == 3


def test_replay_of_a_principal_or_namespace_shows_its_events_only(published: Run) -> None:
    assert len(published("replay", "--principal", "local", "--json").lines()) == 3
    assert published("replay", "--principal", "ann", "--json").lines() == []
    assert published("replay", "--namespace", "other", "--json").lines() == []


def test_time_that_is_none_is_the_callers_error(published: Run) -> None:
    ran = published("replay", "--until-time", "yesterday")
    assert ran.code == 2
    assert ran.err.startswith("turnledger: until-time: must be an ISO 8601 time")
