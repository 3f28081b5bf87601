"""IDs that the gateway makes, spelt as the API spells them."""

from __future__ import annotations

import secrets


def new_id(prefix: str) -> str:
    """Return a new ID: ``resp``, ``conv``, ``msg``, ``fc``, ``rs``, ... and 48 random hexadecimal digits."""
    return f"{prefix}_{secrets.token_hex(24)}"
