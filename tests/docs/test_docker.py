"""docker/ names commands, settings, packages and files that exist. Whether the image runs, only an engine can tell."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from api.auth import Access
from api.serve import ServiceSettings
from broker.kafka_jars import kafka_version
from cli.connection import Connection
from cli.main import app
from processors.settings import ProcessSettings

ROOT = Path(__file__).parent.parent.parent
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ["topics", "replica-a", "replica-b", "processor"]
SETTINGS = (*ServiceSettings.model_fields, *ProcessSettings.model_fields, *Connection.__dataclass_fields__)
KNOWN = {f"TURNLEDGER_{name.upper()}" for name in SETTINGS}
IMAGE_SETTINGS = dict(re.findall(r"\b(TURNLEDGER_\w+)=(\S+)", DOCKERFILE))


def help_of(words: list[str]) -> str:
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def mounts_of(service: dict[str, Any]) -> dict[str, str]:
    """Return what is mounted, by where."""
    words = [volume.split(":") for volume in service["volumes"]]
    return {parts[1]: parts[0] for parts in words}


@pytest.mark.parametrize("name", OURS)
def test_service_runs_a_command_that_exists_with_settings_that_exist(name: str) -> None:
    service = SERVICES[name]
    words = service.get("command") or ["serve"]
    options = [word for word in words if word.startswith("--")]
    named = words[: words.index(options[0])] if options else words
    assert [option for option in options if option not in help_of(named)] == []
    assert set(service["environment"]) - KNOWN == set()


def test_settings_of_the_image_are_accepted_by_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(IMAGE_SETTINGS) - KNOWN == set()
    for name, value in IMAGE_SETTINGS.items():
        monkeypatch.setenv(name, value)
    settings = ServiceSettings()
    assert (settings.host, settings.port) == ("0.0.0.0", 8420)  # noqa: S104  # compared, not bound
    assert IMAGE_SETTINGS["TURNLEDGER_URL"] == f"http://127.0.0.1:{settings.port}"


def test_health_check_and_default_command_exist() -> None:
    check = re.search(r"^HEALTHCHECK .* CMD turnledger (.+) \|\| exit 1$", DOCKERFILE, re.MULTILINE)
    assert check is not None
    help_of(check[1].split())
    assert 'ENTRYPOINT ["turnledger"]\nCMD ["serve"]\n' in DOCKERFILE


def test_each_replica_has_a_state_of_its_own_and_the_same_key() -> None:
    state = IMAGE_SETTINGS["TURNLEDGER_DIRECTORY"]
    mounts = {name: mounts_of(SERVICES[name]) for name in OURS}
    assert mounts["replica-a"][state] != mounts["replica-b"][state]
    key_file = SERVICES["topics"]["environment"]["TURNLEDGER_ALIAS_KEY_FILE"]
    assert {mount[str(Path(key_file).parent)] for mount in mounts.values()} == {"key"}
    assert {name for mount in mounts.values() for name in mount.values() if "/" not in name} <= set(COMPOSE["volumes"])


def test_auth_file_is_accepted_and_ports_are_on_loopback_only() -> None:
    digest = hashlib.sha256(b"turnledger-example").hexdigest()
    assert digest in (DOCKER / "auth.yaml").read_text()
    assert not Access.from_file(DOCKER / "auth.yaml").is_local
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_broker_is_the_one_that_the_tests_run_on() -> None:
    assert SERVICES["broker"]["image"] == f"apache/kafka:{kafka_version()}"


def test_image_is_built_from_every_package_and_from_hashes_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = [word for line in re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE, re.MULTILINE) for word in line.split()]
    assert [path for path in copied if not (ROOT / path).exists()] == []
    assert set(packages) <= set(copied)
    allowed = re.findall(r"^!(.+)$", (DOCKER / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    assert sorted(allowed) == sorted(copied)
    fetched = re.findall(r"pip (?:download|install|wheel) .*", DOCKERFILE)
    assert [line for line in fetched if "--require-hashes" not in line and "--no-index" not in line] == []
    assert re.search(r"^USER (?!root)\w+$", DOCKERFILE, re.MULTILINE)
