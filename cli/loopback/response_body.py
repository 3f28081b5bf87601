"""The body of a response, and its items, as the Responses API spells them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from cli.loopback.answer import Answer, Call, Message, Part, Reasoning
from cli.loopback.instance import Instance
from cli.loopback.items import Item, output_part
from cli.loopback.script import Finish
from cli.loopback.usage import Prompt, tokens

DEFAULTS: Mapping[str, Any] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
}
"""What a response says about what its request left out."""
ECHOED = (*DEFAULTS, "user")
"""What a response repeats of its request."""
INCOMPLETE = {Finish.LENGTH: "max_output_tokens", Finish.FILTER: "content_filter"}
ENCRYPTED = "reasoning.encrypted_content"
FAILURE = {"code": "server_error", "message": "The loopback upstream was told to fail."}


def begun(request: Mapping[str, Any], response_id: str, created_at: int, conversation_id: str | None) -> dict[str, Any]:
    """Return the body of a response that has not answered yet."""
    asked = {name: request[name] for name in ECHOED if request.get(name) is not None}
    body = {"id": response_id, "object": "response", "created_at": created_at, "status": "in_progress"}
    body |= {"completed_at": None, "error": None, "incomplete_details": None, "model": request["model"], "output": []}
    body |= {**DEFAULTS, **asked}
    if "tools" in asked:
        body["tools"] = [_tool(tool) for tool in asked["tools"]]
    if "text" in asked:
        body["text"] = {"format": {"type": "text"}, **asked["text"]}
    if "service_tier" in asked:
        body["service_tier"] = "default"
    if conversation_id is not None:
        body["conversation"] = {"id": conversation_id}
    return body


def ended(
    body: Mapping[str, Any], request: Mapping[str, Any], answer: Answer, prompt: Prompt, instance: Instance
) -> dict[str, Any]:
    """Return the body with its answer."""
    now = instance.now()
    output = [_output_item(part, request, answer.finish, instance) for part in answer.parts]
    final = {**body, "output": output, "usage": _usage(answer.parts, prompt)}
    match answer.finish:
        case Finish.STOP:
            return final | {"status": "completed", "completed_at": now}
        case Finish.FAILED:
            return final | {"status": "failed", "error": FAILURE}
        case _:
            return final | {"status": "incomplete", "incomplete_details": {"reason": INCOMPLETE[answer.finish]}}


def _output_item(part: Part, request: Mapping[str, Any], finish: Finish, instance: Instance) -> Item:
    match part:
        case Reasoning():
            wants_summary = bool((request.get("reasoning") or {}).get("summary"))
            summary = [{"type": "summary_text", "text": part.text}] if wants_summary else []
            item: Item = {"id": instance.new_id("rs"), "type": "reasoning", "summary": summary}
            if ENCRYPTED in (request.get("include") or ()):
                digest = sha256(part.text.encode()).hexdigest()[:16]
                item["encrypted_content"] = f"{instance.name}:{digest}"
            return item
        case Message():
            status = "completed" if finish is Finish.STOP else "incomplete"
            content = {"type": "refusal", "refusal": part.text} if part.is_refusal else output_part(part.text)
            item = {"id": instance.new_id("msg"), "type": "message", "status": status, "role": "assistant"}
            return item | {"content": [content]}
        case Call():
            status = "incomplete" if part.is_half else "completed"
            item = {"id": instance.new_id("fc"), "type": "function_call", "status": status}
            return item | {"arguments": part.arguments, "call_id": part.call_id, "name": part.name}


def _usage(parts: Sequence[Part], prompt: Prompt) -> dict[str, Any]:
    reasoning, spoken = output_tokens(parts)
    return {
        "input_tokens": prompt.tokens,
        "input_tokens_details": {"cached_tokens": prompt.cached, "cache_write_tokens": 0},
        "output_tokens": reasoning + spoken,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt.tokens + reasoning + spoken,
    }


def output_tokens(parts: Sequence[Part]) -> tuple[int, int]:
    """Return the tokens of the reasoning and of the rest."""
    reasoning = sum(tokens(len(part.text)) for part in parts if isinstance(part, Reasoning))
    texts = sum(tokens(len(part.text)) for part in parts if isinstance(part, Message))
    return reasoning, texts + sum(tokens(len(part.arguments)) for part in parts if isinstance(part, Call))


def _tool(tool: Item) -> Item:
    return {"description": None, "strict": True, **tool} if tool.get("type") == "function" else tool
