"""Checkpoints: signed statements of what a partition was at a position, kept for ever on the topic ``checkpoints``.

One says which records were folded (the head of the hash chain) and what came of them (the row digest). What is left of
a log after it was trimmed rests on them. Bytes: one format byte, a msgpack array, and the Ed25519 signature (RFC 8032)
over a domain word and all before it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ledger.errors import UndecodableRecord
from ledger.tables import Marker

CHECKPOINT_FORMAT = 1
SIGNATURE_BYTES = 64
KEY_BYTES = 32
_DOMAIN = b"turnledger checkpoint\0"


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """One partition at one position."""

    partition: Annotated[int, msgspec.Meta(ge=0, lt=2**16)]
    marker: Marker
    written_at_ms: Annotated[int, msgspec.Meta(ge=0)]
    """Wall clock of the worker; for people."""
    public_key: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    """Whose signature it is. A verifier must know the key from elsewhere."""


class BadSignature(Exception):
    """A checkpoint was not signed by the key that it names."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Checkpoint)


class Signer:
    """Signs the checkpoints of one deployment."""

    def __init__(self, seed: bytes) -> None:
        """``seed`` are the 32 bytes of an Ed25519 private key."""
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key = self._key.public_key().public_bytes_raw()

    def sign(self, partition: int, marker: Marker, written_at_ms: int) -> bytes:
        """Return the record value of a checkpoint."""
        checkpoint = Checkpoint(
            partition=partition, marker=marker, written_at_ms=written_at_ms, public_key=self.public_key
        )
        body = bytes([CHECKPOINT_FORMAT]) + _encoder.encode(checkpoint)
        return body + self._key.sign(_DOMAIN + body)


def decode_checkpoint(value: bytes | None) -> Checkpoint:
    """Return a checkpoint whose signature is that of the key it names. Raises ``UndecodableRecord``,
    ``BadSignature``."""
    if value is None or len(value) <= SIGNATURE_BYTES:
        raise UndecodableRecord("empty")
    if value[0] != CHECKPOINT_FORMAT:
        raise UndecodableRecord("newer_format", f"a checkpoint has format {value[0]}")
    body, signature = value[:-SIGNATURE_BYTES], value[-SIGNATURE_BYTES:]
    try:
        checkpoint = _decoder.decode(body[1:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UndecodableRecord("malformed", str(error)) from None
    try:
        Ed25519PublicKey.from_public_bytes(checkpoint.public_key).verify(signature, _DOMAIN + body)
    except (InvalidSignature, ValueError) as error:
        raise BadSignature("the signature is not that of the key it names") from error
    return checkpoint
