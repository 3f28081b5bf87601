"""Lists with paging: conversation items and input items, in the one form that the API has for both.

Rules it keeps:

- the newest item comes first unless ``order`` says otherwise; ``after`` names the last item of the page before;
- an ID is listed once, where it came first: the same item sent again would make a cursor of two places, and a client
  that pages by it would go round for ever;
- a cursor that names no item of the list is refused, never taken for the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import Request

from api.queries import NoQuery
from api.requests import read_query
from ledger.refusal import Refusal

LIMIT_DEFAULT, LIMIT_MAX = 20, 100
"""The API's own: items of a page."""
INCLUDE = (b"include", b"include[]")
"""Both spellings of a repeated parameter that the official clients use."""


class Page(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of a list is asked for."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT
    order: Literal["asc", "desc"] = "desc"
    after: str = ""
    """ID of the item before the page, in the order of the list; empty: from its beginning."""


def read_page(request: Request) -> Page:
    """Return which page a request asks for. Raises ``InvalidInput`` naming the parameter."""
    return read_query(_without_include(request), Page)


def check_include_only(request: Request) -> None:
    """Raise ``InvalidInput`` naming a query parameter other than ``include``."""
    read_query(_without_include(request), NoQuery)


def page_of(items: Sequence[dict[str, Any]], page: Page) -> dict[str, Any]:
    """Return the page of ``items``, which come oldest first. Raises ``Refusal`` 404 when ``after`` is not among them.

    404 rather than 400: the cursor was right once, and its item was deleted meanwhile.
    """
    listed = distinct(items)
    if page.order == "desc":
        listed.reverse()
    start = 0
    if page.after:
        places = {item.get("id"): place for place, item in enumerate(listed)}
        if page.after not in places:
            raise Refusal(
                404,
                "The list has no item with the ID in 'after'. It may have been deleted; start again without it.",
                code="item_not_found",
                param="after",
                reason="unknown",
            )
        start = places[page.after] + 1
    end = start + page.limit
    return list_of(listed[start:end], has_more=end < len(listed))


def list_of(items: Sequence[dict[str, Any]], *, has_more: bool = False) -> dict[str, Any]:
    """Return ``items`` as the API's list object, in their order."""
    return {
        "object": "list",
        "data": list(items),
        # The API's schema wants texts, also where there is no item to name.
        "first_id": items[0].get("id") or "" if items else "",
        "last_id": items[-1].get("id") or "" if items else "",
        "has_more": has_more,
    }


def distinct(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return ``items`` with each ID once, the first of its name. A target may leave out the ID of a call."""
    seen: set[str] = set()
    listed = []
    for item in items:
        item_id = item.get("id")
        if item_id is None or item_id not in seen:
            listed.append(item)
        if item_id is not None:
            seen.add(item_id)
    return listed


def _without_include(request: Request) -> Request:
    """Return ``request`` without ``include``, which alone may be repeated.

    It asks for fields that a provider leaves out by default. The ledger has left out nothing, so any value is met.
    """
    query: bytes = request.scope["query_string"]
    kept = [pair for pair in query.split(b"&") if unquote_to_bytes(pair.partition(b"=")[0]) not in INCLUDE]
    return Request({**request.scope, "query_string": b"&".join(kept)})
