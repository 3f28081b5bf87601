"""The promises, each as one function over the evidence of a run; an empty list says that it was kept."""

from __future__ import annotations

from collections import defaultdict

from ledger.answer import Found
from ledger.event import PrincipalEvent, TurnAbandoned, TurnCompleted
from ledger.turn import Partition, Position
from ledger.verdict import Code
from tests.simulation.evidence import Evidence, Read, Sent
from tests.simulation.model import Model
from tests.simulation.replay import replayed
from tests.simulation.world import HANG_S

EXCUSES = frozenset(
    {Code.TOO_LATE, Code.CONTENT_STALE, Code.PRINCIPAL_ERASED, Code.LIMIT_EXCEEDED, Code.INVALID, Code.ABANDONED}
)
"""Refusals that a turn of nothing but fresh IDs may get: it came late, or its policy leaves no room."""


def check_every_record_was_judged(evidence: Evidence, model: Model) -> list[str]:
    return [
        f"no replica judged {partition}:{record.offset}"
        for partition, records in evidence.records.items()
        for record in records
        if (partition, record.offset) not in evidence.outcomes
    ]


def check_nothing_acknowledged_is_lost(evidence: Evidence, model: Model) -> list[str]:
    """What a client was told is what the log holds at the place the client was told."""
    found = []
    for sent in evidence.sent:
        for verdict in sent.verdicts:
            part = model.partitions[verdict.token.partition]
            offset = verdict.token.offset
            event = part.events[offset] if offset < len(part.events) else None
            if not isinstance(event, PrincipalEvent):
                found.append(f"{sent.event_id} was answered from {verdict.token}, where it is not")
            elif verdict.code is not Code.DUPLICATE:
                if event.event_id != sent.digest and sent.kind != "delete_item":
                    found.append(f"{sent.event_id} was answered from {verdict.token}, where another event is")
                elif part.codes[offset] is not verdict.code:
                    found.append(f"{sent.event_id} was told {verdict.code}, the log says {part.codes[offset]}")
            elif problem := _duplicate_problem(sent, event, part.codes[offset], verdict.first):
                found.append(f"{sent.event_id} was told it is a duplicate of {verdict.token}: {problem}")
    return found


def _duplicate_problem(sent: Sent, event: PrincipalEvent, code: Code | None, first: Code | None) -> str:
    if event.event_id == sent.digest or sent.kind == "delete_item":
        # An abandonment turns what was decided first into "abandoned".
        return "" if first in (code, Code.ABANDONED) else f"first {first}, the log says {code}"
    if isinstance(event, TurnAbandoned) and event.abandoned == sent.digest:
        return "" if first is Code.ABANDONED else f"first {first} of an abandonment"
    if isinstance(event, TurnCompleted) and event.idempotency is not None and code is Code.ACCEPTED:
        return "" if first is Code.ACCEPTED else f"first {first} of an accepted turn"
    return "another event is there"


def check_unavailable_means_not_written(evidence: Evidence, model: Model) -> list[str]:
    """A commit that was never answered but with ``Unavailable`` is certainly not in the log."""
    written = {
        event.event_id
        for part in model.partitions.values()
        for event in part.events
        if isinstance(event, PrincipalEvent)
    }
    return [
        f"{sent.event_id} is in the log although every attempt was answered with Unavailable"
        for sent in evidence.sent
        if sent.attempts
        and all(attempt.failure in ("unavailable", "refused") for attempt in sent.attempts)
        and sent.digest in written
        and sent.kind != "delete_item"
    ]


def check_the_log_is_consistent(evidence: Evidence, model: Model) -> list[str]:
    """One effect per event ID, first owner kept, compare-and-set, keys, parents, erasures, abandonments."""
    return [message for part in model.partitions.values() for message in part.contradictions]


def check_fresh_turns_are_accepted(evidence: Evidence, model: Model) -> list[str]:
    found = []
    for sent in evidence.sent:
        for verdict in sent.verdicts:
            first = verdict.first if verdict.code is Code.DUPLICATE else verdict.code
            if sent.is_plain and first is not Code.ACCEPTED and first not in EXCUSES:
                found.append(f"{sent.event_id} has only fresh IDs and was told {verdict}")
    return found


def check_abandoned_turns_have_no_effect(evidence: Evidence, model: Model) -> list[str]:
    """After an abandonment the turn is undone or never takes effect, unless the log says that it was kept, or the
    abandonment came when the turn's event ID was forgotten."""
    found = []
    for sent in evidence.sent:
        part = model.partitions[sent.partition]
        offset = part.accepted_events.get(sent.digest)
        if not sent.is_abandoned or offset is None or offset in part.undone:
            continue
        not_after_ms = _not_after_ms(part.events[offset])
        is_excused = any(
            isinstance(event, TurnAbandoned)
            and event.abandoned == sent.digest
            and (code in (Code.KEPT, Code.TOO_LATE) or clock_ms > not_after_ms)
            for event, code, clock_ms in zip(part.events, part.codes, part.clocks_ms[1:], strict=True)
        )
        if not is_excused:
            found.append(f"{sent.event_id} was abandoned and still has its effect at {sent.partition}:{offset}")
    return found


def _not_after_ms(event: object) -> int:
    assert isinstance(event, PrincipalEvent)
    return event.not_after_ms


def check_reads(evidence: Evidence, model: Model) -> list[str]:
    """An answer is true at some position that the read may have seen: none before what was acknowledged."""
    found = []
    for read in evidence.reads:
        name = f"{read.mode} read of {read.selector.kind.name} {read.selector.id} on {read.host} at {read.began_s:.3f}"
        if read.is_broken:
            found.append(f"{name} failed: {read.failure}")
        elif read.answer is not None and (problems := _read_problems(read, model)):
            shown = repr(read.answer)[:300]
            found.append(
                f"{name} between positions {problems[0][0]} and {problems[-1][0]} of {read.partition} "
                f"answered {shown}, but {problems[-1][1]}"
            )
    return found


def _read_problems(read: Read, model: Model) -> list[tuple[int, str]]:
    """Return what is wrong at each position, or nothing when the answer is right at one of them."""
    assert read.answer is not None
    alias = model.alias_key.alias(read.selector)
    low = read.acknowledged
    if isinstance(read.answer, Found) and read.mode == "weak":
        low = read.acknowledged_before
    problems = []
    for position in range(read.end, min(low, read.end) - 1, -1):
        problem = model.partitions[read.partition].problem(read.selector.kind, alias, read.answer, position)
        if not problem:
            return []
        problems.append((position, problem))
    return problems[::-1]


def check_calls_keep_their_deadlines(evidence: Evidence, model: Model) -> list[str]:
    """No call ends later than its own deadline unless its replica crashed or was stopped."""
    ended = [
        (f"{sent.kind} {sent.event_id}", attempt.failure, attempt.began_s, attempt.ended_s, attempt.timeout_s)
        for sent in evidence.sent
        for attempt in sent.attempts
    ]
    return [
        f"{name} took {ended_s - began_s:.2f} s of {timeout_s:.2f} s"
        for name, failure, began_s, ended_s, timeout_s in ended
        if ended_s is not None and failure != "lost" and ended_s - began_s > timeout_s + HANG_S
    ]


def check_rows_are_equal_at_equal_positions(evidence: Evidence, model: Model) -> list[str]:
    """All replicas, at all times, after all restarts; and a replay that folds the log in one piece."""
    digests: dict[tuple[Partition, Position], dict[str, str]] = defaultdict(dict)
    for folded in evidence.folded:
        digests[folded.partition, folded.position].setdefault(folded.digest, folded.host)
    for partition, position, digest in replayed(evidence, set(digests)):
        digests[partition, position].setdefault(digest, "a replay")
    return [
        f"the rows of {partition} at {position} differ between {' and '.join(hosts.values())}"
        for (partition, position), hosts in digests.items()
        if len(hosts) > 1
    ]


CHECKERS = [
    check_every_record_was_judged,
    check_nothing_acknowledged_is_lost,
    check_unavailable_means_not_written,
    check_the_log_is_consistent,
    check_fresh_turns_are_accepted,
    check_abandoned_turns_have_no_effect,
    check_reads,
    check_calls_keep_their_deadlines,
    check_rows_are_equal_at_equal_positions,
]
