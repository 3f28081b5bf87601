"""Base URLs that a person configures, checked once for everybody."""

from __future__ import annotations

import ipaddress
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
        if is_address and parts.hostname is not None:
            return _problem_of_host(parts.hostname)
    return None if is_address else "must be an http or https URL with a host"


def _problem_of_host(host: str) -> str | None:
    """Return why nobody can be asked at ``host``: what the driver and ``getaddrinfo`` refuse with no ``OSError``."""
    try:
        host.encode("idna")
    except UnicodeError:
        # RFC 1035, 2.3.4.
        return "must have a host whose parts between dots have 1 to 63 characters"
    if re.fullmatch("[0-9.]+", host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            # What such a number means depends on who reads it (RFC 6943, 3.1.1).
            return "must have a name for a host, or an address of four decimal numbers"
    return None
