"""What the items of the API look like, as far as the gateway reads them: shapes that an input is checked against.

A field that is not named here is let pass, so that the API may grow. ``None`` stands for a field that was left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

CALL_ID_MAX = 512
"""Characters of a tool call's ID: it is repeated in refusals, and real ones have fewer than 80."""

Status = Literal["in_progress", "completed", "incomplete"]
Name = Annotated[str, msgspec.Meta(min_length=1)]
CallId = Annotated[str, msgspec.Meta(min_length=1, max_length=CALL_ID_MAX)]


class _Breakpoint(msgspec.Struct):
    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class InputText(msgspec.Struct):
    text: str
    prompt_cache_breakpoint: _Breakpoint | None = None


class InputImage(msgspec.Struct):
    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["low", "high", "auto", "original"] | None = None
    prompt_cache_breakpoint: _Breakpoint | None = None


class InputFile(msgspec.Struct):
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None
    detail: Literal["low", "high", "auto"] | None = None
    prompt_cache_breakpoint: _Breakpoint | None = None


class _FileCitation(msgspec.Struct, tag_field="type", tag="file_citation"):
    file_id: str
    filename: str
    index: int


class _UrlCitation(msgspec.Struct, tag_field="type", tag="url_citation"):
    end_index: int
    start_index: int
    title: str
    url: str


class _ContainerFileCitation(msgspec.Struct, tag_field="type", tag="container_file_citation"):
    container_id: str
    end_index: int
    file_id: str
    filename: str
    start_index: int


class _FilePath(msgspec.Struct, tag_field="type", tag="file_path"):
    file_id: str
    index: int


class _TopLogprob(msgspec.Struct):
    token: str
    bytes: list[int]
    logprob: float


class _Logprob(_TopLogprob):
    top_logprobs: list[_TopLogprob]


class _OutputText(msgspec.Struct):
    text: str
    annotations: list[_FileCitation | _UrlCitation | _ContainerFileCitation | _FilePath] | None = None
    logprobs: list[_Logprob] | None = None


class _OutputRefusal(msgspec.Struct):
    refusal: str


class Message(msgspec.Struct):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Any]
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class _DirectCaller(msgspec.Struct, tag_field="type", tag="direct"):
    pass


class _ProgramCaller(msgspec.Struct, tag_field="type", tag="program"):
    caller_id: str


class _ToolItem(msgspec.Struct, kw_only=True):
    call_id: CallId
    status: Status | None = None
    namespace: str | None = None
    caller: _DirectCaller | _ProgramCaller | None = None
    created_by: str | None = None


class _FunctionCall(_ToolItem, kw_only=True):
    name: Name
    arguments: str


class _CustomToolCall(_ToolItem, kw_only=True):
    name: Name
    input: str


class _ToolOutput(_ToolItem, kw_only=True):
    output: str | list[Any]
    name: str | None = None


class _Text(msgspec.Struct):
    text: str


class _SummaryText(_Text, tag_field="type", tag="summary_text"):
    pass


class _ReasoningText(_Text, tag_field="type", tag="reasoning_text"):
    pass


class Reasoning(msgspec.Struct):
    summary: list[_SummaryText]
    content: list[_ReasoningText] | None = None
    encrypted_content: str | None = None
    status: Status | None = None


INPUT_PARTS: dict[str, type[msgspec.Struct]] = {
    "input_text": InputText,
    "input_image": InputImage,
    "input_file": InputFile,
}
OUTPUT_PARTS: dict[str, type[msgspec.Struct]] = {"output_text": _OutputText, "refusal": _OutputRefusal}
CALLS: dict[str, tuple[str, type[msgspec.Struct], tuple[str, ...]]] = {
    "function_call": ("fc", _FunctionCall, ("call_id", "name", "arguments")),
    "function_call_output": ("fco", _ToolOutput, ("call_id",)),
    "custom_tool_call": ("ctc", _CustomToolCall, ("call_id", "name", "input")),
    "custom_tool_call_output": ("ctco", _ToolOutput, ("call_id",)),
}
"""Prefix of a new ID, shape, and the fields that come first, by type."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An item of a tool that a provider runs, or of a client's own kind: nothing here reads it."""

    prefix: str
    required: tuple[str, ...]
    """Fields without which it is no resource of the API, beside ID and type."""
    completed: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the resource has and the input may leave out; an object's own are completed too."""


_STATUS = {"status": "completed"}
_SEARCH = _STATUS | {"execution": "server", "call_id": None}
_LIMITS = {"timeout_ms": None, "max_output_length": None}
KEPT = {
    "additional_tools": Kept("at", ("role", "tools")),
    "apply_patch_call": Kept("apc", ("call_id", "operation", "status")),
    "apply_patch_call_output": Kept("apco", ("call_id", "status")),
    "code_interpreter_call": Kept("ci", ("container_id", "status"), {"code": None, "outputs": None}),
    "compaction": Kept("cmp", ("encrypted_content",)),
    "computer_call": Kept("cu", ("call_id", "pending_safety_checks", "status")),
    "computer_call_output": Kept("cuo", ("call_id", "output"), _STATUS),
    "configuration_update": Kept("cfg", ()),
    "file_search_call": Kept("fs", ("queries", "status")),
    "image_generation_call": Kept("ig", ("status",), {"result": None}),
    "local_shell_call": Kept("lsh", ("action", "call_id", "status")),
    "local_shell_call_output": Kept("lsho", ("output",)),
    "mcp_approval_request": Kept("mcpr", ("arguments", "name", "server_label")),
    "mcp_approval_response": Kept("mcpa", ("approval_request_id", "approve")),
    "mcp_call": Kept("mcp", ("arguments", "name", "server_label")),
    "mcp_list_tools": Kept("mcpl", ("server_label", "tools")),
    "program": Kept("prog", ("call_id", "code", "fingerprint")),
    "program_output": Kept("progo", ("call_id", "result", "status")),
    "shell_call": Kept("sh", ("action", "call_id"), _STATUS | {"action": _LIMITS, "environment": None}),
    "shell_call_output": Kept("sho", ("call_id", "output"), _STATUS | {"max_output_length": None}),
    "tool_search_call": Kept("ts", ("arguments",), _SEARCH),
    "tool_search_output": Kept("tso", ("tools",), _SEARCH),
    "web_search_call": Kept("ws", ("action", "status")),
}
