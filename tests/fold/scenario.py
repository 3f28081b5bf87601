"""Scenarios of the fold: text files that a person reads from top to bottom, each line with what came of it.

A line is a word of ``World``, names and ``option=value`` pairs. Below it stands the answer, after ``->``; at the end,
after ``=``, the rows that are left. ``pytest --rewrite`` writes the answers anew; the reader then judges the diff.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import Any

from ledger.rows import Fate, Kind, ResponseRow
from ledger.turn import Status
from ledger.verdict import Outcome
from tests.fold.given import World
from tests.fold.names import SECOND_MS, conversation_alias, item_alias, key_digest, response_alias
from tests.fold.recount import Table

ANSWER, ROW = "-> ", "= "


def play(text: str) -> str:
    """Return the scenario with its answers and rows as the fold gives them now."""
    world = World()
    names: dict[bytes, str] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith((ANSWER, ROW)):
            continue
        lines.append(line)
        if not line.strip() or line.startswith("#"):
            continue
        word, *arguments = shlex.split(line)
        positional = [argument for argument in arguments if "=" not in argument]
        options = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
        _remember(names, positional, options)
        lines.append(ANSWER + _answer(world, word, positional, options))
    while lines and not lines[-1].strip():
        lines.pop()
    return "\n".join([*lines, "", *(ROW + row for row in _rows(world, names))]) + "\n"


def _remember(names: dict[bytes, str], positional: list[str], options: dict[str, str]) -> None:
    suffix = "" if options.get("principal", "alice") == "alice" else f" of {options['principal']}"
    principal = options.get("principal", "alice")
    for value in [*positional, *options.values()]:
        for name in value.split(","):
            for alias_of in (response_alias, conversation_alias, item_alias, key_digest):
                names[alias_of(name, principal)] = name + suffix


_OPTIONS: dict[str, Callable[[str], Any]] = {
    "items": lambda value: value.split(","),
    "status": lambda value: Status[value.upper()],
    "native": lambda value: value == "yes",
    "exclusive": lambda value: value == "yes",
    "cascade": lambda value: value == "yes",
    "sliding": lambda value: value == "yes",
    "size_bytes": int,
    "expected_revision": int,
    "lease_s": float,
}


def _answer(world: World, word: str, positional: list[str], options: dict[str, str]) -> str:
    before = len(world.facts)
    values = {name: _OPTIONS.get(name, str)(value) for name, value in options.items()}
    outcome: Outcome | None = None
    match word:
        case "wait":
            world.wait(float(positional[0]))
        case "settle":
            world.settle()
        case "policy":
            outcome = world.change_policy(**{name: _policy_value(name, value) for name, value in options.items()})
        case "bytes":
            outcome = world.append_bytes(bytes.fromhex(positional[0]))
        case "again":
            outcome = world.again(int(positional[0]))
        case "append_items":
            outcome = world.append_items(positional[0], positional[1].split(","), **values)
        case "create_conversation":
            if "items" in values:
                values["content"] = world.content()
            outcome = world.create_conversation(positional[0], **values)
        case _:
            outcome = getattr(world, word)(*positional, **values)
    told = [] if outcome is None else [_told(outcome)]
    gone = world.unneeded()[len([fact for fact in world.facts[:before] if hasattr(fact, "content")]) :]
    if gone:
        told.append("unneeded: content of " + ", ".join(str(number) for number in gone))
    return "; ".join(told) or f"at {(world.now_ms - world.records[0].appended_at_ms) / SECOND_MS:g} s"


def _policy_value(name: str, value: str) -> int | bool:
    return value == "yes" if name == "sliding" else int(value)


def _told(outcome: Outcome) -> str:
    words = [outcome.code.word]
    if outcome.first is not None:
        words.append(f"of {outcome.first.word} at {outcome.first_offset}")
    if outcome.reason:
        words.append(f"({outcome.reason})")
    words += [f"{name}={value}" for name in ("node", "revision") if (value := getattr(outcome, name))]
    return " ".join(words)


def _rows(world: World, names: dict[bytes, str]) -> Iterator[str]:
    table = Table.of(world.stored())
    begun_ms = world.records[0].appended_at_ms

    def at(time_ms: int) -> str:
        return f"{(time_ms - begun_ms) / SECOND_MS:g} s"

    yield f"clock {at(table.meta.clock_ms)}, position {table.meta.position}"
    for alias, row in sorted(table.responses.items(), key=lambda entry: entry[1].node):
        fate = f"{Fate(row.fate).name.lower()} at {at(row.gone_at_ms)}" if row.fate else _life(row, at)
        yield f"response {names[alias]}: node {row.node}, {Status(row.status).name.lower()}, {fate}"
    for alias, conversation in sorted(table.conversations.items(), key=lambda entry: entry[1].created_offset):
        fate = "living"
        if conversation.fate:
            fate = f"{Fate(conversation.fate).name.lower()} at {at(conversation.gone_at_ms)}"
        yield f"conversation {names[alias]}: head {conversation.head}, revision {conversation.revision}, {fate}"
    for alias, item in sorted(table.items.items(), key=lambda entry: (entry[1].node, names[entry[0]])):
        yield f"item {names[alias]}: node {item.node}, {Fate(item.fate).name.lower()}"
    for offset, node in table.nodes.items():
        holds = f"response {node.response_hold}, head {node.head_hold}, children {node.child_holds}"
        yield f"node {offset}: parent {node.parent}, lineage {names[node.lineage]}, held by {holds}"
    for principal in table.principals.values():
        counts = f"{principal.records} records, {principal.size_bytes} bytes, {principal.tombstones} tombstones"
        yield f"principal: {counts}" + (f", erased below {principal.cut_offset}" if principal.cut_offset else "")
    for key, quarantined in table.points[Kind.QUARANTINE].items():
        yield f"quarantined {int.from_bytes(key, 'big')}: {quarantined.reason}"


def _life(row: ResponseRow, at: Callable[[int], str]) -> str:
    if row.lease_until_ms:
        return f"leased until {at(row.lease_until_ms)}"
    return f"living until {at(row.expires_at_ms)}" if row.expires_at_ms else "living as its lineage does"
