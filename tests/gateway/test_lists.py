"""Pages of a list: which part is asked for, and how it is answered."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.conversations import ConversationItemList
from openai.types.responses import ResponseItemList
from pydantic import TypeAdapter
from starlette.requests import Request

from api.gateway.lists import LIMIT_DEFAULT, LIMIT_MAX, Page, check_include_only, list_of, page_of, read_page
from ledger.errors import InvalidInput
from ledger.refusal import Refusal


def message(item_id: str) -> dict[str, Any]:
    return {
        "id": item_id,
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": item_id}],
    }


ITEMS = [message(f"msg_{number}") for number in range(5)]


def asked(query: str) -> Request:
    return Request({"type": "http", "query_string": query.encode(), "headers": []})


def ids_of(answer: dict[str, Any]) -> list[str]:
    return [item["id"].removeprefix("msg_") for item in answer["data"]]


def test_defaults_are_those_of_the_api() -> None:
    assert read_page(asked("")) == Page(limit=LIMIT_DEFAULT, order="desc", after="")


@pytest.mark.parametrize("limit", [1, LIMIT_MAX])
def test_limit_is_taken_at_its_bounds(limit: int) -> None:
    assert read_page(asked(f"limit={limit}")).limit == limit


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("limit=0", "limit"),
        (f"limit={LIMIT_MAX + 1}", "limit"),
        ("limit=many", "limit"),
        ("limit=", "limit"),
        ("order=up", "order"),
        ("order=asc&order=desc", "order"),
        ("after=msg_1&after=msg_2", "after"),
        ("before=msg_1", "before"),
    ],
)
def test_wrong_parameter_is_refused_by_name(query: str, name: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_page(asked(query))
    assert refused.value.field == name


@pytest.mark.parametrize(
    "query", ["include=a&include=b", "include[]=a&include%5B%5D=b", "%69nclude=a&include=a", "include="]
)
def test_include_may_be_repeated_in_each_spelling(query: str) -> None:
    assert read_page(asked(f"{query}&limit=7&after=msg_1")) == Page(limit=7, after="msg_1")
    check_include_only(asked(query))


def test_parameter_of_a_list_is_refused_where_there_is_no_list() -> None:
    with pytest.raises(InvalidInput, match="limit"):
        check_include_only(asked("include=a&limit=7"))


@pytest.mark.parametrize(("order", "first"), [("desc", ["4", "3"]), ("asc", ["0", "1"])])
def test_page_begins_at_the_end_that_the_order_names(order: Any, first: list[str]) -> None:
    assert ids_of(page_of(ITEMS, Page(limit=2, order=order))) == first


@pytest.mark.parametrize("order", ["desc", "asc"])
@pytest.mark.parametrize("limit", range(1, 7))
def test_pages_joined_are_the_whole_list(order: Any, limit: int) -> None:
    seen: list[str] = []
    after = ""
    for _ in ITEMS:
        page = page_of(ITEMS, Page(limit=limit, order=order, after=after))
        seen += ids_of(page)
        after = page["last_id"]
        if not page["has_more"]:
            break
    whole = [item["id"].removeprefix("msg_") for item in ITEMS]
    assert seen == (whole if order == "asc" else whole[::-1])


@pytest.mark.parametrize(("limit", "has_more"), [(4, True), (5, False), (6, False)])
def test_more_is_said_only_when_there_is_more(limit: int, has_more: bool) -> None:
    assert page_of(ITEMS, Page(limit=limit))["has_more"] is has_more


def test_page_after_the_last_item_is_empty() -> None:
    page = page_of(ITEMS, Page(after="msg_0"))
    assert page == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}


def test_cursor_that_names_no_item_is_refused() -> None:
    with pytest.raises(Refusal) as refused:
        page_of(ITEMS, Page(after="msg_9"))
    assert (refused.value.status, refused.value.code, refused.value.param) == (404, "item_not_found", "after")


def test_item_that_was_sent_again_is_listed_once() -> None:
    again = [*ITEMS, message("msg_1"), message("msg_5")]
    assert ids_of(page_of(again, Page(order="asc"))) == ["0", "1", "2", "3", "4", "5"]
    assert ids_of(page_of(again, Page(order="asc", after="msg_4"))) == ["5"]


@pytest.mark.parametrize("shape", [ConversationItemList, ResponseItemList])
@pytest.mark.parametrize("items", [[], ITEMS])
def test_list_is_one_of_the_sdk(shape: Any, items: list[dict[str, Any]]) -> None:
    answer = list_of(items)
    TypeAdapter(shape).validate_python(answer, strict=True)
    assert answer["data"] == items
