"""docs/architecture.md names tests and modules that exist, and each guarantee has a test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
GUARANTEES = re.findall(r"^\*\*(G\d+)\. (.*?)(?=^\*\*G\d+\. |^### )", PAGE, re.MULTILINE | re.DOTALL)


def existing_tests() -> set[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    defined = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
    return {name for file in files for name in defined.findall(file.read_text())}


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named - existing_tests() == set()


def test_guarantees_are_numbered_without_a_gap_and_each_names_its_tests() -> None:
    assert [number for number, _ in GUARANTEES] == [f"G{number + 1}" for number in range(len(GUARANTEES))]
    assert [number for number, text in GUARANTEES if not re.search(r"Tests: `test_\w+`", text)] == []


def test_every_module_that_the_page_names_exists() -> None:
    missing = []
    for names in re.findall(r"^\| (`(?:ledger|api|cli|broker|processors)/.*?) \|", PAGE, re.MULTILINE) + re.findall(
        r"^\*\*\w+\*\* \((.*?)\)\.", PAGE, re.MULTILINE | re.DOTALL
    ):
        folder = ""
        for name in re.findall(r"`([\w./*]+)`", names):
            folder, path = (name.rpartition("/")[0], name) if "/" in name else (folder, f"{folder}/{name}")
            if not list(ROOT.glob(path.removesuffix("/"))):
                missing.append(path)
    assert missing == []


def test_every_module_of_the_library_and_of_the_processors_is_on_the_page() -> None:
    modules = {path.name for name in ("ledger", "processors") for path in (ROOT / name).glob("*.py")} - {"__init__.py"}
    assert {name for name in modules if f"{name}`" not in PAGE} == set()


def test_every_module_of_the_gateway_is_on_the_page() -> None:
    rows = " ".join(re.findall(r"^\| `api/gateway/.*$", PAGE, re.MULTILINE))
    modules = {path.name for path in (ROOT / "api" / "gateway").glob("*.py")} - {"__init__.py"}
    assert {name for name in modules if f"{name}`" not in rows} == set()
