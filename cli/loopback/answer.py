"""The answer: what the loopback says after it has heard a context. A pure function of the context and its script.

By default the text is ``<name> heard: alpha | tool(call_7)=42 | beta``: the user's texts and the tools' outputs in the
order of the context, without directives and without empty texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.loopback.script import NO_SCRIPT, Finish, Script, ScriptedCall, read_script

ARGUMENTS_DELTA = 8
"""Characters of arguments in one delta: short, so that a call can be cut in the middle."""
FILLER = "loopback "
"""Words of a long text."""
HALF_CALL = ScriptedCall(name="half", arguments='{"half": "written"}', call_id=None)
"""The call that is cut when a script says so and names none."""
REASONING = "thinking"
"""The reasoning of a script that splits it and gives no text."""

_words = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """What the model thought."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What the model said."""

    text: str
    is_refusal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function that the model called."""

    name: str
    arguments: str
    call_id: str
    is_half: bool = False


Part = Reasoning | Message | Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The parts of an answer in order, and how it ended."""

    parts: tuple[Part, ...]
    finish: Finish


@dataclass(slots=True)
class Heard:
    """The texts of a context, collected in its order; the last one's directives are the script."""

    texts: list[str]
    script: Script = NO_SCRIPT

    @classmethod
    def nothing(cls) -> Heard:
        """Return a context of no texts."""
        return cls([])

    def user(self, text: str) -> None:
        """Hear a user's text. Raises ``Refusal`` for a malformed directive."""
        self.script, rest = read_script(text)
        if rest:
            self.texts.append(rest)

    def tool(self, call_id: str, output: str) -> None:
        """Hear a tool's output. Raises ``Refusal`` for a malformed directive."""
        self.script, rest = read_script(output)
        self.texts.append(f"tool({call_id})={rest}")


def answer(name: str, heard: Heard, new_call_id: Callable[[], str], schema: Mapping[str, Any] | None = None) -> Answer:
    """Return the answer of the instance ``name``. ``schema``: of the JSON that the request's format asks for."""
    script = heard.script
    thought = () if script.reasoning is None else (Reasoning(text=script.reasoning),)
    if script.refusal is not None:
        return Answer(parts=(*thought, Message(text=script.refusal, is_refusal=True)), finish=script.finish)
    calls = script.calls or ((HALF_CALL,) if script.is_half else ())
    if not calls:
        text = _text(name, heard, schema)
        if script.finish in (Finish.LENGTH, Finish.FILTER):
            words = deltas(text)
            text = "".join(words[: (len(words) + 1) // 2])
        return Answer(parts=(*thought, Message(text=text)), finish=script.finish)
    said = () if script.say is None else (Message(text=script.say),)
    made: list[Part] = [_call(call, new_call_id) for call in calls]
    if script.is_half:
        made[-1] = _halved(made[-1])
    if script.is_split:
        again = Reasoning(text=script.reasoning or REASONING)
        thought = thought or (again,)
        made.insert(len(made) - 1, again)
    return Answer(parts=(*thought, *said, *made), finish=script.finish)


def deltas(text: str) -> list[str]:
    """Return a text as a stream gives it: word by word."""
    return _words.findall(text)


def argument_deltas(arguments: str) -> list[str]:
    """Return arguments as a stream gives them."""
    return [arguments[start : start + ARGUMENTS_DELTA] for start in range(0, len(arguments), ARGUMENTS_DELTA)]


def _text(name: str, heard: Heard, schema: Mapping[str, Any] | None) -> str:
    script = heard.script
    if script.say is not None:
        return script.say
    if script.long is not None:
        return (FILLER * (script.long // len(FILLER) + 1))[: script.long]
    if script.is_json:
        value = {"heard": heard.texts} if schema is None else instance(schema, " | ".join(heard.texts))
        return json.dumps(value, ensure_ascii=False)
    return f"{name} heard: {' | '.join(heard.texts)}"


def instance(schema: Mapping[str, Any], text: str) -> Any:
    """Return the simplest value that a schema of structured output allows; its strings are ``text``."""
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return instance(schema["anyOf"][0], text)
    kind = schema.get("type", "object")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            return {field: instance(inner, text) for field, inner in schema.get("properties", {}).items()}
        case "array":
            return [instance(schema.get("items", {"type": "string"}), text)]
        case "string":
            return text
        case "integer" | "number":
            return 0
        case "boolean":
            return True
        case _:
            return None


def texts_of(content: str | Sequence[Any] | None) -> str:
    """Return the text of a message's content; parts are joined by a space, what is not text is left out."""
    if content is None or isinstance(content, str):
        return content or ""
    return " ".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))


def _call(scripted: ScriptedCall, new_call_id: Callable[[], str]) -> Call:
    return Call(name=scripted.name, arguments=scripted.arguments, call_id=scripted.call_id or new_call_id())


def _halved(part: Part) -> Call:
    assert isinstance(part, Call), "only calls were made"
    half = part.arguments[: (len(part.arguments) + 1) // 2]
    return Call(name=part.name, arguments=half, call_id=part.call_id, is_half=True)
