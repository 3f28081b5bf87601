"""What an upstream can speak."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """An upstream answers 404 to what it does not speak."""

    BOTH = "both"
    RESPONSES = "responses"
    CHAT_COMPLETIONS = "chat_completions"
