"""Every error the ledger raises: one root, three families.

``CallerError``: the request is wrong and a retry cannot help. ``RetryableError``: the ledger could not answer now.
``FatalError``: the process must not go on. A *refusal* is none of these: it is a verdict, and a value.

No message here carries a raw ID or content (design rule 10): the caller knows what it sent.
"""

from __future__ import annotations


class LedgerError(Exception):
    """Root of all errors of the ledger. ``advice`` says what to do next."""

    advice = "read the message"


class CallerError(LedgerError):
    """The request is wrong; repeating it gives the same answer."""

    advice = "correct the request"


class RetryableError(LedgerError):
    """The ledger could not answer now; the same call may succeed later."""

    advice = "retry with backoff"


class FatalError(LedgerError):
    """The process found a state that it must not serve from."""

    advice = "stop the process and read docs/operations.md"


class InvalidInput(CallerError):
    """A value was refused before anything was written; ``field`` names it."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class TooLarge(InvalidInput):
    """A value is above its bound (HTTP 413); nothing was written."""


class NotPermitted(CallerError):
    """The authenticated caller lacks the role or the principal that this call needs."""

    advice = "use a token with the role named in the message"


class NotAuthenticated(CallerError):
    """No valid token came with the call."""

    advice = "send 'Authorization: Bearer <token>' with a token from the auth file"


class NotHeld(CallerError):
    """This replica does not hold the ``partition`` that was asked for (HTTP 421); nothing was written."""

    advice = "ask a replica that holds the partition"

    def __init__(self, partition: int, detail: str = "") -> None:
        super().__init__(f"partition {partition} is not held by this replica{detail and f': {detail}'}")
        self.partition = partition


class NeedsEveryPartition(CallerError):
    """What concerns every partition was asked of a replica that holds some (HTTP 421); nothing was written."""

    advice = "ask a replica that holds all partitions, or run 'turnledger topics policy' against Kafka"


class Unavailable(RetryableError):
    """A read or a commit cannot be answered truthfully now.

    ``reason`` is one word a program can branch on: ``lagging``, ``deadline``, ``leader``, ``log_gap``,
    ``log_diverged``, ``upgrade``, ``manifest``, ``content_lag``, ``closed``, ``broker``, ``storage``, ``service``,
    ``policy``, ``holder``, ``defect``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"unavailable ({reason}): {message}")
        self.reason = reason


class Unknown(RetryableError):
    """A commit may or may not be in the log: the deadline passed before its verdict was known.

    Retry with the same ``event_id`` (idempotent), or give up with ``abandon``. Where nobody knows the event ID, it is
    empty, and a retry could be a second commit.
    """

    advice = "retry with the same event_id, or abandon it"

    def __init__(self, event_id: str, message: str) -> None:
        if not event_id:
            self.advice = "it may have been carried out; look before you send it again"
        super().__init__(f"outcome unknown: {message}; {self.advice}")
        self.event_id = event_id
        self.detail = message


class AncestorMissing(FatalError):
    """A node of a history is not in the view although its child is: a defect, never a shorter history."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the ancestor at offset {offset} is missing; the history is not complete and is not served")
        self.offset = offset


class ContentLost(FatalError):
    """A content that a living node refers to is not in the store, although the store has caught up with it."""


class ManifestMismatch(FatalError):
    """The log is not the one this process was configured for (count, ledger ID, alias key or digest version)."""

    advice = "compare the configuration of this process with 'turnledger topics check'"


class StateDirectoryLocked(FatalError):
    """Another process has this state directory open."""

    advice = "give every process a state directory of its own, or stop the other process"


class StoreFailed(FatalError):
    """The view's storage refused a read or a write (full disk, corruption); nothing moved past it."""

    advice = "free disk space or repair the volume; the view resumes by itself"


class PurgeStopped(StoreFailed):
    """A purge was given up because its store is being closed: nothing is wrong, and what was erased is due again."""

    advice = "purge again after the next start"


class UndecodableRecord(LedgerError):
    """Bytes from the log that no build may give a meaning; ``reason`` is a quarantine reason."""

    advice = "find the producer by partition and offset in 'turnledger replay'"

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
