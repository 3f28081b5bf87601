"""docs/gateway.md has every field, bound, error, reason and metric of the gateway that the code has, and no other."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.gateway import chat_answer, config, config_file
from api.gateway.config import ConversationPolicy, GatewayConfig, RoutePolicy, StateBackend, TargetFormat
from api.gateway.routing import REST_S
from cli.main import app
from ledger.refusal import Refusal
from ledger.turn import TARGET_BYTES_MAX

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "gateway.md").read_text()
GATEWAY = sorted((ROOT / "api" / "gateway").glob("*.py"))
LIBRARY = sorted((ROOT / "ledger").glob("*.py"))


def table(header: str) -> dict[str, list[str]]:
    """Return the rows of the one table that has this header, by what stands in their first cell."""
    found = re.findall(rf"^\| {re.escape(header)} \|\n\|[-:| ]+\|\n((?:\|.*\|\n)+)", PAGE, re.MULTILINE)
    assert len(found) == 1, f"{len(found)} tables have the header {header}"
    rows = [[cell.strip() for cell in re.split(r" ?(?<!\\)\|", line)[1:-1]] for line in found[0].splitlines()]
    return {row[0].strip("`"): row[1:] for row in rows}


def words(cell: str) -> set[str]:
    """Return what stands in a cell as code."""
    return set(re.findall(r"`([^`]+)`", cell))


def fields_read_by(function: str) -> set[str]:
    """Return the fields that a function of the configuration's reader takes."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(Path(config_file.__file__).read_text())):
        if not isinstance(node, ast.FunctionDef) or node.name != function:
            continue
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "fields":
                for argument in call.args:
                    found |= {str(name.value) for name in ast.walk(argument) if isinstance(name, ast.Constant)}
                    found |= {
                        field
                        for name in ast.walk(argument)
                        if isinstance(name, ast.Name)
                        for field in getattr(config_file, name.id)
                    }
    assert found, function
    return found


SECTIONS = {
    "field": fields_read_by("read_config"),
    "field of a target": fields_read_by("_target"),
    "field of a model": fields_read_by("_routes"),
    "field of a way": fields_read_by("_way"),
    "field of a key": fields_read_by("_keys"),
    "field of state": set(config_file._STATE_FIELDS),
    "field of limits": set(config_file._LIMITS),
}


@pytest.mark.parametrize("section", SECTIONS)
def test_fields_are_those_that_the_reader_takes(section: str) -> None:
    assert set(table(f"{section} | default | bound | why")) == SECTIONS[section]


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ("field", config.GatewayConfig),
        ("field of a target", config.TargetConfig),
        ("field of a model", config.RouteConfig),
        ("field of a way", config.RouteTarget),
        ("field of limits", config.LimitsConfig),
    ],
)
def test_defaults_are_those_of_the_code(section: str, kind: Any) -> None:
    rows = table(f"{section} | default | bound | why")
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    described: dict[Any, str] = {"": "empty", (): "none", None: "none", False: "false", dataclasses.MISSING: "required"}
    for name, (default, *_) in rows.items():
        value = defaults.get(name, dataclasses.MISSING)
        if (section, name) in {("field", "models"), ("field", "state"), ("field", "limits"), ("field", "targets")}:
            continue
        if (section, name) == ("field of a model", "policy"):
            value = RoutePolicy.WEIGHTED
        if name == "api_key_env":
            value = None
        shown = described[value] if value in described else str(value)
        assert default.strip("`") == shown, f"{section}: {name}"
    if kind is config.LimitsConfig:
        assert set(rows) == set(defaults)


def test_defaults_of_state_in_memory_are_those_of_the_code() -> None:
    rows = table("field of state | default | bound | why")
    assert rows["budget_mib"][0] == f"{config.MEMORY_BUDGET_MIB} in memory, else the policy's"
    assert rows["records_max"][0] == f"{config.MEMORY_RECORDS_MAX} in memory, else the policy's"


def test_bounds_are_those_of_the_code() -> None:
    bounds = {
        **{("field of limits", name): bound for name, bound in config_file._LIMITS.items()},
        ("field of a target", "connect_timeout_s"): (config_file.TIMEOUT_MIN_S, config_file.CONNECT_TIMEOUT_MAX_S),
        ("field of a target", "idle_timeout_s"): (config_file.TIMEOUT_MIN_S, config_file.IDLE_TIMEOUT_MAX_S),
        ("field of a way", "weight"): (1, config_file.WEIGHT_MAX),
        ("field of state", "budget_mib"): (1, config_file.BUDGET_MIB_MAX),
        ("field of state", "records_max"): (1, config_file.RECORDS_MAX_MAX),
        ("field of state", "ttl_s"): (1, config_file.TTL_MAX_S),
    }
    shown = {
        (section, name): row[1]
        for section in SECTIONS
        for name, row in table(f"{section} | default | bound | why").items()
        if " to " in row[1]
    }
    assert shown == {place: f"{low} to {high}" for place, (low, high) in bounds.items()}
    assert table("field of a target | default | bound | why")["name"][1] == f"{TARGET_BYTES_MAX} bytes"
    assert f"rests for {REST_S:.0f} seconds" in PAGE


@pytest.mark.parametrize(
    ("section", "name", "kind"),
    [
        ("field", "conversations", ConversationPolicy),
        ("field of a target", "format", TargetFormat),
        ("field of a model", "policy", RoutePolicy),
        ("field of state", "backend", StateBackend),
    ],
)
def test_words_of_a_field_are_those_of_the_code(section: str, name: str, kind: type[StrEnum]) -> None:
    assert words(table(f"{section} | default | bound | why")[name][1]) == set(kind)


def test_configuration_of_the_page_and_of_the_example_are_accepted(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    path = tmp_path / "gateway.yaml"
    path.write_text(example)
    read = GatewayConfig.from_file(path, {})
    assert (set(read.targets), set(read.routes)) == ({"p1", "p2", "c"}, {"auto", "chat"})
    assert set(GatewayConfig.from_file(ROOT / "examples" / "gateway.yaml", {}).routes) == {"auto"}


def refusals() -> Iterator[tuple[str, str | None, str | None, str]]:
    """Yield code, status and reason of each refusal that the gateway and the library make, as far as they are written
    there, and where."""
    for path in (*GATEWAY, *LIBRARY):
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            place = f"{path.name}:{node.lineno}"
            if node.func.id == Refusal.__name__:
                given = {keyword.arg: written(keyword.value, module) for keyword in node.keywords}
                code, status = given.get("code"), written(node.args[0], module)
                if code is not None:
                    yield code, status, given.get("reason"), place
            elif node.func.id in ("_broken", "_unsupported", "_Inexpressible") and node.args:
                code = written(node.args[0], module)
                if code is not None and re.fullmatch(r"[a-z_]+", code):
                    yield code, "400", None, place


def written(node: ast.expr, module: Any) -> str | None:
    """Return what an argument is when the program runs, if that can be read off it."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        value = getattr(module, node.id, None)
        return value if isinstance(value, str) else None
    return None


REFUSALS = list(refusals())
ROWS = table("code | status | reason | when")


def test_every_code_of_a_refusal_has_its_row() -> None:
    assert {code for code, *_ in REFUSALS} == set(ROWS)


@pytest.mark.parametrize(("code", "status", "reason", "place"), REFUSALS, ids=str)
def test_status_and_reason_of_a_refusal_are_in_its_row(
    code: str, status: str | None, reason: str | None, place: str
) -> None:
    row = ROWS[code]
    assert status is None or status in row[0].split(", "), place
    same = ROWS["previous_response_not_found"][1] if row[1] == "as above" else row[1]
    assert reason is None or reason in words(same), place


def test_reasons_of_an_answer_that_cannot_be_passed_on_are_in_their_row() -> None:
    documented = set(re.findall(r"``(\w+)``", str(chat_answer.ChatAnswerBroken.__doc__))) - {"reason"}
    calls = {"unreachable", "timeout", "broken"}
    made = {f"upstream_{reason.removeprefix('upstream_')}" for reason in documented | calls}
    assert words(ROWS["upstream_failed"][1]) == made


def test_metrics_are_those_of_the_gateway() -> None:
    source = (ROOT / "api" / "gateway" / "metrics.py").read_text()
    made = re.findall(r"(Counter|Gauge|Histogram)\(\s*\"(turnledger_\w+)\"", source)
    rows = table("gateway's metric | labels | meaning")
    assert set(rows) == {name + ("_total" if kind == "Counter" else "") for kind, name in made}
    alarms = set(re.findall(r"turnledger_gateway_\w+", " ".join(table("when | it means"))))
    assert alarms - set(rows) == set()


@pytest.mark.parametrize("command", re.findall(r"^(turnledger [^&\n]*)&?$", PAGE, re.MULTILINE))
def test_command_of_the_page_has_the_options_that_it_is_given(command: str) -> None:
    name, *options = command.split()[1:]
    result = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert [option for option in options if option.startswith("--") and option not in result.stdout] == []


def test_links_of_the_page_lead_somewhere() -> None:
    for target, section in re.findall(r"\]\(([\w./-]+)(?:#([\w-]+))?\)", PAGE):
        page = ROOT / "docs" / target
        assert page.exists(), target
        headings = [
            line.lstrip("# ").lower().replace(" ", "-") for line in page.read_text().splitlines() if line[:1] == "#"
        ]
        assert not section or section in headings, f"{target}#{section}"
