"""The models that clients may name: the routes of the configuration."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from api.gateway.service import Gateway, json_answer


async def list_models(gateway: Gateway, request: Request) -> Response:
    """List the models that a request may name."""
    gateway.scope(request)
    return json_answer({"object": "list", "data": [_model(name) for name in sorted(gateway.config.routes)]})


async def retrieve_model(gateway: Gateway, request: Request) -> Response:
    """Return one model."""
    gateway.scope(request)
    return json_answer(_model(gateway.routing.route(request.path_params["model"]).model))


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "turnledger"}
