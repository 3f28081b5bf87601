"""The messages of a chat request, as strictly as providers take them: calls and tool messages must match."""

from __future__ import annotations

from typing import Any

from ledger.refusal import Refusal

PARTS = {
    "system": ("text",),
    "developer": ("text",),
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
    "tool": ("text",),
}
"""Types of content parts that a role may send."""


def check_messages(messages: Any) -> None:
    """Refuse messages that are malformed, or that do not fit together."""
    if not isinstance(messages, list):
        raise invalid("messages", "expected a list")
    expected: dict[str, None] = {}
    for index, message in enumerate(messages):
        param = f"messages.[{index}]"
        if not isinstance(message, dict) or message.get("role") not in PARTS:
            raise invalid(f"{param}.role", f"expected one of {', '.join(PARTS)}")
        if message["role"] == "tool":
            _check_tool(message, expected, param)
            continue
        _expect_none(expected, param)
        _check_content(message, param)
        if message["role"] == "assistant":
            expected = _calls(message, param)
    _expect_none(expected, f"messages.[{len(messages)}]")


def invalid(param: str, reason: str) -> Refusal:
    """Return the answer to a message that the API does not allow."""
    return Refusal(400, f"Invalid parameter '{param}': {reason}.", param=param)


def _check_tool(message: dict[str, Any], expected: dict[str, None], param: str) -> None:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str):
        raise invalid(f"{param}.tool_call_id", "is missing")
    if call_id not in expected:
        reason = "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
        raise invalid(f"{param}.role", reason)
    del expected[call_id]
    _check_content(message, param)


def _expect_none(expected: dict[str, None], param: str) -> None:
    if expected:
        text = (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(expected)}"
        )
        raise Refusal(400, text, param=f"{param}.role")


def _check_content(message: dict[str, Any], param: str) -> None:
    role, content = message["role"], message.get("content")
    if content is None and role == "assistant" and (message.get("tool_calls") or message.get("refusal")):
        return
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        raise invalid(f"{param}.content", "expected a text or a list of parts")
    for number, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in PARTS[role]:
            raise invalid(f"{param}.content.[{number}].type", f"expected one of {', '.join(PARTS[role])}")


def _calls(message: dict[str, Any], param: str) -> dict[str, None]:
    """Return the IDs of the calls of an assistant's message, in order."""
    calls = message.get("tool_calls")
    if calls is None:
        return {}
    if not isinstance(calls, list) or not calls:
        raise invalid(f"{param}.tool_calls", "expected a list of at least one call")
    ids: dict[str, None] = {}
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type") != "function" or not isinstance(call.get("id"), str):
            raise invalid(f"{param}.tool_calls.[{number}]", "expected id, type and function")
        if not isinstance(function.get("name"), str) or not isinstance(function.get("arguments"), str):
            raise invalid(f"{param}.tool_calls.[{number}].function", "expected name and arguments")
        if call["id"] in ids:
            raise invalid(f"{param}.tool_calls.[{number}].id", "is there twice")
        ids[call["id"]] = None
    return ids
