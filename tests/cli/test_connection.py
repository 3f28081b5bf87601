"""Which ledger a command talks to, and what it says when it cannot."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path

import pytest

from api.serve import ServiceSettings
from cli.failures import ExitCode, exit_code
from ledger.adapters.rocks import RocksViewStore
from ledger.errors import (
    InvalidInput,
    LedgerError,
    ManifestMismatch,
    NotPermitted,
    StateDirectoryLocked,
    Unavailable,
    Unknown,
)
from ledger.settings import default_directory
from tests.cli.conftest import NATIVE, Run, ndjson, serving


def test_version_is_the_distributions(run: Run) -> None:
    assert run("--version").out == f"turnledger {version('turnledger')}\n"


def test_help_documents_the_exit_codes(run: Run) -> None:
    text = " ".join(run("--help").out.split())
    for code, words in {2: "the call is wrong", 3: "refused, missing or gone", 4: "unavailable", 5: "unknown"}.items():
        assert f"{code} " in text
        assert words in text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput("id", "must not be empty"), ExitCode.CALLER),
        (NotPermitted("this call needs the role admin"), ExitCode.CALLER),
        (Unavailable("lagging", "behind"), ExitCode.UNAVAILABLE),
        (Unknown("event", "no verdict"), ExitCode.UNKNOWN),
        (ManifestMismatch("another ledger"), ExitCode.FATAL),
        (StateDirectoryLocked("open"), ExitCode.FATAL),
        (LedgerError("anything else"), ExitCode.FATAL),
    ],
)
def test_every_family_of_errors_has_its_exit_code(error: LedgerError, code: ExitCode) -> None:
    assert exit_code(error) is code


def test_ledger_that_does_not_exist_is_not_made_by_a_read(run: Run, home: Path) -> None:
    ran = run("lookup", "response", "resp_native")
    assert ran.code == 2
    assert ran.err.startswith(f"turnledger: directory: there is no ledger in {home}")
    assert not home.exists()


def test_ledger_open_elsewhere_is_named_together_with_the_way_to_ask_it(published: Run, home: Path) -> None:
    store = RocksViewStore(home / "log", sync=True)
    ran = published("lookup", "response", "resp_native")
    store.close()
    assert ran.code == 6
    assert ran.err.startswith(f"turnledger: the ledger in {home} is open in another process")
    assert "--url" in ran.err
    assert ran.err.count("\n") == 1


def test_service_that_cannot_be_reached_is_unavailable_and_named(run: Run) -> None:
    ran = run("lookup", "response", "resp_native", "--url", "http://127.0.0.1:9")
    assert ran.code == 4
    assert "http://127.0.0.1:9" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("url", ["nonsense", "ftp://example.org", "http://", "http://host:port"])
def test_url_that_is_none_is_the_callers_error(run: Run, url: str) -> None:
    ran = run("lookup", "response", "resp_native", "--url", url)
    assert ran.code == 2
    assert ran.err.startswith("turnledger: url: ")


def test_directory_that_cannot_be_made_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = run("publish", "-", "--directory", str(tmp_path / "file" / "ledger"), stdin=ndjson(NATIVE))
    assert ran.code == 6
    assert ran.err.count("\n") == 1


def test_embedded_ledger_is_served_and_asked_by_url(published: Run, home: Path) -> None:
    with serving() as url:
        assert published("lookup", "response", "resp_native", "--url", url).code == 0
        assert published("publish", "-", "--url", url, stdin=ndjson(NATIVE | {"event_id": "again"})).code == 3
        assert len(published("replay", "--url", url, "--json").lines()) == 4
        assert published("view", "status", "--url", url).out == "ready\n"
        assert published("policy", "show", "--url", url, "--json").json()["generation"] == 0
        assert published("lookup", "response", "resp_native").code == 6
        assert published("lookup", "response", "resp_native", "--url", url, "--namespace", "x").code == 2
    assert published("lookup", "response", "resp_native").code == 0


def test_token_decides_what_may_be_asked(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {
        "sha256": hashlib.sha256(b"reader-token").hexdigest(),
        "namespace": "prod",
        "principals": ["ann"],
        "routes": ["default"],
        "roles": ["reader"],
    }
    auth_file = tmp_path / "auth.yaml"
    auth_file.write_text(json.dumps({"tokens": [entry]}))
    with serving("--auth-file", str(auth_file)) as url:
        monkeypatch.setenv("TURNLEDGER_URL", url)
        without = run("lookup", "response", "resp_1", "--principal", "ann")
        assert (without.code, "bearer token" in without.err) == (2, True)
        monkeypatch.setenv("TURNLEDGER_TOKEN", "reader-token")
        monkeypatch.setenv("TURNLEDGER_PRINCIPAL", "ann")
        assert run("lookup", "response", "resp_1").code == 3
        assert run("lookup", "response", "resp_1", "--principal", "bob").code == 2
        assert run("lookup", "response", "resp_1", "--route", "other").code == 2
        refused = run("publish", "-", stdin=ndjson(NATIVE))
        assert (refused.code, "role router" in refused.err) == (2, True)


def test_namespace_with_a_service_is_refused_and_the_message_says_why(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNLEDGER_NAMESPACE", "prod")
    ran = run("replay", "--url", "http://127.0.0.1:9")
    assert ran.code == 2
    assert ran.err.startswith("turnledger: namespace: is decided by the token when a service is asked; leave out")


@pytest.mark.parametrize(
    "command", [("serve",), ("topics", "check"), ("topics", "create"), ("view", "status"), ("view", "rebuild")]
)
@pytest.mark.parametrize(
    ("protocol", "field"), [("TLS", "kafka_security_protocol"), ("SASL_SSL", "kafka_sasl_mechanism")]
)
def test_every_command_that_asks_brokers_refuses_a_wrong_login_by_its_setting(
    published: Run, command: tuple[str, ...], protocol: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNLEDGER_KAFKA_SECURITY_PROTOCOL", protocol)
    ran = published(*command, "--bootstrap", "127.0.0.1:9")
    assert ran.code == 2
    assert ran.err.startswith(f"turnledger: {field}: ")


def test_service_and_commands_have_one_default_directory(home: Path) -> None:
    assert ServiceSettings().directory == default_directory() == home


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--port", "70000"), "port"),
        (("--log-level", "loud"), "log_level"),
        (("--host", "0.0.0.0"), "auth_file"),  # noqa: S104  # it is refused
        (("--bootstrap", "127.0.0.1:9"), "alias_key_file"),
    ],
)
def test_wrong_setting_of_a_service_is_one_line_that_names_it(run: Run, arguments: tuple[str, ...], field: str) -> None:
    ran = run("serve", *arguments)
    assert ran.code == 2
    assert ran.err.startswith(f"turnledger: {field}: ")
    assert ran.err.count("\n") == 1
