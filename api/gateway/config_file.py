"""The gateway's configuration file: YAML in, ``GatewayConfig`` out, or a refusal that names file, line and field.

::

    namespace: production
    targets:
      - name: alpha
        base_url: https://provider.example/v1
        api_key_env: ALPHA_KEY
        format: responses
        models: [small, large]
      - {name: beta, base_url: "http://127.0.0.1:8000/v1", format: chat_completions}
    models:
      - name: auto
        policy: weighted
        targets: [{target: alpha, model: large, weight: 3}, {target: beta, model: b-large}]
    keys:
      - {sha256: 5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8, principal: alice}
    conversations: last_write
    state: {backend: embedded, budget_mib: 512, records_max: 10000, ttl_s: 86400, sliding: false}
    limits: {body_mib_max: 16, replay_mib_max: 32, lease_s: 15, idempotency_wait_s: 120}

Only ``targets`` is required, and a model somewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from api.auth import LOCAL_NAMESPACE, LOCAL_ROUTE
from api.gateway.config import (
    ConversationPolicy,
    GatewayConfig,
    KeyConfig,
    LimitsConfig,
    RouteConfig,
    RoutePolicy,
    RouteTarget,
    StateBackend,
    StateConfig,
    TargetConfig,
    TargetFormat,
)
from api.urls import URL_BYTES_MAX, problem_of
from api.yaml_file import Value, read_yaml, variable_value
from ledger.continuation import LEDGER_TARGET
from ledger.turn import TARGET_BYTES_MAX

SETTING = "config"
"""Field of every ``InvalidInput`` that is raised here."""
WEIGHT_MAX = 1_000
"""A thousandth of the requests is the finest share that anybody tests a model with."""
TIMEOUT_MIN_S = 0.1
"""Below it a healthy connection to another continent fails."""
CONNECT_TIMEOUT_MAX_S = 300
"""Above it a client has long gone; the kernel gives up by itself after about two minutes."""
IDLE_TIMEOUT_MAX_S = 7_200
"""The longest silence of a model that thinks, with room; without a bound a dead connection is kept forever."""
BUDGET_MIB_MAX = 1024 * 1024
"""A TiB: more is a mistake in the unit."""
RECORDS_MAX_MAX = 100_000_000
"""More is a mistake; the rows alone would take tens of GB."""
TTL_MAX_S = 100 * 366 * 24 * 3_600
"""The longest span that a policy may have."""
BODY_MIB_MAX_MAX = 64
"""The most that the ledger stores of one turn (``content.CONTENT_BYTES_MAX``)."""
REPLAY_MIB_MAX_MAX = 512
"""The most that the ledger keeps of one lineage by default; each request under way may hold so much."""
LEASE_MAX_S = 3_600
"""The longest lease that the ledger's default policy counts (``Policy.lease_max_ms``)."""
LEASE_MIN_S = 3
"""A renewal must fit in it several times, or a slow broker ends a healthy turn."""
IDEMPOTENCY_WAIT_MAX_S = 3_600
"""No turn that a client waits for takes longer."""
MAX_TOKENS_FIELDS = ("max_completion_tokens", "max_tokens")
"""What chat completions call the bound: the current name, and the one that older servers know."""
_LIMITS = {
    "body_mib_max": (1, BODY_MIB_MAX_MAX),
    "replay_mib_max": (1, REPLAY_MIB_MAX_MAX),
    "lease_s": (LEASE_MIN_S, LEASE_MAX_S),
    "idempotency_wait_s": (0, IDEMPOTENCY_WAIT_MAX_S),
}
_POLICY_IN_LOG = "the policy is in the log: turnledger policy set"
VARIABLE_PREFIX = "TURNLEDGER"
KAFKA_VARIABLE = "TURNLEDGER_KAFKA_BOOTSTRAP"
"""Where it is set, the state is on Kafka unless the configuration says otherwise."""

_FIELDS = ("namespace", "route", "models", "keys", "conversations", "state", "limits")
_STATE_FIELDS = ("backend", "budget_mib", "records_max", "ttl_s", "sliding")
_TARGET_FIELDS = ("api_key_env", "account", "models", "down", "connect_timeout_s", "idle_timeout_s", "max_tokens_field")

T = TypeVar("T")


def read_config(path: Path, environ: Mapping[str, str]) -> GatewayConfig:
    """Read a file. Raises ``InvalidInput`` of ``config``: ``<file>:<line>: <field>: <reason>``, or a variable's name
    in place of the first three."""
    root = read_yaml(path, SETTING).fields({"targets"}, _FIELDS)
    targets: dict[str, TargetConfig] = {}
    for entry in root["targets"].entries():
        target = _target(entry, environ, targets)
        targets[target.name] = target
    keys = _keys(root["keys"]) if "keys" in root else ()
    routes = _listed(targets)
    if "models" in root:
        routes |= _routes(root["models"], targets, keys)
    if not routes:
        root["targets"].refuse("lists no models, and there is no field models: no request could be served")
    config = GatewayConfig(
        namespace=_given(root.get("namespace"), Value.text, LOCAL_NAMESPACE),
        route=_given(root.get("route"), Value.text, LOCAL_ROUTE),
        targets=targets,
        routes=routes,
        keys=keys,
        conversations=_given(root.get("conversations"), _one_of(ConversationPolicy), ConversationPolicy.LAST_WRITE),
        state=_state(_section(root.get("state"), "state", _STATE_FIELDS, environ), environ),
        limits=_limits(_section(root.get("limits"), "limits", tuple(_LIMITS), environ)),
    )
    if keys:
        _check_shares(root["keys"], config)
    return config


def _given(value: Value | None, read: Callable[[Value], T], default: T) -> T:
    return default if value is None else read(value)


E = TypeVar("E", bound=StrEnum)


def _one_of(words: type[E]) -> Callable[[Value], E]:
    return lambda value: words(value.word(tuple(words)))


def _integer(low: int, high: int) -> Callable[[Value], int]:
    return lambda value: value.integer(low, high)


def _number(low: float, high: float) -> Callable[[Value], float]:
    return lambda value: value.number(low, high)


def _target(value: Value, environ: Mapping[str, str], earlier: Collection[str]) -> TargetConfig:
    fields = value.fields({"name", "base_url", "format"}, _TARGET_FIELDS)
    name = fields["name"].text(TARGET_BYTES_MAX)
    if name in earlier:
        fields["name"].refuse("is the name of an earlier target")
    if name == LEDGER_TARGET:
        fields["name"].refuse("is what the ledger calls itself")
    spoken = _one_of(TargetFormat)(fields["format"])
    if "max_tokens_field" in fields and spoken is not TargetFormat.CHAT_COMPLETIONS:
        fields["max_tokens_field"].refuse(f"is for the format {TargetFormat.CHAT_COMPLETIONS} only")
    optional: dict[str, Any] = {}
    readers: dict[str, Callable[[Value], object]] = {
        "account": Value.text,
        "models": _names,
        "down": Value.boolean,
        "connect_timeout_s": _number(TIMEOUT_MIN_S, CONNECT_TIMEOUT_MAX_S),
        "idle_timeout_s": _number(TIMEOUT_MIN_S, IDLE_TIMEOUT_MAX_S),
        "max_tokens_field": lambda value: value.word(MAX_TOKENS_FIELDS),
    }
    for field, read in readers.items():
        if field in fields:
            optional[field] = read(fields[field])
    return TargetConfig(
        name=name,
        base_url=_base_url(fields["base_url"]),
        api_key=_given(fields.get("api_key_env"), lambda variable: _api_key(variable, environ), None),
        format=spoken,
        **optional,
    )


def _base_url(value: Value) -> str:
    url = value.text(URL_BYTES_MAX)
    problem = problem_of(url)
    if problem is not None:
        value.refuse(problem)
    return url.rstrip("/")


def _api_key(value: Value, environ: Mapping[str, str]) -> str:
    # The name is never repeated: whoever mistakes the field puts the key itself there.
    name = value.text()
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        value.refuse("must be the name of an environment variable, not the key")
    key = environ.get(name)
    if not key:
        value.refuse("the environment variable of this name is not set")
    if not re.fullmatch("[!-~]+", key):
        value.refuse("the environment variable of this name has characters that a header cannot have")
    return key


def _names(value: Value) -> tuple[str, ...]:
    names: list[str] = []
    for entry in value.entries():
        name = entry.text()
        if name in names:
            entry.refuse("is given twice")
        names.append(name)
    return tuple(names)


def _listed(targets: Mapping[str, TargetConfig]) -> dict[str, RouteConfig]:
    """Return the routes of the models that targets list, each with all targets that list it."""
    ways: dict[str, list[RouteTarget]] = {}
    for target in targets.values():
        for model in target.models:
            ways.setdefault(model, []).append(RouteTarget(target=target.name, model=model))
    return {
        model: RouteConfig(model=model, policy=RoutePolicy.WEIGHTED, targets=tuple(those))
        for model, those in ways.items()
    }


def _routes(value: Value, targets: Mapping[str, TargetConfig], keys: tuple[KeyConfig, ...]) -> dict[str, RouteConfig]:
    routes: dict[str, RouteConfig] = {}
    for entry in value.entries():
        fields = entry.fields({"name", "targets"}, {"policy", "forwards_unknown"})
        name = fields["name"].text()
        if name in routes:
            fields["name"].refuse("is the name of an earlier model")
        policy = _given(fields.get("policy"), _one_of(RoutePolicy), RoutePolicy.WEIGHTED)
        ways: dict[str, RouteTarget] = {}
        for way in fields["targets"].entries():
            read = _way(way, targets, policy, ways)
            ways[read.target] = read
        forwards_unknown = _given(fields.get("forwards_unknown"), Value.boolean, default=False)
        if forwards_unknown:
            _check_forwarding(fields["forwards_unknown"], [targets[way] for way in ways], keys)
        routes[name] = RouteConfig(
            model=name, policy=policy, targets=tuple(ways.values()), forwards_unknown=forwards_unknown
        )
    return routes


def _way(
    value: Value, targets: Mapping[str, TargetConfig], policy: RoutePolicy, earlier: Collection[str]
) -> RouteTarget:
    fields = value.fields({"target", "model"}, {"weight"})
    target = fields["target"].text(TARGET_BYTES_MAX)
    if target not in targets:
        fields["target"].refuse(f"is not a target; there are {', '.join(targets)}")
    if target in earlier:
        fields["target"].refuse("is in this route already; what is pinned to a target must have one model there")
    if "weight" in fields and policy is not RoutePolicy.WEIGHTED:
        fields["weight"].refuse(f"is for the policy {RoutePolicy.WEIGHTED} only")
    weight = _given(fields.get("weight"), _integer(1, WEIGHT_MAX), 1)
    return RouteTarget(target=target, model=fields["model"].text(), weight=weight)


def _check_forwarding(value: Value, targets: Collection[TargetConfig], keys: tuple[KeyConfig, ...]) -> None:
    if len({key.principal for key in keys}) > 1:
        value.refuse("is for one principal only: an ID that the ledger does not know may be another's at the provider")
    if any(target.format is not TargetFormat.RESPONSES for target in targets):
        value.refuse(f"needs the format {TargetFormat.RESPONSES} on every target of the route: others keep no state")


def _keys(value: Value) -> tuple[KeyConfig, ...]:
    keys: dict[bytes, KeyConfig] = {}
    for entry in value.entries():
        fields = entry.fields({"sha256", "principal"})
        digest = fields["sha256"].sha256()
        if digest in keys:
            fields["sha256"].refuse("is the digest of an earlier key")
        keys[digest] = KeyConfig(sha256=digest, principal=fields["principal"].text())
    return tuple(keys.values())


def _section(value: Value | None, name: str, known: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, Value]:
    """Return the fields of a part of the file, with those that the environment overrides."""
    found = {} if value is None else value.fields((), known)
    for field in known:
        variable = f"{VARIABLE_PREFIX}_{name}_{field}".upper()
        if variable in environ:
            found[field] = variable_value(SETTING, variable, environ[variable])
    return found


def _state(fields: Mapping[str, Value], environ: Mapping[str, str]) -> StateConfig:
    default = StateBackend.KAFKA if environ.get(KAFKA_VARIABLE) else StateBackend.EMBEDDED
    backend = _given(fields.get("backend"), _one_of(StateBackend), default)
    if not backend.is_local:
        reason = "there is no state to bound" if backend is StateBackend.OFF else _POLICY_IN_LOG
        for name in _STATE_FIELDS:
            if name in fields and name != "backend":
                fields[name].refuse(f"is for the backends memory and embedded, not {backend}: {reason}")
    return StateConfig(
        backend=backend,
        budget_mib=_given(fields.get("budget_mib"), _integer(1, BUDGET_MIB_MAX), None),
        records_max=_given(fields.get("records_max"), _integer(1, RECORDS_MAX_MAX), None),
        ttl_s=_given(fields.get("ttl_s"), _integer(1, TTL_MAX_S), None),
        is_sliding=_given(fields.get("sliding"), Value.boolean, None),
    )


def _limits(fields: Mapping[str, Value]) -> LimitsConfig:
    return LimitsConfig(**{name: _integer(*_LIMITS[name])(value) for name, value in fields.items()})


def _check_shares(keys: Value, config: GatewayConfig) -> None:
    """Refuse more principals than the bounds of local state have shares for: 1 MiB and one response each."""
    state, count = config.state.bounded(), len(config.principals)
    for name, bound in (("budget_mib", state.budget_mib), ("records_max", state.records_max)):
        if bound is not None and bound < count:
            keys.refuse(f"has {count} principals, who share state.{name}, which is {bound}: at least 1 for each")
