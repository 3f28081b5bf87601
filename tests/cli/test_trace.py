"""The slice of the trace that the demo publishes."""

from __future__ import annotations

from collections import Counter
from importlib import resources

from cli.demo.trace import CHARACTERS_PER_TOKEN, Request, read_trace

REQUESTS = read_trace()


def test_slice_has_three_hundred_different_turns_in_order_of_arrival() -> None:
    assert len(REQUESTS) == len({request.turn for request in REQUESTS}) == 300
    assert [request.arrival_ms for request in REQUESTS] == sorted(request.arrival_ms for request in REQUESTS)


def test_every_parent_is_in_the_slice_and_comes_before_its_children() -> None:
    seen: set[int] = set()
    for request in REQUESTS:
        assert request.parent_turn is None or request.parent_turn in seen
        seen.add(request.turn)


def test_slice_has_the_deepest_chain_and_all_branches_of_the_trace() -> None:
    children = Counter(request.parent_turn for request in REQUESTS if request.parent_turn is not None)
    assert max(request.depth for request in REQUESTS) == 42
    assert sum(count > 1 for count in children.values()) == 28


def test_one_conversation_has_one_owner_and_one_kind_of_state() -> None:
    by_root: dict[int, set[tuple[str, bool]]] = {}
    for request in REQUESTS:
        by_root.setdefault(request.root_turn, set()).add((request.target, request.native))
    assert all(len(owners) == 1 for owners in by_root.values())
    assert {native for owners in by_root.values() for _, native in owners} == {True, False}


def test_made_up_text_has_the_traced_length() -> None:
    def length(request: Request, part: str) -> int:
        return sum(len(item["content"]) for item in request.content()[part])

    for request in REQUESTS:
        assert length(request, "input") == request.new_input_tokens * CHARACTERS_PER_TOKEN
        assert length(request, "output") == request.output_tokens * CHARACTERS_PER_TOKEN


def test_source_and_licence_are_named_beside_the_slice() -> None:
    text = (resources.files("cli") / "data" / "README.md").read_text(encoding="utf-8")
    assert "kvcache-ai/Mooncake" in text
    assert "Apache-2.0" in text
