"""docs/operations.md has every setting, policy field, metric and reason that the code has, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest
from typer.testing import CliRunner

from api.auth import Access, Role
from api.serve import ServiceSettings
from cli.connection import Connection
from cli.failures import EPILOG
from cli.main import app
from ledger import bodies, content, errors, log, turn
from ledger.adapters.kafka_security import KafkaSecurity
from ledger.adapters.kafka_settings import TOPICS
from ledger.policy import Policy
from processors.settings import ProcessSettings

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "operations.md").read_text()


PROCESS_COMMANDS = ("status", "trim", "reporters", "forget-reporter")


def table(header: str) -> dict[str, list[str]]:
    """Return the rows of the one table that has this header, by what stands in their first cell."""
    found = re.findall(rf"^\| {re.escape(header)} \|\n\|[-:| ]+\|\n((?:\|.*\|\n)+)", PAGE, re.MULTILINE)
    assert len(found) == 1, f"{len(found)} tables have the header {header}"
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found[0].splitlines()]
    return {row[0].strip("`"): row[1:] for row in rows}


def sources(*packages: str) -> Iterator[str]:
    for package in packages:
        yield from (path.read_text() for path in (ROOT / package).rglob("*.py"))


def test_policy_fields_have_their_defaults() -> None:
    rows = table("field | default | meaning")
    fields = {name: str(value).lower() for name, value in msgspec.structs.asdict(Policy()).items()}
    assert {name: row[0] for name, row in rows.items()} == fields


def test_settings_of_the_service_have_their_defaults() -> None:
    login = table("environment | default | how to log in")
    assert list(login) == [f"TURNLEDGER_{name.upper()}" for name in KafkaSecurity.model_fields]
    rows = login | table("environment | default | meaning")
    expected = {f"TURNLEDGER_{name.upper()}": field.default for name, field in ServiceSettings.model_fields.items()}
    assert list(rows) == list(expected)
    assert "XDG_DATA_HOME" in rows.pop("TURNLEDGER_DIRECTORY")[0]
    for name, row in rows.items():
        assert row[0].strip("`") == ("none" if expected[name] is None else str(expected[name])), name


def test_settings_of_a_worker_have_their_defaults() -> None:
    login = set(KafkaSecurity.model_fields)
    fields = {name: field for name, field in ProcessSettings.model_fields.items() if name not in login}
    rows = table("environment of a worker | default | meaning")
    assert sorted(rows) == sorted(f"TURNLEDGER_{name.upper()}" for name in fields)
    for name, field in fields.items():
        said = rows[f"TURNLEDGER_{name.upper()}"][0]
        if field.is_required():
            assert said == "required"
        elif field.default_factory is not None:
            assert "XDG_DATA_HOME" in said
        else:
            assert said.strip("`") == ("none" if field.default is None else str(field.default)), name


def test_settings_of_commands_are_those_of_the_connection() -> None:
    hints = get_type_hints(Connection, include_extras=True)
    options = [hints[name].__metadata__[0] for name in Connection.__dataclass_fields__]
    assert list(table("environment | meaning")) == [option.envvar for option in options]


def test_metrics_are_those_of_the_service() -> None:
    source = (ROOT / "api" / "metrics.py").read_text()
    made = re.findall(r"(Counter|Gauge|Histogram)(?:MetricFamily)?\(\s*\"(turnledger_\w+)\"", source)
    names = {name + ("_total" if kind == "Counter" else "") for kind, name in made}
    rows = table("metric | labels | meaning")
    assert set(rows) == names
    alarms = set(re.findall(r"turnledger_\w+", " ".join(table("when | it means"))))
    assert alarms - names == set()


def test_metrics_of_a_worker_are_those_of_the_code() -> None:
    source = (ROOT / "processors" / "metrics.py").read_text()
    gauges = set(re.findall(r"GaugeMetricFamily\(\"(turnledger_\w+)\"", source))
    counters = {f"{name}_total" for name in re.findall(r"[\[\s]\(\s*\"(turnledger_\w+)\",", source)}
    assert len(counters) == 12
    assert set(table("metric of a worker | labels | meaning")) == gauges | counters


def test_every_reason_of_a_refused_table_has_its_row() -> None:
    source = (ROOT / "ledger" / "bootstrap.py").read_text()
    documented = re.search(r"class TableRefused.*?\"\"\"(.*?)\"\"\"", source, re.DOTALL)
    assert documented is not None
    reasons = set(re.findall(r"``(\w+)``", documented[1])) - {"reason"}
    raised = set(re.findall(r"TableRefused\(\s*\"(\w+)\"", source))
    assert raised <= reasons
    assert set(table("reason of a refusal | what it means | what to do")) == reasons


def test_every_reason_has_its_row() -> None:
    raised = set()
    for source in sources("ledger", "api", "cli", "processors"):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Unavailable":
                reason = node.args[0]
                if isinstance(reason, ast.Constant):
                    raised.add(reason.value)
    documented = set(re.findall(r"``(\w+)``", str(errors.Unavailable.__doc__))) - {"reason"}
    rows = set(table("reason | what it means | what to do"))
    assert raised - rows == set()
    assert rows == documented


def test_log_events_are_written_by_the_code() -> None:
    call = re.compile(r"(?:logger\.\w+|say)\(\s*\"(\w+)\"")
    written = {name for source in sources("ledger", "api", "processors") for name in call.findall(source)}
    assert set(table("event | meaning")) - written == set()


def test_topics_and_bounds_are_those_of_the_code() -> None:
    topics = [f"turnledger.{name}" for name in TOPICS]
    assert list(table("topic | holds | written today")) == topics
    bounds = {
        "an opaque ID, bytes": turn.ID_BYTES_MAX,
        "a part of a scope, bytes": turn.SCOPE_BYTES_MAX,
        "items of a turn": turn.ITEMS_MAX,
        "the router's record of a native turn, bytes": turn.RECORD_BYTES_MAX,
        "a content before compression, bytes": content.CONTENT_BYTES_MAX,
        "a record of the log, bytes": log.RECORD_BYTES_MAX,
        "turns of a batch": bodies.BATCH_TURNS_MAX,
        "selectors of a request": bodies.LOOKUPS_MAX,
    }
    assert {name: int(row[0]) for name, row in table("bound | value").items()} == bounds


def test_auth_file_of_the_page_is_accepted(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    path = tmp_path / "auth.yaml"
    path.write_text(example)
    assert not Access.from_file(path).is_local
    assert set(table("role | may")) == set(Role)


def test_exit_codes_are_those_of_the_help() -> None:
    def plain(text: str) -> str:
        return " ".join(text.replace("`", "").split())

    assert plain(EPILOG) in plain(PAGE)


@pytest.mark.parametrize("command", re.findall(r"^(turnledger .*)$", PAGE, re.MULTILINE))
def test_command_of_the_page_has_the_options_that_it_is_given(command: str) -> None:
    words = command.split()[1:]
    named = [word for word in words if not word.startswith("-")][:2]
    name = named if words[0] in ("topics", "view", "policy") else named[:1]
    if words[0] == "process" and named[-1] in PROCESS_COMMANDS:
        name = named
    result = CliRunner().invoke(app, [*name, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert [word for word in words if word.startswith("--") and word not in result.stdout] == []
