"""Examples of requests and answers, for the gateway's description."""

from __future__ import annotations

from typing import Any

import msgspec

Example = dict[str, Any]

MESSAGE: Example = {
    "id": "msg_68af4031",
    "type": "message",
    "role": "user",
    "status": "completed",
    "content": [{"type": "input_text", "text": "Where is my parcel?"}],
}
ANSWER: Example = {
    "id": "msg_68af4032",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "In Oslo.", "annotations": [], "logprobs": []}],
}
CREATE: Example = {
    "model": "auto",
    "input": "Where is my parcel?",
    "conversation": "conv_68af4000",
    "metadata": {"ticket": "7"},
}
RESPONSE: Example = {
    "id": "resp_68af4030",
    "object": "response",
    "created_at": 1756315696,
    "status": "completed",
    "background": False,
    "completed_at": 1756315697,
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {"ticket": "7"},
    "model": "auto",
    "output": [ANSWER],
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "conversation": {"id": "conv_68af4000"},
    "store": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "usage": {
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 16,
    },
}
EVENT: Example = {"type": "response.completed", "sequence_number": 9, "response": RESPONSE}
FRAME: Example = {"event": EVENT["type"], "data": msgspec.json.encode(EVENT).decode()}
CANCELLED: Example = {**RESPONSE, "status": "cancelled", "background": True, "completed_at": None, "output": []}
DELETED_RESPONSE: Example = {"id": "resp_68af4030", "object": "response", "deleted": True}

CREATE_CONVERSATION: Example = {
    "metadata": {"ticket": "7"},
    "items": [{"role": "user", "content": "Where is my parcel?"}],
}
UPDATE_CONVERSATION: Example = {"metadata": {"ticket": "8"}}
CREATE_ITEMS: Example = {"items": [{"role": "user", "content": "Where is my parcel?"}]}
CONVERSATION: Example = {
    "id": "conv_68af4000",
    "object": "conversation",
    "created_at": 1756315690,
    "metadata": {"ticket": "7"},
}
DELETED_CONVERSATION: Example = {"id": "conv_68af4000", "object": "conversation.deleted", "deleted": True}
ITEM_LIST: Example = {
    "object": "list",
    "data": [MESSAGE],
    "first_id": MESSAGE["id"],
    "last_id": MESSAGE["id"],
    "has_more": False,
}

MODEL: Example = {"id": "auto", "object": "model", "created": 0, "owned_by": "turnledger"}
MODEL_LIST: Example = {"object": "list", "data": [MODEL]}
