"""The response object of a portable turn: what the request asked for, echoed, and what came of it.

A native target's own object is passed on instead; nothing here concerns it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from api.gateway.request import CreateRequest
from ledger.errors import InvalidInput
from ledger.turn import ID_BYTES_MAX, Status, checked_text

STATUSES = {
    "completed": Status.COMPLETED,
    "incomplete": Status.INCOMPLETE,
    "failed": Status.FAILED,
    "cancelled": Status.CANCELLED,
}
"""The API's words for how a response ended."""

ECHOED = (
    "max_output_tokens",
    "max_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "top_logprobs",
    "user",
)
"""Parameters that the object repeats only where they were given; null is not theirs."""


def response_object(
    request: CreateRequest,
    response_id: str,
    *,
    created_at: int,
    model: str,
    status: str,
    output: Sequence[Any] = (),
    usage: Mapping[str, Any] | None = None,
    error: Mapping[str, Any] | None = None,
    incomplete_details: Mapping[str, Any] | None = None,
    completed_at: int | None = None,
    service_tier: str | None = None,
    stored: bool = True,
) -> dict[str, Any]:
    """Return the object; times are whole seconds since 1970, ``stored`` is whether it can be continued."""
    body, selectors = request.body, request.selectors
    answer: dict[str, Any] = {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": status,
        "background": request.background,
        "completed_at": completed_at if status == "completed" else None,
        "error": None if error is None else dict(error),
        "incomplete_details": None if incomplete_details is None else dict(incomplete_details),
        "instructions": body.get("instructions"),
        "metadata": request.metadata,
        "model": model,
        "output": list(output),
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": selectors.previous_response_id,
        "conversation": None if selectors.conversation_id is None else {"id": selectors.conversation_id},
        "reasoning": _reasoning(body.get("reasoning")),
        "store": stored,
        "temperature": body["temperature"] if body.get("temperature") is not None else 1.0,
        "text": _text(body.get("text")),
        "tool_choice": body["tool_choice"] if body.get("tool_choice") is not None else "auto",
        "tools": [_tool(tool) for tool in body.get("tools") or ()],
        "top_p": body["top_p"] if body.get("top_p") is not None else 1.0,
        "truncation": body.get("truncation") or "disabled",
    }
    answer.update({name: body[name] for name in ECHOED if body.get(name) is not None})
    if usage is not None:
        answer["usage"] = dict(usage)
    if service_tier is not None:
        answer["service_tier"] = service_tier
    return answer


def failed(response: Mapping[str, Any], message: str, code: str = "server_error") -> dict[str, Any]:
    """Return a response object as one that failed."""
    return {**response, "status": "failed", "completed_at": None, "error": {"code": code, "message": message}}


def item_ids_of(items: Any) -> list[str]:
    """Return the IDs by which items can be named later, each once; of what is no list of items, none."""
    given = items if isinstance(items, list) else []
    ids = [item.get("id") for item in given if isinstance(item, dict)]
    return list(dict.fromkeys(item_id for item_id in ids if is_item_id(item_id)))


def is_item_id(value: Any) -> TypeGuard[str]:
    """Return whether the ledger can keep ``value`` as an item's ID."""
    try:
        checked_text("id", value, ID_BYTES_MAX)
    except InvalidInput:
        return False
    return True


def _reasoning(given: Any) -> dict[str, Any]:
    known = given if isinstance(given, dict) else {}
    return {"effort": known.get("effort"), "summary": known.get("summary")}


def _text(given: Any) -> dict[str, Any]:
    known = dict(given) if isinstance(given, dict) else {}
    known.setdefault("format", {"type": "text"})
    return {name: value for name, value in known.items() if value is not None}


def _tool(tool: Any) -> Any:
    """Return a tool as the API shows it: what may be left out of a request is there."""
    if isinstance(tool, dict) and tool.get("type") == "function":
        return {"description": None, "parameters": None, "strict": None, **tool}
    return tool
