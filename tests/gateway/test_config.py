"""The gateway's configuration: what a file means, what a wrong one says, what the environment may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.gateway.config import (
    MEMORY_BUDGET_MIB,
    MEMORY_EVENT_WINDOW_MS,
    MEMORY_RECORDS_MAX,
    MIB,
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
from ledger.errors import InvalidInput
from ledger.policy import HOUR_MS, Policy, check

ALICE, BOB = "aa" * 32, "bb" * 32
ENVIRON = {"ALPHA_KEY": "sk-alpha", "EMPTY": "", "BROKEN_KEY": "sk\n"}
FULL = f"""\
namespace: production
route: chat
targets:
  - name: alpha
    base_url: https://provider.example/v1/
    api_key_env: ALPHA_KEY
    format: responses
    account: team-a
    models: [small, large]
    connect_timeout_s: 0.5
  - name: beta
    base_url: http://127.0.0.1:8000/v1
    format: chat_completions
    models: [large]
    down: true
    idle_timeout_s: 60
    max_tokens_field: max_tokens
models:
  - name: auto
    policy: weighted
    targets: [{{target: alpha, model: large, weight: 3}}, {{target: beta, model: b-large}}]
  - name: small
    policy: first_healthy
    targets: [{{target: alpha, model: tiny}}]
    forwards_unknown: false
keys:
  - {{sha256: {ALICE}, principal: alice}}
  - {{sha256: {BOB}, principal: bob}}
conversations: reject
state:
  backend: memory
  budget_mib: 512
  records_max: 10000
  ttl_s: 86400
  sliding: true
limits: {{body_mib_max: 8, replay_mib_max: 64, lease_s: 30, idempotency_wait_s: 0}}
"""
SMALL = """\
targets:
  - {name: alpha, base_url: "http://localhost/v1", format: responses, models: [small]}
"""


def read(directory: Path, content: str, environ: dict[str, str] | None = None) -> GatewayConfig:
    path = directory / "gateway.yaml"
    path.write_text(content)
    return GatewayConfig.from_file(path, ENVIRON if environ is None else environ)


def changed(old: str, new: str) -> str:
    assert FULL.count(old) == 1, "a test changes one place"
    return FULL.replace(old, new)


def test_full_file_means_what_it_says(tmp_path: Path) -> None:
    config = read(tmp_path, FULL)
    assert (config.namespace, config.route) == ("production", "chat")
    assert config.targets == {
        "alpha": TargetConfig(
            name="alpha",
            base_url="https://provider.example/v1",
            api_key="sk-alpha",
            format=TargetFormat.RESPONSES,
            account="team-a",
            models=("small", "large"),
            connect_timeout_s=0.5,
        ),
        "beta": TargetConfig(
            name="beta",
            base_url="http://127.0.0.1:8000/v1",
            format=TargetFormat.CHAT_COMPLETIONS,
            models=("large",),
            down=True,
            idle_timeout_s=60.0,
            max_tokens_field="max_tokens",
        ),
    }
    alpha, beta = "alpha", "beta"
    assert config.routes["auto"] == RouteConfig(
        model="auto",
        policy=RoutePolicy.WEIGHTED,
        targets=(
            RouteTarget(target=alpha, model="large", weight=3),
            RouteTarget(target=beta, model="b-large", weight=1),
        ),
    )
    assert config.keys == (
        KeyConfig(sha256=bytes.fromhex(ALICE), principal="alice"),
        KeyConfig(sha256=bytes.fromhex(BOB), principal="bob"),
    )
    assert config.principals == ("alice", "bob")
    assert config.conversations is ConversationPolicy.REJECT
    assert config.state == StateConfig(
        backend=StateBackend.MEMORY, budget_mib=512, records_max=10_000, ttl_s=86_400, is_sliding=True
    )
    assert config.limits == LimitsConfig(body_mib_max=8, replay_mib_max=64, lease_s=30, idempotency_wait_s=0)


def test_small_file_has_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, SMALL)
    assert (config.namespace, config.route, config.principals, config.keys) == ("default", "default", ("local",), ())
    assert config.state == StateConfig(backend=StateBackend.EMBEDDED)
    assert config.limits == LimitsConfig(body_mib_max=16, replay_mib_max=32, lease_s=15, idempotency_wait_s=120)
    assert config.conversations is ConversationPolicy.LAST_WRITE
    target = config.targets["alpha"]
    assert (target.api_key, target.account, target.down) == (None, "", False)
    assert (target.connect_timeout_s, target.idle_timeout_s) == (5.0, 600.0)
    assert target.max_tokens_field == "max_completion_tokens"


def test_model_that_several_targets_list_is_shared_equally(tmp_path: Path) -> None:
    assert read(tmp_path, FULL).routes["large"] == RouteConfig(
        model="large",
        policy=RoutePolicy.WEIGHTED,
        targets=(RouteTarget(target="alpha", model="large"), RouteTarget(target="beta", model="large")),
    )


def test_explicit_route_replaces_a_listed_model(tmp_path: Path) -> None:
    assert read(tmp_path, FULL).routes["small"].targets == (RouteTarget(target="alpha", model="tiny"),)


def test_secret_is_not_shown(tmp_path: Path) -> None:
    assert "sk-alpha" not in repr(read(tmp_path, FULL))


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("namespace: production", "namespaces: production", 1, "namespaces: is not known; there are conversations, "),
        ("route: chat", "route: 7", 2, "route: must be a text"),
        ("name: alpha", "name: ledger", 4, "targets[0].name: is what the ledger calls itself"),
        ("name: alpha", f"name: {'a' * 129}", 4, "targets[0].name: has 129 bytes; at most 128"),
        ("name: beta", "name: alpha", 11, "targets[1].name: is the name of an earlier target"),
        ("https://provider.example/v1/", "ftp://h/v1", 5, "targets[0].base_url: must be an http or https URL"),
        ("https://provider.example/v1/", "https:///v1", 5, "targets[0].base_url: must be an http or https URL"),
        ("https://provider.example/v1/", "provider.example", 5, "targets[0].base_url: must be an http or https URL"),
        ("https://provider.example/v1/", "https://h:99999/", 5, "targets[0].base_url: must be an http or https URL"),
        ("https://provider.example/v1/", '"https://[::1/v1"', 5, "targets[0].base_url: must be an http or https URL"),
        ("https://provider.example/v1/", "https://h/v1?a=b", 5, "targets[0].base_url: must have no query"),
        ("https://provider.example/v1/", '"https://h/v1#a"', 5, "targets[0].base_url: must have no query"),
        ("https://provider.example/v1/", "https://u:p@h/v1", 5, "targets[0].base_url: must have no user and password"),
        ("https://provider.example/v1/", "https://h/v 1", 5, "targets[0].base_url: must have only visible ASCII"),
        ("ALPHA_KEY", "BETA_KEY", 6, "targets[0].api_key_env: the environment variable of this name is not set"),
        ("ALPHA_KEY", "EMPTY", 6, "targets[0].api_key_env: the environment variable of this name is not set"),
        ("ALPHA_KEY", "BROKEN_KEY", 6, "targets[0].api_key_env: the environment variable of this name has characters"),
        ("ALPHA_KEY", "sk-alpha", 6, "targets[0].api_key_env: must be the name of an environment variable"),
        ("format: responses", "format: messages", 7, "targets[0].format: must be one of responses, chat_completions"),
        ("account: team-a", "api_key: sk", 8, "targets[0].api_key: is not known"),
        ("[small, large]", "[small, small]", 9, "targets[0].models[1]: is given twice"),
        ("connect_timeout_s: 0.5", "connect_timeout_s: 0.09", 10, "targets[0].connect_timeout_s: must be a number"),
        ("connect_timeout_s: 0.5", "connect_timeout_s: 301", 10, "targets[0].connect_timeout_s: must be a number"),
        ("connect_timeout_s: 0.5", "max_tokens_field: max_tokens", 10, "targets[0].max_tokens_field: is for the"),
        ("down: true", "down: yes", 15, "targets[1].down: must be true or false"),
        ("idle_timeout_s: 60", "idle_timeout_s: 7201", 16, "targets[1].idle_timeout_s: must be a number from 0.1"),
        ("max_tokens_field: max_tokens", "max_tokens_field: n", 17, "targets[1].max_tokens_field: must be one of"),
        ("policy: weighted", "policy: random", 20, "models[0].policy: must be one of weighted, first_healthy"),
        (
            "target: beta, ",
            "target: gamma, ",
            21,
            "models[0].targets[1].target: is not a target; there are alpha, beta",
        ),
        ("target: beta, ", "target: alpha, ", 21, "models[0].targets[1].target: is in this route already"),
        ("weight: 3", "weight: 0", 21, "models[0].targets[0].weight: must be an integer from 1 to 1000"),
        ("weight: 3", "weight: 1001", 21, "models[0].targets[0].weight: must be an integer from 1 to 1000"),
        (", model: b-large", "", 21, "models[0].targets[1].model: is missing"),
        ("model: tiny", "model: tiny, weight: 2", 24, "models[1].targets[0].weight: is for the policy weighted only"),
        ("name: small", "name: auto", 22, "models[1].name: is the name of an earlier model"),
        ("unknown: false", "unknown: true", 25, "models[1].forwards_unknown: is for one principal only"),
        (f"sha256: {BOB}", f"sha256: {ALICE}", 28, "keys[1].sha256: is the digest of an earlier key"),
        (f"sha256: {BOB}", "sha256: bb", 28, "keys[1].sha256: must be 64 lower-case hexadecimal digits"),
        ("principal: bob", 'principal: ""', 28, "keys[1].principal: must not be empty"),
        ("conversations: reject", "conversations: queue", 29, "conversations: must be one of last_write, reject"),
        ("backend: memory", "backend: disk", 31, "state.backend: must be one of off, memory, embedded, kafka"),
        ("backend: memory", "backend: kafka", 32, "state.budget_mib: is for the backends memory and embedded, not"),
        ("budget_mib: 512", "budget_mib: 0", 32, "state.budget_mib: must be an integer from 1 to 1048576"),
        ("budget_mib: 512", "budget_mib: 1048577", 32, "state.budget_mib: must be an integer from 1 to 1048576"),
        ("budget_mib: 512", "budget_mib: 1", 27, "keys: has 2 principals, who share state.budget_mib, which is 1"),
        ("records_max: 10000", "records_max: 1", 27, "keys: has 2 principals, who share state.records_max, which is 1"),
        ("records_max: 10000", "records_max: 0", 33, "state.records_max: must be an integer from 1 to 100000000"),
        ("ttl_s: 86400", "ttl_s: 0", 34, "state.ttl_s: must be an integer from 1 to 3162240000"),
        ("sliding: true", "sliding: 1", 35, "state.sliding: must be true or false"),
        ("body_mib_max: 8", "body_mib_max: 65", 36, "limits.body_mib_max: must be an integer from 1 to 64"),
        ("replay_mib_max: 64", "replay_mib_max: 513", 36, "limits.replay_mib_max: must be an integer from 1 to 512"),
        ("lease_s: 30", "lease_s: 2", 36, "limits.lease_s: must be an integer from 3 to 3600"),
        ("wait_s: 0", "wait_s: 3601", 36, "limits.idempotency_wait_s: must be an integer from 0 to 3600"),
        ("wait_s: 0", "wait_s: 0, more: 1", 36, "limits.more: is not known"),
    ],
)
def test_wrong_file_is_refused_by_line_and_field(tmp_path: Path, old: str, new: str, line: int, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(tmp_path, changed(old, new))
    assert refused.value.field == "config"
    assert refused.value.reason.startswith(f"{tmp_path / 'gateway.yaml'}:{line}: {says}")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("weight: 3", "weight: 1"),
        ("weight: 3", "weight: 1000"),
        ("connect_timeout_s: 0.5", "connect_timeout_s: 0.1"),
        ("connect_timeout_s: 0.5", "connect_timeout_s: 300"),
        ("idle_timeout_s: 60", "idle_timeout_s: 7200"),
        ("budget_mib: 512", "budget_mib: 2"),
        ("budget_mib: 512", "budget_mib: 1048576"),
        ("records_max: 10000", "records_max: 2"),
        ("ttl_s: 86400", "ttl_s: 1"),
        ("ttl_s: 86400", "ttl_s: 3162240000"),
        ("body_mib_max: 8", "body_mib_max: 64"),
        ("replay_mib_max: 64", "replay_mib_max: 512"),
        ("lease_s: 30", "lease_s: 3"),
        ("wait_s: 0", "wait_s: 3600"),
        ("name: alpha\n    base_url: https://provider.example/v1/", f"name: {'a' * 128}\n    base_url: http://h"),
    ],
)
def test_value_at_its_bound_is_taken(tmp_path: Path, old: str, new: str) -> None:
    content = changed(old, new)
    if "a" * 128 in content:
        content = content.replace("target: alpha", f"target: {'a' * 128}")
    policy = read(tmp_path, content).policy()
    assert policy is not None
    check(policy)


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        ("", 1, "targets: is missing"),
        ("targets: []\n", 1, "targets: must be a list with at least one entry"),
        (SMALL.replace(", models: [small]", ""), 2, "targets: lists no models, and there is no field models"),
        (
            "state: {backend: off, ttl_s: 1}\n" + SMALL,
            1,
            "state.ttl_s: is for the backends memory and embedded, not off",
        ),
    ],
)
def test_incomplete_file_is_refused(tmp_path: Path, content: str, line: int, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(tmp_path, content)
    assert refused.value.reason.startswith(f"{tmp_path / 'gateway.yaml'}:{line}: {says}")


def test_unknown_ids_are_forwarded_only_where_they_can_be_nobody_elses(tmp_path: Path) -> None:
    route = "models: [{name: auto, targets: [{target: alpha, model: m}%s], forwards_unknown: true}]\n"
    beta = '  - {name: beta, base_url: "http://localhost/v1", format: chat_completions}\n'
    one = f"keys: [{{sha256: {ALICE}, principal: alice}}, {{sha256: {BOB}, principal: alice}}]\n"
    for content in (SMALL + route % "", SMALL + beta + route % "", SMALL + route % "" + one):
        assert read(tmp_path, content).routes["auto"].forwards_unknown
    with pytest.raises(InvalidInput, match=r"needs the format responses on every target of the route"):
        read(tmp_path, SMALL + beta + route % ", {target: beta, model: m}")


def test_environment_goes_before_the_file(tmp_path: Path) -> None:
    environ = {
        "ALPHA_KEY": "sk-alpha",
        "TURNLEDGER_STATE_BACKEND": "embedded",
        "TURNLEDGER_STATE_BUDGET_MIB": "64",
        "TURNLEDGER_STATE_SLIDING": "false",
        "TURNLEDGER_LIMITS_LEASE_S": "20",
    }
    config = read(tmp_path, FULL, environ)
    assert config.state == StateConfig(
        backend=StateBackend.EMBEDDED, budget_mib=64, records_max=10_000, ttl_s=86_400, is_sliding=False
    )
    assert config.limits == LimitsConfig(body_mib_max=8, replay_mib_max=64, lease_s=20, idempotency_wait_s=0)
    assert read(tmp_path, SMALL, {"TURNLEDGER_STATE_BACKEND": "off"}).state == StateConfig(backend=StateBackend.OFF)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("TURNLEDGER_STATE_BACKEND", "disk", "must be one of off, memory, embedded, kafka"),
        ("TURNLEDGER_STATE_BUDGET_MIB", "much", "must be an integer from 1 to 1048576"),
        ("TURNLEDGER_STATE_SLIDING", "1", "must be true or false"),
        ("TURNLEDGER_LIMITS_BODY_MIB_MAX", "", "must be an integer from 1 to 64"),
    ],
)
def test_wrong_variable_is_refused_by_its_name(tmp_path: Path, variable: str, value: str, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(tmp_path, FULL, ENVIRON | {variable: value})
    assert refused.value.reason == f"{variable}: {says}"


def test_bound_from_the_environment_is_refused_where_the_policy_is_in_the_log(tmp_path: Path) -> None:
    environ = {"TURNLEDGER_STATE_TTL_S": "60", "TURNLEDGER_STATE_BACKEND": "kafka"}
    with pytest.raises(InvalidInput, match=r"config: TURNLEDGER_STATE_TTL_S: .*turnledger policy set"):
        read(tmp_path, SMALL, environ)


def test_state_is_on_kafka_where_a_bootstrap_is_configured(tmp_path: Path) -> None:
    environ = {"TURNLEDGER_KAFKA_BOOTSTRAP": "localhost:9092"}
    assert read(tmp_path, SMALL, environ).state.backend is StateBackend.KAFKA
    content = "state: {backend: embedded}\n" + SMALL
    assert read(tmp_path, content, environ).state.backend is StateBackend.EMBEDDED


def config_with(state: StateConfig, principals: int = 1) -> GatewayConfig:
    keys = tuple(KeyConfig(sha256=bytes([number]) * 32, principal=f"p{number}") for number in range(principals))
    return GatewayConfig(targets={}, routes={}, keys=keys, state=state)


@pytest.mark.parametrize("principals", [1, 3])
@pytest.mark.parametrize("backend", [StateBackend.MEMORY, StateBackend.EMBEDDED])
def test_budget_is_the_whole_processs(backend: StateBackend, principals: int) -> None:
    state = StateConfig(backend=backend, budget_mib=10, records_max=100, ttl_s=60, is_sliding=True)
    policy = config_with(state, principals).policy()
    assert policy is not None
    for share, whole in ((policy.principal_bytes_max, 10 * MIB), (policy.principal_records_max, 100)):
        assert share * principals <= whole < (share + 1) * principals
    assert policy.lineage_bytes_max == policy.principal_bytes_max
    assert (policy.active_ttl_ms, policy.sliding) == (60_000, True)
    check(policy)


@pytest.mark.parametrize(("over", "lineage_mib"), [(-1, 511), (0, 512), (1, 512)])
def test_lineage_never_exceeds_its_principal(over: int, lineage_mib: int) -> None:
    default_mib = Policy().lineage_bytes_max // MIB
    policy = config_with(StateConfig(backend=StateBackend.EMBEDDED, budget_mib=default_mib + over)).policy()
    assert policy is not None
    assert policy.lineage_bytes_max == lineage_mib * MIB


def test_state_in_memory_is_bounded_even_when_nothing_is_configured() -> None:
    policy = config_with(StateConfig(backend=StateBackend.MEMORY)).policy()
    assert policy is not None
    assert policy.principal_bytes_max == MEMORY_BUDGET_MIB * MIB
    assert policy.principal_records_max == MEMORY_RECORDS_MAX
    assert policy.event_window_max_ms == MEMORY_EVENT_WINDOW_MS
    check(policy)


@pytest.mark.parametrize("backend", [StateBackend.OFF, StateBackend.KAFKA, StateBackend.EMBEDDED])
def test_without_bounds_the_log_has_its_own_policy(backend: StateBackend) -> None:
    assert config_with(StateConfig(backend=backend)).policy() is None


def test_what_is_not_configured_stays_as_it_is_in_an_existing_ledger() -> None:
    current = Policy(commit_grace_ms=HOUR_MS, principal_records_max=7)
    policy = config_with(StateConfig(backend=StateBackend.EMBEDDED, ttl_s=60)).policy(current)
    assert policy is not None
    assert (policy.active_ttl_ms, policy.commit_grace_ms, policy.principal_records_max) == (60_000, HOUR_MS, 7)
