"""``turnledger topics`` and the view of a replica on Kafka."""

from __future__ import annotations

import secrets
import stat
from pathlib import Path

from tests.cli.conftest import NATIVE, Run, ndjson, serving


def test_topics_are_created_once_formatted_and_checked(run: Run, kafka_bootstrap: str, tmp_path: Path) -> None:
    key_file = tmp_path / "alias.key"
    where = ("--bootstrap", kafka_bootstrap, "--prefix", f"cli-{secrets.token_hex(4)}")
    key = ("--alias-key-file", str(key_file))
    one = ("--replication-factor", "1")

    before = run("topics", "check", *where, *one, "--json")
    assert (before.code, len(before.json()["problems"])) == (3, 6)

    first = run("topics", "create", *where, *key, *one, "--partitions", "2", "--json")
    assert first.code == 0
    assert len(first.json()["created"]) == 6
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    again = run("topics", "create", *where, *key, *one, "--partitions", "2", "--json")
    assert (again.json()["created"], again.json()["ledger_id"]) == ([], first.json()["ledger_id"])

    assert run("topics", "check", *where, *one).code == 0
    too_few = run("topics", "check", *where, "--replication-factor", "3")
    assert too_few.code == 3
    assert all(line.startswith("turnledger: cli-") for line in too_few.err.splitlines())

    # A replica on these topics: what it folded can be looked at and folded again when it has ended.
    replica = ("--directory", str(tmp_path / "replica"))
    with serving(*where, *key, *replica) as url:
        assert run("publish", "-", "--url", url, stdin=ndjson(NATIVE)).code == 0
        assert run("view", "rebuild", *where, *replica).code == 6
    offline = run("view", "status", *replica, "--json").json()["partitions"]
    assert sum(partition["position"] for partition in offline) == 3
    assert {partition["end"] for partition in offline} == {None}
    assert run("view", "rebuild", *replica).code == 2
    assert run("view", "rebuild", *where, *replica, "--json").json()["records"] == 3
    known = run("view", "status", *where, *replica, "--json").json()["partitions"]
    assert [partition["position"] for partition in known] == [partition["end"] for partition in known]


def test_replica_that_holds_some_partitions_is_looked_at_rebuilt_and_given_a_policy(
    run: Run, kafka_bootstrap: str, tmp_path: Path
) -> None:
    where = ("--bootstrap", kafka_bootstrap, "--prefix", f"cli-{secrets.token_hex(4)}")
    key = ("--alias-key-file", str(tmp_path / "alias.key"))
    assert run("topics", "create", *where, *key, "--replication-factor", "1", "--partitions", "4").code == 0
    replica = ("--directory", str(tmp_path / "replica"))
    some = ("--partitions", "1,3")
    # Nobody else has to be there for the two that are held.
    with serving(*where, *key, *replica, *some, "--holders", "0-3=http://127.0.0.1:9") as url:
        refused = run("policy", "set", "active_ttl_ms=3600000", "--url", url)
        assert refused.code == 2
        assert "turnledger topics policy" in refused.err
        assert run("policy", "show", "--url", url).code == 4, "partition 0 says it, and nobody holds that"
    assert [one["partition"] for one in run("view", "status", *replica, "--json").json()["partitions"]] == [1, 3]
    for source in ("log", "tables"):
        rebuilt = run("view", "rebuild", *where, *replica, *some, "--from", source, "--json")
        assert rebuilt.json()["records"] == 2
        known = run("view", "status", *where, *replica, "--json").json()["partitions"]
        assert [one["partition"] for one in known] == [1, 3]
    assert run("view", "rebuild", *where, *replica, "--partitions", "1,4").code == 2

    without_key = run("topics", "policy", "active_ttl_ms=3600000", *where, "--alias-key-file", str(tmp_path / "none"))
    assert without_key.code == 2
    for _ in range(2):
        changed = run("topics", "policy", "active_ttl_ms=3600000", *where, *key, "--json")
        assert (changed.json()["generation"], changed.json()["policy"]["active_ttl_ms"]) == (1, 3_600_000)
    with serving(*where, *key, "--directory", str(tmp_path / "whole")) as url:
        assert run("policy", "show", "--url", url, "--json").json()["policy"]["active_ttl_ms"] == 3_600_000


def test_brokers_must_be_named(run: Run) -> None:
    ran = run("topics", "check", "--bootstrap", "")
    assert ran.code == 2
    assert ran.err.startswith("turnledger: bootstrap: must be named")


def test_brokers_that_do_not_answer_are_unavailable(run: Run) -> None:
    ran = run("topics", "check", "--bootstrap", "127.0.0.1:9")
    assert ran.code == 4
    assert ran.err.startswith("turnledger: unavailable (broker)")
