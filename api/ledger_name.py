"""Whose answer it is: a request that one replica sends to another names the ledger that it is about, and so does the
answer.

Both applications answer through ``of_ledger``, and ``api.forwarding`` believes no other answer. Rules kept here:

- the name is on what a route of ours has answered, also on a refusal and on a defect; "no such route" has none, since a
  process of the same ledger that serves something else says that too;
- a request about another ledger is refused before anything of it is read.

It names the ledger and proves nothing: whom to trust is what the map of holders says.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec

from starlette.requests import Request
from starlette.responses import Response

from api.errors import NOT_SERVED, error_answer
from ledger.bodies import ErrorBody
from ledger.ledger import Ledger

FORWARDED = "turnledger-forwarded"
"""Header of a request that another replica has sent on."""
ASKED_LEDGER = "turnledger-asked-ledger"
"""Header of such a request: the ID of the ledger that it is about, in hexadecimal."""
LEDGER = "turnledger-ledger"
"""Header of its answer: the ID of the ledger that gave it. Not the same name, since what only repeats the headers of a
request is no ledger."""
OTHER_LEDGER = "other_ledger"

_NAME = re.compile(r"[0-9a-f]{32}")
_Rest = ParamSpec("_Rest")


def of_ledger(
    ledger: Ledger | None, answering: Callable[Concatenate[Request, _Rest], Awaitable[Response]]
) -> Callable[Concatenate[Request, _Rest], Coroutine[Any, Any, Response]]:
    """Return ``answering`` whose answers to forwarded requests name a started ledger; None: there is none to name."""

    async def answered(request: Request, /, *rest: _Rest.args, **named: _Rest.kwargs) -> Response:
        if ledger is None or FORWARDED not in request.headers:
            return await answering(request, *rest, **named)
        name = ledger.ledger_id.hex()
        is_ours = request.headers.get(ASKED_LEDGER, name) == name
        response = await answering(request, *rest, **named) if is_ours else _other_ledger()
        response.headers[LEDGER] = name
        return response

    return answered


def ledger_named(value: str | None) -> str | None:
    """Return the ledger that a header's value names, None when it names none."""
    return value if value is not None and _NAME.fullmatch(value) else None


def _other_ledger() -> Response:
    message = "another replica sent the request here, which is about another ledger; correct --holders there"
    response = error_answer(421, ErrorBody(code=OTHER_LEDGER, message=message))
    response.headers[NOT_SERVED] = OTHER_LEDGER
    return response
