"""Responses with state: what a response continues is known to the instance that gave it, and to no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cli.loopback.answer import answer
from cli.loopback.background import Background
from cli.loopback.conversations import Conversation, Conversations
from cli.loopback.delivery import Frame, begin, deliver, refusal_of_status
from cli.loopback.exchange import Exchange, encode
from cli.loopback.instance import Instance
from cli.loopback.items import (
    Item,
    check_context,
    check_reasoning,
    complete,
    hear,
    input_items,
    invalid,
    rendered,
    unknown_item,
)
from cli.loopback.lists import page
from cli.loopback.response_body import begun, ended
from cli.loopback.response_events import DELTAS, events, frame
from cli.loopback.script import Script
from cli.loopback.usage import PromptCache
from ledger.refusal import PREVIOUS, Refusal

FOREIGN = ("messages", "max_tokens", "max_completion_tokens", "response_format", "n", "stop")
"""Fields of chat completions: a provider of responses does not know them."""
CONTINUABLE = ("completed", "incomplete")


@dataclass(slots=True, kw_only=True, eq=False)
class Turn:
    """A response, and what it was asked in which context."""

    body: Mapping[str, Any]
    input: list[Item]
    before: Turn | None
    """What it continues; kept here, since a deleted response is still the history of its children."""
    conversation: Conversation | None
    first: list[Item] = field(default_factory=list)
    """The items of the conversation when the turn began."""
    background: Background | None = None

    def context(self) -> list[Item]:
        """Return all items that the response has seen, oldest first, and its output."""
        turns, turn = [self], self.before
        while turn is not None:
            turns.append(turn)
            turn = turn.before
        items = list(turns[-1].first)
        for turn in reversed(turns):
            items += turn.input
            items += turn.body["output"]
        return items


class Responses:
    """The endpoints under ``/v1/responses``."""

    def __init__(self, instance: Instance, conversations: Conversations, known: dict[str, Item]) -> None:
        """``known``: all items of the instance by ID."""
        self._instance = instance
        self._conversations = conversations
        self._known = known
        self._cache = PromptCache()
        self._turns: dict[str, Turn] = {}

    def close(self) -> None:
        """Stop what is in the background."""
        for turn in self._turns.values():
            if turn.background is not None:
                turn.background.close()

    async def create(self, exchange: Exchange) -> None:
        """POST /v1/responses."""
        request = exchange.request()
        _check(request)
        items = [self._resolved(item) for item in input_items(request["input"])]
        check_reasoning(items, self._instance, self._known)
        before = self._continued(request.get(PREVIOUS))
        named = request.get("conversation")
        conversation = None if named is None else self._conversations.lock(named)
        turn = Turn(body={"output": []}, input=items, before=before, conversation=conversation)
        if conversation is not None:
            turn.first = list(conversation.items)
        try:
            await self._answer(exchange, request, turn)
        finally:
            if conversation is not None and turn.background is None:
                conversation.is_busy = False

    async def _answer(self, exchange: Exchange, request: Mapping[str, Any], turn: Turn) -> None:
        context = turn.context()
        check_context(context)
        heard = hear(context)
        is_stream, is_background = bool(request.get("stream")), bool(request.get("background"))
        if is_background:
            if heard.script.status is not None:
                raise refusal_of_status(heard.script.status)
        else:
            await begin(exchange, heard.script, is_stream=is_stream)
        answered = answer(self._instance.name, heard, lambda: self._instance.new_id("call"), _schema(request))
        prompt = self._cache.count(encode([request["model"], request.get("tools")]), rendered(context))
        conversation_id = None if turn.conversation is None else turn.conversation.id
        body = begun(request, self._instance.new_id("resp"), self._instance.now(), conversation_id)
        final = ended(body, request, answered, prompt, self._instance)
        if is_background:
            await self._in_background(exchange, turn, final, heard.script, is_stream=is_stream)
            return
        turn.body = final
        if is_stream:
            await deliver(exchange, self._frames(turn), heard.script)
        else:
            self._keep(turn)
            await exchange.answer(final)

    async def _in_background(
        self, exchange: Exchange, turn: Turn, final: Mapping[str, Any], script: Script, *, is_stream: bool
    ) -> None:
        def on_end(body: Mapping[str, Any]) -> None:
            turn.body = body
            self._keep_items(turn)
            if turn.conversation is not None:
                turn.conversation.is_busy = False

        turn.input = [complete(item, self._instance) for item in turn.input]
        turn.background = Background(final, script, on_end)
        self._turns[final["id"]] = turn
        if is_stream:
            await turn.background.follow(exchange, 0, script.cut)
        else:
            await exchange.answer(turn.background.body)

    async def retrieve(self, exchange: Exchange) -> None:
        """GET /v1/responses/{id}, also streamed from ``starting_after`` on."""
        turn = self._of(exchange)
        if exchange.query.get("stream", "").lower() != "true":
            await exchange.answer(turn.body if turn.background is None else turn.background.body)
            return
        after = exchange.query.get("starting_after", "-1")
        if not after.removeprefix("-").isdecimal():
            raise invalid("starting_after", "expected a sequence number")
        if turn.background is not None:
            await turn.background.follow(exchange, int(after) + 1)
            return
        await exchange.begin_stream()
        for number, event in enumerate(events(turn.body)):
            if number > int(after):
                await exchange.send(frame(event, number))
        await exchange.end_stream()

    async def delete(self, exchange: Exchange) -> None:
        """DELETE /v1/responses/{id}."""
        turn = self._of(exchange)
        if turn.background is not None:
            turn.background.cancel()
        response_id = exchange.path_params["response_id"]
        del self._turns[response_id]
        await exchange.answer({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, exchange: Exchange) -> None:
        """POST /v1/responses/{id}/cancel: answers the response, also when it has ended before."""
        turn = self._of(exchange)
        if turn.background is None:
            raise Refusal(400, "Cannot cancel a synchronous response.")
        turn.background.cancel()
        await exchange.answer(turn.background.body)

    async def input_items(self, exchange: Exchange) -> None:
        """GET /v1/responses/{id}/input_items: those of its own request."""
        await exchange.answer(page(self._of(exchange).input, exchange.query))

    def _frames(self, turn: Turn) -> Iterator[Frame]:
        for number, event in enumerate(events(turn.body)):
            kind = event["type"]
            if kind.startswith("response.") and event.get("response", {}).get("status") == turn.body["status"]:
                self._keep(turn)
            yield frame(event, number), kind in DELTAS

    def _keep(self, turn: Turn) -> None:
        """Store a turn that has ended, unless its request says otherwise."""
        if not turn.body["store"]:
            return
        turn.input = [complete(item, self._instance) for item in turn.input]
        self._turns[turn.body["id"]] = turn
        self._keep_items(turn)

    def _keep_items(self, turn: Turn) -> None:
        items = turn.input + turn.body["output"]
        self._known.update((item["id"], item) for item in items)
        if turn.conversation is not None and turn.body["status"] in CONTINUABLE:
            self._conversations.add(turn.conversation, items)

    def _resolved(self, item: Item) -> Item:
        if item["type"] != "item_reference":
            return item
        found = self._known.get(item["id"])
        if found is None:
            raise unknown_item(item["id"])
        return found

    def _continued(self, previous_id: Any) -> Turn | None:
        if previous_id is None:
            return None
        turn = self._turns.get(previous_id) if isinstance(previous_id, str) else None
        if turn is None:
            text = f"Previous response with id '{previous_id}' not found."
            raise Refusal(400, text, code="previous_response_not_found", param=PREVIOUS)
        status = turn.body.get("status", "in_progress")
        if status not in CONTINUABLE:
            raise Refusal(400, f"Previous response with id '{previous_id}' is {status}.", param=PREVIOUS)
        return turn

    def _of(self, exchange: Exchange) -> Turn:
        response_id = exchange.path_params["response_id"]
        turn = self._turns.get(response_id)
        if turn is None:
            raise Refusal(404, f"Response with id '{response_id}' not found.")
        return turn


def _check(request: Mapping[str, Any]) -> None:
    for name in FOREIGN:
        if name in request:
            raise Refusal(400, f"Unknown parameter: '{name}'.", code="unknown_parameter", param=name)
    for name in ("model", "input"):
        if not request.get(name):
            text = f"Missing required parameter: '{name}'."
            raise Refusal(400, text, code="missing_required_parameter", param=name)
    if request.get(PREVIOUS) is not None and request.get("conversation") is not None:
        text = "Mutually exclusive parameters: 'previous_response_id' and 'conversation'."
        raise Refusal(400, text, code="mutually_exclusive_parameters", param=PREVIOUS)
    if request.get("background") and request.get("store") is False:
        raise Refusal(400, "Background responses must be stored.", code="invalid_value", param="background")


def _schema(request: Mapping[str, Any]) -> Mapping[str, Any] | None:
    form = (request.get("text") or {}).get("format") or {}
    schema: Mapping[str, Any] | None = form.get("schema")
    return schema
