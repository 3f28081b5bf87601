"""Dependencies point one way, and each driver is imported in its own corner (design §8)."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("ledger", "api", "processors", "cli")
FORBIDDEN = {
    "ledger": {"api", "processors", "cli", "broker", "tests", "benchmarks", "examples"},
    "api": {"processors", "cli", "broker", "tests", "benchmarks", "examples"},
    "processors": {"api", "cli", "broker", "tests", "benchmarks", "examples"},
    "cli": {"tests", "benchmarks", "examples", "broker"},
}
CORNERS = {
    "aiokafka": ("ledger/adapters/kafka",),
    "rocksdict": ("ledger/adapters/rocks.py",),
    "faust": ("processors/",),
    "aiohttp": ("api/connections.py",),
    "yarl": ("api/connections.py",),
    "fastapi": ("api/",),
    "starlette": ("api/", "cli/loopback/"),
    "uvicorn": ("api/", "cli/loopback/"),
    "typer": ("cli/",),
    "cryptography": ("ledger/checkpoint.py",),
}
EXAMPLES_MAY = {"ledger", "httpx", "starlette", "uvicorn"}
"""Besides the standard library: what another router in Python has, and nothing of the gateway."""
PURE = (
    "tables",
    "facts",
    "checkpoint",
    "turn",
    "event",
    "codec",
    "alias",
    "policy",
    "verdict",
    "lifecycle",
    "fold",
    "fold_rules",
    "fold_turns",
    "fold_conversations",
)
IMPURE_MODULES = {
    "asyncio",
    "time",
    "datetime",
    "random",
    "secrets",
    "os",
    "socket",
    "logging",
    "structlog",
    "threading",
}


def imports_of(path: Path) -> set[str]:
    """Return the dotted names that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
    return names


def files_of(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_lies_below_them(package: str) -> None:
    for path in files_of(package):
        wrong = {name for name in imports_of(path) if name.split(".")[0] in FORBIDDEN[package]}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_examples_import_the_library_and_nothing_else_of_ours() -> None:
    for path in files_of("examples"):
        names = {name.split(".")[0] for name in imports_of(path)}
        assert names - EXAMPLES_MAY <= set(sys.stdlib_module_names), f"{path.name} imports {names}"


@pytest.mark.parametrize("driver", CORNERS)
def test_each_driver_is_imported_in_its_own_corner(driver: str) -> None:
    for package in PACKAGES:
        for path in files_of(package):
            relative = path.relative_to(ROOT).as_posix()
            if any(name.split(".")[0] == driver for name in imports_of(path)):
                assert relative.startswith(CORNERS[driver]), f"{relative} imports {driver}"


def test_only_composition_roots_import_adapters() -> None:
    roots = (
        "ledger/adapters/",
        "ledger/composition.py",
        "api/serve.py",
        "processors/composition.py",
        "processors/settings.py",
        "cli/",
    )
    for package in PACKAGES:
        for path in files_of(package):
            relative = path.relative_to(ROOT).as_posix()
            if any(name.startswith("ledger.adapters") for name in imports_of(path)):
                assert relative.startswith(roots), f"{relative} imports an adapter"


@pytest.mark.parametrize("module", PURE)
def test_the_core_reads_no_clock_draws_no_randomness_and_does_no_io(module: str) -> None:
    path = ROOT / "ledger" / f"{module}.py"
    wrong = {name for name in imports_of(path) if name.split(".")[0] in IMPURE_MODULES}
    assert not wrong, f"ledger/{module}.py imports {wrong}"
    assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(ast.parse(path.read_text())))
