"""Base URLs that a person configures, checked once for everybody."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

URL_BYTES_MAX = 2_048
"""What HTTP clients and proxies take without asking."""


def problem_of(url: str) -> str | None:
    """Return why ``url`` cannot be one that paths are appended to; None: it can."""
    if not re.fullmatch("[!-~]+", url):
        return "must have only visible ASCII characters"
    if "?" in url or "#" in url:
        return "must have no query and no fragment: paths are appended to it"
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    else:
        if "@" in parts.netloc:
            return "must have no user and password"
    return None if is_address else "must be an http or https URL with a host"
