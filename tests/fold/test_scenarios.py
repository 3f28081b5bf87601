"""Every scenario in ``tests/scenarios/fold`` plays as it is written."""

from pathlib import Path

import pytest

from tests.fold.scenario import play

FOLDER = Path(__file__).parents[1] / "scenarios" / "fold"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario_plays_as_it_is_written(path: Path, pytestconfig: pytest.Config) -> None:
    written = path.read_text()
    played = play(written)
    if pytestconfig.getoption("--rewrite"):
        path.write_text(played)
    assert played == written or pytestconfig.getoption("--rewrite")
