"""TLS and SASL towards the brokers: settings that service and commands share, and aiokafka's options made of them.

What contradicts itself is refused before a broker is asked: to a client that cannot log in, brokers seem to be away.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Literal

from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from ledger.errors import InvalidInput


class KafkaSecurity(BaseSettings):
    """How to log in to the brokers; each setting may come from the environment as ``TURNLEDGER_<NAME>``."""

    model_config = SettingsConfigDict(env_prefix="TURNLEDGER_", extra="forbid", frozen=True)

    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """As the brokers' listener has it."""
    kafka_ssl_ca_file: Path | None = None
    """PEM; None: the authorities that the system trusts. The broker's name is always compared with its certificate."""
    kafka_ssl_certificate_file: Path | None = None
    """PEM, with the chain; for brokers that want to know the client's."""
    kafka_ssl_key_file: Path | None = None
    """PEM, not encrypted; None: the key is in the certificate's file."""
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    kafka_sasl_username: str | None = None
    kafka_sasl_password: SecretStr | None = None
    kafka_sasl_password_file: Path | None = None
    """A file that holds it instead; a line end at its end is not part of it."""

    def kafka_options(self) -> dict[str, Any]:
        """Return what ``KafkaSettings.security`` takes. Raises ``InvalidInput`` naming the setting."""
        options: dict[str, Any] = {"security_protocol": self.kafka_security_protocol}
        if self._has_layer("ssl"):
            options["ssl_context"] = self._ssl_context()
        if self._has_layer("sasl"):
            options |= self._sasl_options()
        return options

    def _has_layer(self, layer: Literal["ssl", "sasl"]) -> bool:
        """Return whether the protocol has this layer; refuse settings of one that it has not."""
        if layer.upper() in self.kafka_security_protocol.split("_"):
            return True
        for name in KafkaSecurity.model_fields:
            if name.startswith(f"kafka_{layer}_") and getattr(self, name) is not None:
                raise InvalidInput(name, f"is of no use with kafka_security_protocol {self.kafka_security_protocol}")
        return False

    def _ssl_context(self) -> ssl.SSLContext:
        certificate, key = self.kafka_ssl_certificate_file, self.kafka_ssl_key_file
        if key is not None and certificate is None:
            raise InvalidInput("kafka_ssl_certificate_file", "is required with kafka_ssl_key_file")
        # OpenSSL does not say which of its files it could not read.
        for name in ("kafka_ssl_ca_file", "kafka_ssl_certificate_file", "kafka_ssl_key_file"):
            self._file(name)
        try:
            context = ssl.create_default_context(cafile=self.kafka_ssl_ca_file)
        except ssl.SSLError as error:
            raise InvalidInput("kafka_ssl_ca_file", f"holds no certificates in PEM: {error}") from None
        if certificate is not None:
            try:
                context.load_cert_chain(certificate, key, password=_refuse_encrypted)
            except ssl.SSLError as error:
                raise InvalidInput(
                    "kafka_ssl_certificate_file", f"and its key are no pair in PEM that can be used: {error}"
                ) from None
        return context

    def _sasl_options(self) -> dict[str, str]:
        password = self._password()
        required = {
            "kafka_sasl_mechanism": self.kafka_sasl_mechanism,
            "kafka_sasl_username": self.kafka_sasl_username,
            "kafka_sasl_password": password,
        }
        for name, value in required.items():
            if not value:
                raise InvalidInput(name, f"is required with kafka_security_protocol {self.kafka_security_protocol}")
        return {
            "sasl_mechanism": str(self.kafka_sasl_mechanism),
            "sasl_plain_username": str(self.kafka_sasl_username),
            "sasl_plain_password": password,
        }

    def _password(self) -> str:
        in_file = self._file("kafka_sasl_password_file")
        if in_file is None:
            return "" if self.kafka_sasl_password is None else self.kafka_sasl_password.get_secret_value()
        if self.kafka_sasl_password is not None:
            raise InvalidInput("kafka_sasl_password_file", "cannot be given together with kafka_sasl_password")
        try:
            return in_file.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise InvalidInput("kafka_sasl_password_file", "is not UTF-8") from None

    def _file(self, name: str) -> bytes | None:
        """Return what is in the file that a setting names, None if it names none."""
        path: Path | None = getattr(self, name)
        try:
            return None if path is None else path.read_bytes()
        except OSError as error:
            raise InvalidInput(name, f"cannot be read: {error}") from None


def _refuse_encrypted() -> str:
    """Be OpenSSL's question for a password; without this it would ask at the terminal."""
    raise InvalidInput("kafka_ssl_key_file", "is encrypted; give a key that is not, readable by this user only")
