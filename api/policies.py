"""Routes of the policy, which is the whole ledger's: read it, change some fields, or replace it."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Role
from api.requests import read_json
from api.service import Service, answer
from ledger.bodies import PolicyAnswer, PolicyChanges
from ledger.formatting import policy_from
from ledger.policy import Policy
from ledger.turn import Partition

_changes = msgspec.json.Decoder(PolicyChanges)


async def show(service: Service, request: Request) -> Response:
    """Answer the policy and its generation, as partition 0 has them."""
    service.caller(request, *Role)
    return _policy_answer(service, service.ledger.replica.rows(Partition(0)).meta.generation)


async def change(service: Service, request: Request) -> Response:
    """Change the fields given; the others stay."""
    return await _set(service, request, service.ledger.policy())


async def replace(service: Service, request: Request) -> Response:
    """Replace the policy; a field that is not given gets its default."""
    return await _set(service, request, Policy())


async def _set(service: Service, request: Request, current: Policy) -> Response:
    service.caller(request, Role.ADMIN)
    service.ledger.formatter.require_every_partition("a change of the policy")
    body = await read_json(request, _changes)
    changes: dict[str, Any] = {
        name: value for name, value in msgspec.structs.asdict(body).items() if value is not msgspec.UNSET
    }
    generation = await service.ledger.set_policy(policy_from(current, changes))
    return _policy_answer(service, generation)


def _policy_answer(service: Service, generation: int) -> Response:
    return answer(PolicyAnswer(generation=generation, policy=msgspec.structs.asdict(service.ledger.policy())))
