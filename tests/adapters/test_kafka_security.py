"""Logging in to the brokers: which settings contradict each other, and a real listener with TLS and SASL."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from broker.launcher import Cluster
from broker.settings import ClusterSettings, SecuredListener
from ledger.adapters.kafka import KafkaLog
from ledger.adapters.kafka_security import KafkaSecurity
from ledger.adapters.kafka_settings import KafkaSettings
from ledger.adapters.kafka_topics import check_topics, create_topics
from ledger.errors import InvalidInput, Unavailable
from ledger.turn import Position
from tests.adapters.kafka_world import P0, P1, TIMEOUT_S, append, read_to

USERNAME, PASSWORD = "ledger", "sesame-open"
KEYSTORE_ALIAS = "broker"
LOGIN: dict[str, Any] = {
    "kafka_security_protocol": "SASL_PLAINTEXT",
    "kafka_sasl_mechanism": "SCRAM-SHA-256",
    "kafka_sasl_username": USERNAME,
    "kafka_sasl_password": PASSWORD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """A certificate for 127.0.0.1 that vouches for itself."""

    keystore: Path
    certificate: Path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    # It comes with Java, which the brokers need anyway.
    keytool = shutil.which("keytool")
    if keytool is None:
        pytest.skip("no keytool on PATH: it comes with Java")
    directory = tmp_path_factory.mktemp("certificates")
    made = Certificates(keystore=directory / "broker.p12", certificate=directory / "broker.pem")
    store = ["-keystore", str(made.keystore), "-storepass", PASSWORD, "-alias", KEYSTORE_ALIAS]
    use = [
        "-ext",
        "SAN=IP:127.0.0.1",
        "-ext",
        "BC:critical=ca:true",
        "-ext",
        "KU:critical=keyCertSign,digitalSignature",
    ]
    pair = ["-genkeypair", "-keyalg", "EC", "-dname", "CN=broker", "-storetype", "PKCS12", *use]
    subprocess.run([keytool, *pair, *store], check=True, capture_output=True)
    export = ["-exportcert", "-rfc", "-file", str(made.certificate)]
    subprocess.run([keytool, *export, *store], check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def secured_bootstrap(certificates: Certificates) -> Iterator[str]:
    if shutil.which("java") is None:
        pytest.skip("no java on PATH: the launcher's containers have no secured listener")
    listener = SecuredListener(username=USERNAME, password=PASSWORD, keystore=certificates.keystore)
    with Cluster(ClusterSettings(secured=listener)) as cluster:
        yield cluster.secured_bootstrap


def login(certificates: Certificates, mechanism: str, **changed: Any) -> dict[str, Any]:
    """Return aiokafka's options for the real listener."""
    over_tls = {"kafka_security_protocol": "SASL_SSL", "kafka_ssl_ca_file": certificates.certificate}
    return KafkaSecurity(**{**LOGIN, **over_tls, "kafka_sasl_mechanism": mechanism, **changed}).kafka_options()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_topics_and_log_work_over_tls_with_every_mechanism(
    secured_bootstrap: str, certificates: Certificates, mechanism: str
) -> None:
    settings = KafkaSettings(
        bootstrap=secured_bootstrap, prefix=f"test-{mechanism}", security=login(certificates, mechanism)
    )
    assert len(await create_topics(settings, partition_count=2, replication_factor=1)) == 6
    assert await check_topics(settings, replication_factor=1) == []
    log = KafkaLog(settings)
    tail = await log.tail({P0: Position(0), P1: Position(0)})
    await append(log, 3)
    end = await log.end(P0, timeout_s=TIMEOUT_S)
    records, _ = await read_to(tail, P0, end)
    assert [record.value for record in records] == [b"value-0", b"value-1", b"value-2"]
    await log.close()


@pytest.mark.parametrize(
    "wrong", [{"kafka_sasl_password": "another"}, {"kafka_sasl_username": "another"}, {"kafka_ssl_ca_file": None}]
)
async def test_login_that_the_broker_or_the_client_refuses_is_unavailable_and_says_why(
    secured_bootstrap: str, certificates: Certificates, wrong: dict[str, Any]
) -> None:
    security = login(certificates, "SCRAM-SHA-512", **wrong)
    with pytest.raises(Unavailable, match=r"Authentication|CERTIFICATE_VERIFY_FAILED") as raised:
        await check_topics(KafkaSettings(bootstrap=secured_bootstrap, security=security))
    assert raised.value.reason == "broker"
    assert PASSWORD not in str(raised.value)


def test_without_settings_the_brokers_are_asked_in_the_clear() -> None:
    assert KafkaSecurity().kafka_options() == {"security_protocol": "PLAINTEXT"}


def test_login_is_what_aiokafka_calls_it(tmp_path: Path) -> None:
    expected = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": USERNAME,
        "sasl_plain_password": PASSWORD,
    }
    assert KafkaSecurity(**LOGIN).kafka_options() == expected
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    from_file = LOGIN | {"kafka_sasl_password": None, "kafka_sasl_password_file": tmp_path / "password"}
    assert KafkaSecurity(**from_file).kafka_options() == expected


def test_settings_come_from_the_environment_and_hide_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LOGIN.items():
        monkeypatch.setenv(f"TURNLEDGER_{name.upper()}", value)
    security = KafkaSecurity()
    assert security.kafka_options() == KafkaSecurity(**LOGIN).kafka_options()
    assert PASSWORD not in repr(security)
    assert PASSWORD not in repr(KafkaSettings(bootstrap="host:1", security=security.kafka_options()))


def test_broker_must_prove_its_name() -> None:
    context = KafkaSecurity(kafka_security_protocol="SSL").kafka_options()["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def client_certificate(directory: Path, *encryption: str) -> dict[str, Any]:
    """Return the settings of a client that has a certificate, made for this test."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on PATH")
    certificate, key = directory / "client.pem", directory / "client.key"
    pair = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=client"]
    files = ["-out", str(certificate), "-keyout", str(key)]
    subprocess.run([openssl, "req", *pair, *files, *encryption], check=True, capture_output=True)
    names = {"kafka_ssl_certificate_file": certificate, "kafka_ssl_key_file": key}
    return {"kafka_security_protocol": "SSL", **names}


def test_client_may_have_a_certificate_of_its_own(tmp_path: Path) -> None:
    given = client_certificate(tmp_path, "-nodes")
    assert isinstance(KafkaSecurity(**given).kafka_options()["ssl_context"], ssl.SSLContext)
    other = tmp_path / "other"
    other.mkdir()
    mixed = given | {"kafka_ssl_key_file": client_certificate(other, "-nodes")["kafka_ssl_key_file"]}
    with pytest.raises(InvalidInput, match="kafka_ssl_certificate_file: and its key are no pair"):
        KafkaSecurity(**mixed).kafka_options()


def test_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(tmp_path: Path) -> None:
    given = client_certificate(tmp_path, "-passout", f"pass:{PASSWORD}")
    with pytest.raises(InvalidInput, match="kafka_ssl_key_file: is encrypted"):
        KafkaSecurity(**given).kafka_options()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"kafka_sasl_username": USERNAME}, "kafka_sasl_username"),
        ({"kafka_security_protocol": "SSL", "kafka_sasl_password": PASSWORD}, "kafka_sasl_password"),
        ({"kafka_ssl_ca_file": "ca.pem"}, "kafka_ssl_ca_file"),
        (LOGIN | {"kafka_ssl_key_file": "key.pem"}, "kafka_ssl_key_file"),
        (LOGIN | {"kafka_sasl_mechanism": None}, "kafka_sasl_mechanism"),
        (LOGIN | {"kafka_sasl_username": ""}, "kafka_sasl_username"),
        (LOGIN | {"kafka_sasl_password": None}, "kafka_sasl_password"),
        (LOGIN | {"kafka_sasl_password_file": __file__}, "kafka_sasl_password_file"),
        (LOGIN | {"kafka_sasl_password": None, "kafka_sasl_password_file": "/missing"}, "kafka_sasl_password_file"),
        ({"kafka_security_protocol": "SSL", "kafka_ssl_ca_file": "/missing"}, "kafka_ssl_ca_file"),
        ({"kafka_security_protocol": "SSL", "kafka_ssl_ca_file": __file__}, "kafka_ssl_ca_file"),
        ({"kafka_security_protocol": "SSL", "kafka_ssl_certificate_file": "/missing"}, "kafka_ssl_certificate_file"),
        ({"kafka_security_protocol": "SSL", "kafka_ssl_certificate_file": __file__}, "kafka_ssl_certificate_file"),
        ({"kafka_security_protocol": "SSL", "kafka_ssl_key_file": __file__}, "kafka_ssl_certificate_file"),
        (
            {
                "kafka_security_protocol": "SSL",
                "kafka_ssl_certificate_file": __file__,
                "kafka_ssl_key_file": "/missing",
            },
            "kafka_ssl_key_file",
        ),
    ],
)
def test_contradiction_is_refused_by_the_name_of_its_setting(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        KafkaSecurity(**given).kafka_options()
    assert raised.value.field == field
    assert PASSWORD not in str(raised.value)
