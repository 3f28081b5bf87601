"""docs/event-format.md says what the code does: producers in other languages have nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from ledger import event
from ledger.checkpoint import Checkpoint
from ledger.report import Report
from ledger.tables import Marker

PAGE = (Path(__file__).parent.parent.parent / "docs" / "event-format.md").read_text()
SCOPED = ["event_id", "principal", "written_at_ms", "not_after_ms"]
EVENTS = [*get_args(event.PartitionEvent), *get_args(event.PrincipalEvent)]


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_the_page_lists_each_events_fields_in_wire_order(kind: Any) -> None:
    row = re.search(rf"^\| {kind.__struct_config__.tag} \| `{kind.__name__}` \| (.*) \|$", PAGE, re.MULTILINE)
    assert row is not None, f"{kind.__name__} is not on the page with its tag"
    fields = re.findall(r"`(\w+)`", row[1])
    if row[1].startswith("*scoped*"):
        fields = SCOPED + fields
    assert fields == list(kind.__struct_fields__)


def test_the_page_names_no_event_that_does_not_exist() -> None:
    named = set(re.findall(r"^\| \d+ \| `(\w+)`", PAGE, re.MULTILINE))
    assert named == {kind.__name__ for kind in EVENTS}


@pytest.mark.parametrize("kind", [Marker, Checkpoint, Report])
def test_the_page_lists_the_fields_of_what_processors_write(kind: Any) -> None:
    row = re.search(rf"^\| `{kind.__name__}` \| (.*) \|$", PAGE, re.MULTILINE)
    assert row is not None
    assert re.findall(r"`(\w+)`", row[1]) == list(kind.__struct_fields__)
