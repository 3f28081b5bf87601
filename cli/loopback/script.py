"""Directives: what the last text that was heard tells the loopback to do.

A directive may stand anywhere in a user's text or in a tool's output; only those of the last such text count, and the
rest of the text is what is heard. Text in brackets ends at the matching bracket.

| directive | effect |
| --- | --- |
| ``!tool(name, {"a": 1}, call_7)`` | one function call, several are parallel calls in that order; arguments are sent as
  written, default ``{}``; the call ID may be left out |
| ``!reasoning(text)`` | reasoning before the answer |
| ``!between`` | reasoning before the last call as well |
| ``!refuse(text)`` | the model refuses |
| ``!say(text)`` | exactly this text, before the calls if there are any |
| ``!long(n)`` | a text of n characters |
| ``!json`` | JSON as the request's format asks: an instance of its schema, or an object with what was heard |
| ``!length`` | half of the text, then the end by length |
| ``!filter`` | half of the text, then the end by the content filter |
| ``!half`` | the last call is cut half-way through its arguments, then the end by length |
| ``!fail`` | Responses: status ``failed``, after the deltas; chat: HTTP 500, or an error in the stream |
| ``!status(n)`` | this HTTP status, with an error body |
| ``!delay(ms)`` | before the first byte; a background response stays queued that long |
| ``!pause(ms)`` | between deltas |
| ``!hang`` | no answer until the client leaves; a background response stays queued until it is cancelled |
| ``!cut(n)`` | the connection is closed after n deltas; a buffered answer: before its first byte |
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from enum import StrEnum

from ledger.refusal import Refusal


class Finish(StrEnum):
    """How an answer ends, in the words of chat completions."""

    STOP = "stop"
    LENGTH = "length"
    FILTER = "content_filter"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """A function call to answer with."""

    name: str
    arguments: str
    call_id: str | None
    """None: the next one of the instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The directives of one text."""

    calls: tuple[ScriptedCall, ...] = ()
    reasoning: str | None = None
    is_split: bool = False
    """Reasoning also before the last call."""
    refusal: str | None = None
    say: str | None = None
    long: int | None = None
    is_json: bool = False
    finish: Finish = Finish.STOP
    is_half: bool = False
    """The last call is cut half-way."""
    status: int | None = None
    delay_ms: int = 0
    pause_ms: int = 0
    hangs: bool = False
    cut: int | None = None
    """Deltas after which the connection is closed."""


NO_SCRIPT = Script()
STATUS_MIN, STATUS_MAX = 400, 599

_directive = re.compile(
    r"!(tool|reasoning|refuse|say|long|status|delay|pause|cut)(?=\()|!(between|json|length|filter|half|fail|hang)\b"
)
_call_name = re.compile(r"\(\s*([\w.-]+)\s*")
_call_id = re.compile(r"\s*,\s*([\w.-]+)\s*")
_closing = re.compile(r"\s*\)")
_decoder = json.JSONDecoder()


def read_script(text: str) -> tuple[Script, str]:
    """Return the directives of a text, and the text without them. Raises ``Refusal`` for a malformed one."""
    if "!" not in text:
        return NO_SCRIPT, text
    script, rest, end = NO_SCRIPT, [], 0
    while (found := _directive.search(text, end)) is not None:
        rest.append(text[end : found.start()])
        word, start = found.group(1) or found.group(2), found.end()
        if word == "tool":
            call, end = _read_call(text, start)
            script = replace(script, calls=(*script.calls, call))
        elif found.group(1) is None:
            script, end = _with_flag(script, word), start
        else:
            argument, end = _read_argument(text, start, word)
            script = _with_argument(script, word, argument)
    if not rest:
        return NO_SCRIPT, text
    rest.append(text[end:])
    return script, " ".join(piece.strip() for piece in rest if piece.strip())


def _with_flag(script: Script, word: str) -> Script:
    match word:
        case "between":
            return replace(script, is_split=True)
        case "json":
            return replace(script, is_json=True)
        case "length":
            return replace(script, finish=Finish.LENGTH)
        case "filter":
            return replace(script, finish=Finish.FILTER)
        case "half":
            return replace(script, is_half=True, finish=Finish.LENGTH)
        case "fail":
            return replace(script, finish=Finish.FAILED)
        case _:
            return replace(script, hangs=True)


def _with_argument(script: Script, word: str, argument: str) -> Script:
    match word:
        case "reasoning":
            return replace(script, reasoning=argument)
        case "refuse":
            return replace(script, refusal=argument)
        case "say":
            return replace(script, say=argument)
    if not argument.isdecimal():
        raise malformed(word, "takes a number")
    number = int(argument)
    match word:
        case "long":
            return replace(script, long=number)
        case "delay":
            return replace(script, delay_ms=number)
        case "pause":
            return replace(script, pause_ms=number)
        case "cut":
            return replace(script, cut=number)
        case _:
            if not STATUS_MIN <= number <= STATUS_MAX:
                raise malformed(word, f"takes {STATUS_MIN} to {STATUS_MAX}")
            return replace(script, status=number)


def _read_argument(text: str, start: int, word: str) -> tuple[str, int]:
    """Return what stands between the bracket at ``start`` and its match, and where the text goes on."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return text[start + 1 : index], index + 1
    raise malformed(word, "has no closing bracket")


def _read_call(text: str, start: int) -> tuple[ScriptedCall, int]:
    name = _call_name.match(text, start)
    if name is None:
        raise malformed("tool", "needs a name")
    arguments, end = "{}", name.end()
    brace = text[end:].lstrip(", ")
    if brace.startswith("{"):
        begin = len(text) - len(brace)
        try:
            _, end = _decoder.raw_decode(text, begin)
        except ValueError:
            raise malformed("tool", "has arguments that are not JSON") from None
        arguments = text[begin:end]
    call_id = _call_id.match(text, end)
    end = end if call_id is None else call_id.end()
    closing = _closing.match(text, end)
    if closing is None:
        raise malformed("tool", "has no closing bracket")
    given = None if call_id is None else call_id.group(1)
    return ScriptedCall(name=name.group(1), arguments=arguments, call_id=given), closing.end()


def malformed(word: str, reason: str) -> Refusal:
    """Return the answer to a directive that cannot be read: a mistake in a test must not pass for an answer."""
    return Refusal(400, f"The directive !{word} of the loopback upstream {reason}.", code="invalid_directive")
