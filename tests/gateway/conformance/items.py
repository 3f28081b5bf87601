"""An item of every kind, with as little as the API lets a client send of it."""

from __future__ import annotations

from typing import Any

_ACTION = {"type": "search", "query": "q"}
_SHELL = {"commands": ["ls"]}
_EXEC = {"type": "exec", "command": ["ls"], "env": {}}
_SCREENSHOT = {"type": "computer_screenshot", "image_url": "https://example.org/a.png"}
_PATCH = {"type": "delete_file", "path": "a"}

ITEMS: dict[str, dict[str, Any]] = {
    "message": {"role": "user", "content": "alpha"},
    "message with parts": {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "alpha"},
            {"type": "input_image", "file_id": "file_1"},
            {"type": "input_file", "file_id": "file_1"},
        ],
    },
    "developer's message": {"role": "developer", "content": "alpha"},
    "assistant's message": {"role": "assistant", "content": "beta", "phase": "final_answer"},
    "output message": {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [
            {
                "type": "output_text",
                "text": "beta",
                "annotations": [
                    {
                        "type": "url_citation",
                        "url": "https://example.org",
                        "title": "t",
                        "start_index": 0,
                        "end_index": 1,
                    }
                ],
            },
            {"type": "refusal", "refusal": "no"},
        ],
    },
    "reasoning": {"type": "reasoning", "id": "rs_1", "summary": []},
    "reasoning with all": {
        "type": "reasoning",
        "id": "rs_2",
        "summary": [{"type": "summary_text", "text": "s"}],
        "content": [{"type": "reasoning_text", "text": "r"}],
        "encrypted_content": "e",
        "status": "completed",
    },
    "function_call": {"type": "function_call", "call_id": "c", "name": "a", "arguments": "{}"},
    "function_call_output": {"type": "function_call_output", "call_id": "c", "output": "x"},
    "function_call_output with parts": {
        "type": "function_call_output",
        "call_id": "c",
        "output": [
            {"type": "input_text", "text": "x"},
            {"type": "input_image", "image_url": "https://example.org/a.png"},
        ],
    },
    "custom_tool_call": {"type": "custom_tool_call", "call_id": "c", "name": "d", "input": "x"},
    "custom_tool_call_output": {"type": "custom_tool_call_output", "call_id": "c", "output": "x"},
    "file_search_call": {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["q"]},
    "computer_call": {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "c",
        "pending_safety_checks": [],
        "status": "completed",
        "action": {"type": "screenshot"},
    },
    "computer_call_output": {"type": "computer_call_output", "call_id": "c", "output": _SCREENSHOT},
    "web_search_call": {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": _ACTION},
    "tool_search_call": {"type": "tool_search_call", "arguments": {}},
    "tool_search_output": {"type": "tool_search_output", "tools": []},
    "additional_tools": {"type": "additional_tools", "role": "developer", "tools": []},
    "compaction": {"type": "compaction", "encrypted_content": "e"},
    "image_generation_call": {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": None},
    "code_interpreter_call": {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "status": "completed",
        "container_id": "cntr_1",
        "code": None,
        "outputs": None,
    },
    "local_shell_call": {
        "type": "local_shell_call",
        "id": "lsh_1",
        "call_id": "c",
        "action": _EXEC,
        "status": "completed",
    },
    "local_shell_call_output": {"type": "local_shell_call_output", "id": "lsho_1", "call_id": "c", "output": "x"},
    "shell_call": {"type": "shell_call", "call_id": "c", "action": _SHELL},
    "shell_call_output": {
        "type": "shell_call_output",
        "call_id": "c",
        "output": [{"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    },
    "apply_patch_call": {"type": "apply_patch_call", "call_id": "c", "status": "completed", "operation": _PATCH},
    "apply_patch_call_output": {"type": "apply_patch_call_output", "call_id": "c", "status": "completed"},
    "mcp_list_tools": {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
    "mcp_approval_request": {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "server_label": "s",
        "name": "a",
        "arguments": "{}",
    },
    "mcp_approval_response": {
        "type": "mcp_approval_response",
        "request_id": "mcpr_1",
        "approval_request_id": "mcpr_1",
        "approve": True,
    },
    "mcp_call": {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "a", "arguments": "{}"},
    "program": {"type": "program", "id": "prog_1", "call_id": "c", "code": "x", "fingerprint": "f"},
    "program_output": {"type": "program_output", "id": "progo_1", "call_id": "c", "result": "x", "status": "completed"},
}
"""By a name for each."""
