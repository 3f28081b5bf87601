"""What a gateway is configured with: targets, the models that clients may name, keys, state and limits.

The file is read once, strictly, before anything is opened (``config_file``). Rules it keeps:

- a secret is never in the file: a target's key comes from the environment, a client's key is there as its digest;
- a model that a target lists may be named by clients; when several targets list it, they share its requests equally;
  a route of the same name under ``models`` replaces that;
- ``state`` and ``limits`` may come from the environment, which goes before the file (``TURNLEDGER_STATE_BUDGET_MIB``);
- the budget of local state is the whole process's: each principal has an equal share of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from msgspec.structs import replace

from api.auth import LOCAL_NAMESPACE, LOCAL_PRINCIPAL, LOCAL_ROUTE
from ledger.policy import HOUR_MS, SECOND_MS, Policy

MIB = 1024 * 1024
MEMORY_BUDGET_MIB = 512
"""Of state in memory, unless it is configured: a process that nobody has planned memory for must not need more."""
MEMORY_RECORDS_MAX = 10_000
"""Of state in memory, unless it is configured: small turns cost rows rather than content."""
MEMORY_EVENT_WINDOW_MS = 4 * HOUR_MS
"""How long state in memory remembers event IDs and idempotency keys. Each is a row that no budget counts; no turn takes
half of it, and no client repeats a request after it."""
TOMBSTONES_PER_RECORD = 10
"""A turn leaves a tombstone for its response and one for each item that has an ID; few have more."""


class TargetFormat(StrEnum):
    """What a target speaks."""

    RESPONSES = "responses"
    CHAT_COMPLETIONS = "chat_completions"


class RoutePolicy(StrEnum):
    """How a route chooses among its targets when no state decides."""

    WEIGHTED = "weighted"
    FIRST_HEALTHY = "first_healthy"


class ConversationPolicy(StrEnum):
    """What becomes of a turn on a conversation that another one is on."""

    LAST_WRITE = "last_write"
    """Both run; the one that ends last is the head."""
    REJECT = "reject"


class StateBackend(StrEnum):
    """Where the gateway's state is."""

    OFF = "off"
    MEMORY = "memory"
    EMBEDDED = "embedded"
    KAFKA = "kafka"

    @property
    def is_local(self) -> bool:
        """Whether this process alone has it, so that its configuration sets the policy."""
        return self in (StateBackend.MEMORY, StateBackend.EMBEDDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """One upstream endpoint with one account."""

    name: str
    """What owners of native state are stored under: another name is another target."""
    base_url: str
    """With the version, as in ``https://provider.example/v1``, without a slash at its end."""
    api_key: str | None = field(default=None, repr=False)
    """None: no key is sent."""
    format: TargetFormat
    account: str = ""
    """Label of the account behind the key; a change of it is a change of owner."""
    models: tuple[str, ...] = ()
    """Upstream names that clients may use directly."""
    down: bool = False
    """Must not be called; what it owns is refused, not moved."""
    connect_timeout_s: float = 5.0
    idle_timeout_s: float = 600.0
    """Between two reads: a model may think for minutes before its first byte."""
    max_tokens_field: str = "max_completion_tokens"
    """What the target calls the bound of output tokens; for ``chat_completions`` only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTarget:
    """One way of a route."""

    target: str
    model: str
    """The upstream's name of the model."""
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteConfig:
    """What one name of a model stands for."""

    model: str
    """What clients send."""
    policy: RoutePolicy
    targets: tuple[RouteTarget, ...]
    """In the order of preference; each target once."""
    forwards_unknown: bool = False
    """Send an unknown response ID on instead of refusing it: it may have been made at the provider directly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyConfig:
    """A client's key."""

    sha256: bytes
    principal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateConfig:
    """Where the state is, and what local state may take; None: as the ledger's own policy says."""

    backend: StateBackend
    budget_mib: int | None = None
    """Content of all principals together, before compression."""
    records_max: int | None = None
    """Living responses of all principals together."""
    ttl_s: int | None = None
    """How long a response lives."""
    is_sliding: bool | None = None
    """Whether a turn lets its whole lineage live on."""

    def bounded(self) -> StateConfig:
        """Return the same with a bound wherever state in memory needs one."""
        if self.backend is not StateBackend.MEMORY:
            return self
        budget_mib, records_max = self.budget_mib or MEMORY_BUDGET_MIB, self.records_max or MEMORY_RECORDS_MAX
        return dataclasses.replace(self, budget_mib=budget_mib, records_max=records_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """Bounds of one request."""

    body_mib_max: int = 16
    """Of a request: a few large images fit."""
    replay_mib_max: int = 32
    """Of a history that is replayed; more is refused before the model runs."""
    lease_s: int = 15
    """For which a running turn is known to others without a renewal."""
    idempotency_wait_s: int = 120
    """For which a request waits for another one with its ``Idempotency-Key``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """The whole configuration, checked."""

    namespace: str = LOCAL_NAMESPACE
    route: str = LOCAL_ROUTE
    """State domain of the gateway; not a model."""
    targets: Mapping[str, TargetConfig]
    routes: Mapping[str, RouteConfig]
    """By the model that clients send."""
    keys: tuple[KeyConfig, ...] = ()
    """Empty: everybody on loopback is the one local principal."""
    conversations: ConversationPolicy = ConversationPolicy.LAST_WRITE
    state: StateConfig
    limits: LimitsConfig = LimitsConfig()

    @classmethod
    def from_file(cls, path: Path, environ: Mapping[str, str]) -> GatewayConfig:
        """Read a file; ``environ`` has the keys of the targets and may override ``state`` and ``limits``.

        Raises ``InvalidInput("config", "<file>:<line>: <field>: <reason>")``, or with a variable's name instead.
        """
        # The reader makes this class, so it cannot be imported before it.
        from api.gateway.config_file import read_config

        return read_config(path, environ)

    @property
    def principals(self) -> tuple[str, ...]:
        """Everybody who may call, in order."""
        return tuple(sorted({key.principal for key in self.keys})) or (LOCAL_PRINCIPAL,)

    def policy(self, current: Policy | None = None) -> Policy | None:
        """Return the policy of local state; None where the log has its own: on Kafka, without state, or when an
        embedded ledger's is not configured.

        ``current`` is the policy of a ledger that exists already: what the configuration does not say stays as it is.
        """
        if not self.state.backend.is_local:
            return None
        state, share = self.state.bounded(), len(self.principals)
        policy = current or Policy()
        changes: dict[str, int | bool] = {}
        if state.budget_mib is not None:
            changes["principal_bytes_max"] = state.budget_mib * MIB // share
            # The lineage that is being written is not evicted, so it must fit by itself.
            changes["lineage_bytes_max"] = min(policy.lineage_bytes_max, changes["principal_bytes_max"])
        if state.records_max is not None:
            changes["principal_records_max"] = state.records_max // share
        if state.ttl_s is not None:
            changes["active_ttl_ms"] = state.ttl_s * SECOND_MS
        if state.is_sliding is not None:
            changes["sliding"] = state.is_sliding
        if state.backend is StateBackend.MEMORY:
            changes["event_window_max_ms"] = MEMORY_EVENT_WINDOW_MS
            changes["idempotency_ttl_ms"] = min(policy.idempotency_ttl_ms, MEMORY_EVENT_WINDOW_MS)
            changes["tombstones_per_principal_max"] = min(
                policy.tombstones_per_principal_max, TOMBSTONES_PER_RECORD * changes["principal_records_max"]
            )
        return replace(policy, **changes) if changes else None
