"""A Responses request and its canonical items as a chat completions request: pure, the same bytes on every replica.

Rules of the messages:

- ``instructions`` come first, as a system message; developer messages become system messages too, since few servers
  know the newer role;
- the tool calls of one answer are one assistant message, however its items were interleaved, and its tool messages
  follow in the order of the calls, whatever order the results came in: chat allows nothing else;
- reasoning is left out, encrypted or not: it belongs to the provider that made it;
- what is there never changes when a turn is added: the messages of a turn begin those of the next one, so that the
  target's prefix cache hits. One exception: where the input of a turn ends with an assistant message, or is empty, and
  tool calls answer it, that message becomes the content of theirs;
- what chat cannot say is refused, naming the place. Only hints are left out: of caching, of a file's detail, a phase,
  the namespace of a call.

Rules of the parameters: what the client gave is sent, no default and nothing of an earlier turn. What the gateway does
itself (``store``, ``metadata``, ``background``) and what bounds a provider's own tools is not sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from api.gateway.items import INPUT, OUTPUT_OF_CALL, checked, invalid_value, require_calls
from ledger.refusal import Refusal

UNSUPPORTED_ITEM, UNSUPPORTED_CONTENT = "unsupported_item", "unsupported_content"
UNSUPPORTED_TOOL, UNSUPPORTED_PARAMETER = "unsupported_tool", "unsupported_parameter"
"""Codes of what the API takes and a chat target cannot do."""
ADVICE = "Leave it out, or use a model that is served by a Responses target."

Message = dict[str, Any]

_UNSUPPORTED_PARAMETERS = ("prompt", "context_management", "moderation")
_SAME_PARAMETERS = ("temperature", "top_p", "service_tier", "user", "safety_identifier", "prompt_cache_key")
_LOGPROBS = "message.output_text.logprobs"


def chat_request(
    body: Mapping[str, Any], items: Sequence[Mapping[str, Any]], *, model: str, stream: bool, max_tokens_field: str
) -> dict[str, Any]:
    """Return the chat completions request of a Responses request ``body`` and its ``items``, history before input.

    ``model`` is the target's name of the model; ``max_tokens_field`` is what the target calls the bound of an answer.
    Raises ``Refusal`` for what is malformed or what chat cannot do, naming the place.
    """
    for name in _UNSUPPORTED_PARAMETERS:
        if body.get(name) is not None:
            raise _unsupported(UNSUPPORTED_PARAMETER, name, f"A chat completions target cannot honour '{name}'")
    asked = checked(body, _Asked, "")
    given = body.get(INPUT)
    input_count = len(given) if isinstance(given, list) else int(given is not None)
    messages = chat_messages(items, asked.instructions, first=max(len(items) - input_count, 0))
    if not messages:
        raise invalid_value(INPUT, "it is empty, and nothing comes before it")
    request: dict[str, Any] = {"model": model, "messages": messages}
    if stream:
        request |= {"stream": True, "stream_options": {"include_usage": True}}
    request |= _given(**{name: getattr(asked, name) for name in _SAME_PARAMETERS})
    request |= _given(**{max_tokens_field: asked.max_output_tokens})
    request |= _tool_parameters(asked)
    request |= _text_parameters(asked)
    return request


def chat_messages(
    items: Sequence[Mapping[str, Any]], instructions: str | None, *, first: int = 0
) -> list[dict[str, Any]]:
    """Return the chat messages of canonical items. Raises ``Refusal``, also where a call or its output is missing.

    ``first`` is the index of the request's own first item: a refusal names the place in the request from there on, and
    an earlier item by its ID.
    """
    require_calls(items)
    messages: list[Message] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    answer = _Answer()
    for index, item in enumerate(items):
        try:
            answer = _add(messages, answer, item)
        except _Inexpressible as error:
            raise error.refusal(item, index - first) from None
    answer.end(messages)
    return messages


@dataclass(slots=True)
class _Answer:
    """What the model said between two inputs, and the results of the calls that it made."""

    texts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    calls: dict[str, dict[str, Any]] = field(default_factory=dict)
    results: dict[str, str | list[dict[str, Any]]] = field(default_factory=dict)
    has_message: bool = False

    @property
    def takes_message(self) -> bool:
        """Whether an assistant message is part of it: the first one, and those among its calls."""
        return not self.results if self.calls else not self.has_message

    @property
    def takes_call(self) -> bool:
        """Whether a call is part of it: not when every call before has its result."""
        return not self.results or len(self.results) < len(self.calls)

    def end(self, messages: list[Message]) -> None:
        """Append its messages, if there are any."""
        if not self.has_message and not self.calls:
            return
        content: str | list[dict[str, Any]] | None = _texts_content(self.texts)
        if not self.texts and (self.calls or self.refusals):
            content = None
        message: Message = {"role": "assistant", "content": content}
        if self.refusals:
            message["refusal"] = "\n".join(self.refusals)
        if self.calls:
            message["tool_calls"] = list(self.calls.values())
        messages.append(message)
        messages.extend(
            {"role": "tool", "tool_call_id": call_id, "content": self.results[call_id]} for call_id in self.calls
        )


class _Inexpressible(Exception):
    """An item that chat cannot carry; where in the request it stands is not known yet."""

    def __init__(self, code: str, below: str, what: str) -> None:
        """``below`` is the place within the item."""
        super().__init__(what)
        self.code = code
        self.below = below
        self.what = what

    def refusal(self, item: Mapping[str, Any], index: int) -> Refusal:
        """Return the refusal; a negative ``index`` is an item of the history."""
        if index < 0:
            where = f"The item {item['id']!r} of the history ({self.below})"
            return _unsupported(self.code, INPUT, f"{where} cannot go to a chat completions target: {self.what}")
        param = f"{INPUT}[{index}].{self.below}"
        return _unsupported(self.code, param, f"'{param}' cannot go to a chat completions target: {self.what}")


def _add(messages: list[Message], answer: _Answer, item: Mapping[str, Any]) -> _Answer:
    """Add one item to the answer that is open, or end that and begin the next; return the open one."""
    kind = item["type"]
    if kind == "reasoning":
        return answer
    if kind in OUTPUT_OF_CALL:
        if not answer.takes_call:
            answer.end(messages)
            answer = _Answer()
        answer.calls[item["call_id"]] = _tool_call(item)
    elif kind in OUTPUT_OF_CALL.values():
        output = item["output"]
        answer.results[item["call_id"]] = output if isinstance(output, str) else _text_only(output, "output")
    elif kind != "message":
        raise _Inexpressible(UNSUPPORTED_ITEM, "type", f"chat has no item of type {kind!r}")
    elif item["role"] == "assistant":
        if not answer.takes_message:
            answer.end(messages)
            answer = _Answer()
        _add_output(answer, item["content"])
    else:
        answer.end(messages)
        answer = _Answer()
        messages.append(_input_message(item))
    return answer


def _add_output(answer: _Answer, parts: Sequence[Mapping[str, Any]]) -> None:
    answer.has_message = True
    for index, part in enumerate(parts):
        match part["type"]:
            case "output_text":
                answer.texts.append(part["text"])
            case "refusal":
                answer.refusals.append(part["refusal"])
            case kind:
                what = f"the assistant cannot say a part of type {kind!r}"
                raise _Inexpressible(UNSUPPORTED_CONTENT, f"content[{index}].type", what)


def _input_message(item: Mapping[str, Any]) -> Message:
    role, parts = item["role"], item["content"]
    if role == "user":
        if all(part["type"] == "input_text" for part in parts):
            return {"role": role, "content": _text_only(parts, "content")}
        return {"role": role, "content": [_part(part, f"content[{index}]") for index, part in enumerate(parts)]}
    if role in ("system", "developer"):
        return {"role": "system", "content": _text_only(parts, "content")}
    raise _Inexpressible(UNSUPPORTED_ITEM, "role", f"chat has no messages of role {role!r}")


def _text_only(parts: Sequence[Mapping[str, Any]], below: str) -> str | list[dict[str, Any]]:
    for index, part in enumerate(parts):
        if part["type"] != "input_text":
            what = f"only text can stand here, not {part['type']!r}"
            raise _Inexpressible(UNSUPPORTED_CONTENT, f"{below}[{index}].type", what)
    return _texts_content([part["text"] for part in parts])


def _texts_content(texts: Sequence[str]) -> str | list[dict[str, Any]]:
    """Return one text as a plain string, which every server takes, and several as the parts they were."""
    if len(texts) > 1:
        return [{"type": "text", "text": text} for text in texts]
    return "".join(texts)


def _part(part: Mapping[str, Any], below: str) -> dict[str, Any]:
    match part["type"]:
        case "input_text":
            return {"type": "text", "text": part["text"]}
        case "input_image":
            if part.get("file_id") is not None:
                what = "an image must be given by its URL or as a data URL in image_url"
                raise _Inexpressible(UNSUPPORTED_CONTENT, f"{below}.file_id", what)
            return {"type": "image_url", "image_url": _given(url=part["image_url"], detail=part.get("detail"))}
        case "input_file":
            if part.get("file_url") is not None:
                what = "a file must be given as file_data, or by the file_id it has at the target"
                raise _Inexpressible(UNSUPPORTED_CONTENT, f"{below}.file_url", what)
            names = ("file_data", "file_id", "filename")
            return {"type": "file", "file": _given(**{name: part.get(name) for name in names})}
        case kind:
            raise _Inexpressible(UNSUPPORTED_CONTENT, f"{below}.type", f"chat has no part of type {kind!r}")


def _tool_call(item: Mapping[str, Any]) -> dict[str, Any]:
    if item["type"] == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        return {"id": item["call_id"], "type": "function", "function": function}
    return {"id": item["call_id"], "type": "custom", "custom": {"name": item["name"], "input": item["input"]}}


class _PlainText(msgspec.Struct, tag_field="type", tag="text"):
    pass


class _JsonObject(msgspec.Struct, tag_field="type", tag="json_object"):
    pass


class _JsonSchema(msgspec.Struct, tag_field="type", tag="json_schema"):
    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class _TextOptions(msgspec.Struct):
    format: _PlainText | _JsonObject | _JsonSchema | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class _ReasoningOptions(msgspec.Struct):
    effort: str | None = None


class _Asked(msgspec.Struct):
    """The parameters of a Responses request that a chat request can carry; what is not named is not looked at."""

    instructions: str | None = None
    temperature: int | float | None = None
    top_p: int | float | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: _TextOptions | None = None
    reasoning: _ReasoningOptions | None = None


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Grammar(msgspec.Struct, tag_field="type", tag="grammar"):
    definition: str
    syntax: Literal["lark", "regex"]


class _Custom(msgspec.Struct):
    name: str
    description: str | None = None
    format: _PlainText | _Grammar | None = None


class _AllowedTools(msgspec.Struct):
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


class _Named(msgspec.Struct):
    name: str


def _tool_parameters(asked: _Asked) -> dict[str, Any]:
    """Return what concerns tools. Without tools chat refuses a choice, even one that says nothing."""
    if not asked.tools:
        if asked.tool_choice not in (None, "auto", "none"):
            raise invalid_value("tool_choice", "it needs tools, and there are none")
        return {}
    choice = asked.tool_choice
    if isinstance(choice, str) and choice not in ("auto", "none", "required"):
        raise invalid_value("tool_choice", "it must be auto, none, required or an object")
    return _given(
        tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(asked.tools)],
        tool_choice=_chosen(choice) if isinstance(choice, dict) else choice,
        parallel_tool_calls=asked.parallel_tool_calls,
    )


def _tool(tool: dict[str, Any], path: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind == "function":
        return {"type": kind, kind: _given(**msgspec.structs.asdict(checked(tool, _Function, path)))}
    if kind != "custom":
        raise _unsupported_tool(kind, f"{path}.type")
    custom = checked(tool, _Custom, path)
    form: dict[str, Any] | None = None
    match custom.format:
        case _PlainText():
            form = {"type": "text"}
        case _Grammar(definition=definition, syntax=syntax):
            form = {"type": "grammar", "grammar": {"definition": definition, "syntax": syntax}}
    return {"type": kind, kind: _given(name=custom.name, description=custom.description, format=form)}


def _chosen(choice: dict[str, Any]) -> dict[str, Any]:
    kind = choice.get("type")
    if kind != "allowed_tools":
        return _named(choice, "tool_choice")
    allowed = checked(choice, _AllowedTools, "tool_choice")
    tools = [_named(tool, f"tool_choice.tools[{index}]") for index, tool in enumerate(allowed.tools)]
    return {"type": kind, kind: {"mode": allowed.mode, "tools": tools}}


def _named(tool: dict[str, Any], path: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind not in ("function", "custom"):
        raise _unsupported_tool(kind, f"{path}.type")
    return {"type": kind, kind: {"name": checked(tool, _Named, path).name}}


def _text_parameters(asked: _Asked) -> dict[str, Any]:
    """Return what concerns the text of the answer."""
    text = asked.text or _TextOptions()
    form: dict[str, Any] | None = None
    match text.format:
        case _PlainText():
            form = {"type": "text"}
        case _JsonObject():
            form = {"type": "json_object"}
        case _JsonSchema() as schema:
            fields = _given(
                name=schema.name, description=schema.description, schema=schema.schema, strict=schema.strict
            )
            form = {"type": "json_schema", "json_schema": fields}
    # The API's default of top_logprobs is 0, so that alone asks for nothing.
    wants_logprobs = _LOGPROBS in (asked.include or ()) or bool(asked.top_logprobs)
    return _given(
        response_format=form,
        verbosity=text.verbosity,
        reasoning_effort=None if asked.reasoning is None else asked.reasoning.effort,
        logprobs=True if wants_logprobs else None,
        top_logprobs=asked.top_logprobs if wants_logprobs else None,
    )


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _unsupported_tool(kind: Any, param: str) -> Refusal:
    if not isinstance(kind, str):
        return invalid_value(param, "it must be the type of a tool")
    what = f"'{param}' cannot go to a chat completions target: it takes tools of type function and custom only"
    return _unsupported(UNSUPPORTED_TOOL, param, what)


def _unsupported(code: str, param: str, what: str) -> Refusal:
    return Refusal(400, f"{what}. {ADVICE}", code=code, param=param)
