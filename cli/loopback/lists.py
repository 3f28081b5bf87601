"""Lists as the API pages them: newest first unless asked otherwise, 20 a page unless asked otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cli.loopback.items import Item, invalid

LIMIT, LIMIT_MAX = 20, 100


def page(items: Sequence[Item], query: Mapping[str, str]) -> dict[str, Any]:
    """Return one page of ``items``, which are oldest first. Raises ``Refusal``."""
    limit, order, after = query.get("limit", str(LIMIT)), query.get("order", "desc"), query.get("after")
    if not limit.isdecimal() or not 1 <= int(limit) <= LIMIT_MAX:
        raise invalid("limit", f"expected 1 to {LIMIT_MAX}")
    if order not in ("asc", "desc"):
        raise invalid("order", "expected asc or desc")
    ordered = list(items) if order == "asc" else list(reversed(items))
    start = 0
    if after is not None:
        position = [item["id"] for item in ordered]
        if after not in position:
            raise invalid("after", "no such item in this list")
        start = position.index(after) + 1
    data = ordered[start : start + int(limit)]
    ids = [item["id"] for item in data] or [""]
    has_more = len(ordered) > start + len(data)
    return {"object": "list", "data": data, "first_id": ids[0], "last_id": ids[-1], "has_more": has_more}
