"""``turnledger view``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ledger.adapters.rocks import RocksViewStore
from ledger.alias import AliasKey
from ledger.commit import abandonment
from ledger.composition import DISCARDED, REBUILT
from ledger.outbox import Outbox
from ledger.table import folded_rows
from ledger.turn import Partition, Scope
from tests.cli.conftest import Run


def rows_in(home: Path) -> dict[bytes, bytes]:
    store = RocksViewStore(home / "view", create=False)
    try:
        return dict(folded_rows(store, Partition(0)))
    finally:
        store.close()


def test_status_says_how_far_the_view_is(published: Run, home: Path) -> None:
    (partition,) = published("view", "status", "--json").json()["partitions"]
    assert (partition["first"], partition["position"], partition["end"], partition["quarantined"]) == (0, 4, 4, 0)
    assert partition["ledger_id"] in published("view", "status").out
    assert str(home) in published("view", "status").out


def test_rebuilt_view_has_the_same_rows(published: Run, home: Path) -> None:
    before = rows_in(home)
    ran = published("view", "rebuild", "--json")
    assert (ran.code, ran.json()["records"]) == (0, 4)
    assert rows_in(home) == before
    assert sorted(path.name for path in home.iterdir()) == ["alias.key", "log", "view"]


@pytest.mark.parametrize("is_between", [False, True], ids=["while folding", "between its renames"])
def test_what_an_interrupted_rebuild_left_is_finished_or_removed(published: Run, home: Path, is_between: bool) -> None:
    before = rows_in(home)
    if is_between:
        shutil.copytree(home / "view", home / REBUILT)
        (home / "view").rename(home / DISCARDED)
    else:
        shutil.copytree(home / "view", home / DISCARDED)
        (home / REBUILT).mkdir()
    assert published("lookup", "response", "resp_native").code == 0
    assert rows_in(home) == before
    assert sorted(path.name for path in home.iterdir()) == ["alias.key", "log", "view"]


def test_view_that_was_lost_is_rebuilt_from_the_log(published: Run, home: Path) -> None:
    before = rows_in(home)
    for file in (home / "view").iterdir():
        file.unlink()
    assert published("view", "rebuild").code == 0
    assert rows_in(home) == before


def test_rebuild_keeps_abandonments_that_wait(published: Run, home: Path) -> None:
    scope = Scope(namespace="default", route="default", principal="local")
    event = abandonment(AliasKey(b"k" * 32), scope, "event_lost", 1_700_000_000_000, 1_000)
    store = RocksViewStore(home / "view")
    Outbox(store).put(Partition(0), event)
    store.close()
    assert published("view", "rebuild").code == 0
    store = RocksViewStore(home / "view")
    assert list(Outbox(store).entries([Partition(0)])) == [(Partition(0), event)]
    store.close()


def test_rebuild_and_status_refuse_a_directory_that_is_open(published: Run, home: Path) -> None:
    before = rows_in(home)
    store = RocksViewStore(home / "log", sync=True)
    for command in ("rebuild", "status"):
        ran = published("view", command)
        assert ran.code == 6
        assert "is open in another process" in ran.err
    store.close()
    assert rows_in(home) == before


def test_directory_without_a_view_is_the_callers_error(run: Run, tmp_path: Path) -> None:
    ran = run("view", "rebuild", "--directory", str(tmp_path))
    assert ran.code == 2
    assert "holds no ledger and no view" in ran.err
