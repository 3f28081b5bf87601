"""``GET /responses/{response_id}/input_items``: what one turn was given, without what came before it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from api.gateway.forward import ask, owner_of, passed_on
from api.gateway.lists import page_of, read_page
from api.gateway.retrieval import find_response, response_path, response_selector
from api.gateway.service import Gateway, json_answer


async def list_input_items(gateway: Gateway, request: Request) -> Response:
    """List the input items of a response; one that has not finished has none yet.

    Raises ``Refusal`` for one that does not live, and where only its owner could answer.
    """
    selector = response_selector(request, gateway.scope(request))
    found, entry = await find_response(gateway, selector)
    if found.owner.native:
        path = f"{response_path(selector.id)}/input_items"
        return passed_on(await ask(gateway, request, owner_of(gateway, found.owner), path))
    page = read_page(request)
    return json_answer(page_of([] if entry is None else entry.input, page))
