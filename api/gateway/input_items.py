"""``GET /responses/{response_id}/input_items``: what one turn was given, without what came before it."""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from api.gateway.forward import ask, owner_of, passed_on
from api.gateway.lists import page_of, read_page
from api.gateway.service import Gateway, json_answer
from ledger.answer import Answer, Found, Gone
from ledger.refusal import Refusal
from ledger.turn import Selector, SelectorKind


async def list_input_items(gateway: Gateway, request: Request) -> Response:
    """List the input items of a response; one that has not finished has none yet.

    Raises ``Refusal`` for one that does not live, and where only its owner could answer.
    """
    scope = gateway.scope(request)
    response_id = request.path_params["response_id"]
    found = living_response(await gateway.look_up(scope, SelectorKind.RESPONSE, response_id))
    if found.owner.native:
        path = f"/responses/{quote(response_id, safe='')}/input_items"
        return passed_on(await ask(gateway, request, owner_of(gateway, found.owner), path))
    page = read_page(request)
    selector = Selector(scope=scope, kind=SelectorKind.RESPONSE, id=response_id)
    answer, entry = await gateway.state().reader.entry(selector)
    living_response(answer)
    return json_answer(page_of([] if entry is None else entry.input, page))


def living_response(answer: Answer) -> Found:
    """Return the response that a path names. Raises ``Refusal`` 404 for one that does not live, saying why."""
    if isinstance(answer, Found):
        return answer
    reason = answer.reason if isinstance(answer, Gone) else "unknown"
    raise Refusal(
        404,
        f"The response cannot be read: it is {reason}.",
        code="response_not_found",
        param="response_id",
        reason=reason,
    )
