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


def test_brokers_must_be_named(run: Run) -> None:
    ran = run("topics", "check", "--bootstrap", "")
    assert ran.code == 2
    assert ran.err.startswith("turnledger: bootstrap: must be named")


def test_brokers_that_do_not_answer_are_unavailable(run: Run) -> None:
    ran = run("topics", "check", "--bootstrap", "127.0.0.1:9")
    assert ran.code == 4
    assert ran.err.startswith("turnledger: unavailable (broker)")
