"""Which target gets a request: weights, order, rests, preferences, and what is refused."""

from __future__ import annotations

from collections import Counter

import pytest

from api.gateway.config import (
    GatewayConfig,
    RouteConfig,
    RoutePolicy,
    RouteTarget,
    StateBackend,
    StateConfig,
    TargetConfig,
    TargetFormat,
)
from api.gateway.routing import REST_S, Routing
from ledger.continuation import target_digest
from ledger.refusal import Refusal


class Clock:
    """A monotonic clock that a test puts forward."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def configured(policy: RoutePolicy, weights: dict[str, int], *, down: str = "") -> GatewayConfig:
    """Return a configuration with one route, ``auto``, to targets of these names."""
    targets = {
        name: TargetConfig(
            name=name, base_url=f"https://{name}.example/v1", format=TargetFormat.RESPONSES, down=name in down
        )
        for name in weights
    }
    ways = tuple(RouteTarget(target=name, model=f"m-{name}", weight=weight) for name, weight in weights.items())
    return GatewayConfig(
        targets=targets,
        routes={"auto": RouteConfig(model="auto", policy=policy, targets=ways)},
        state=StateConfig(backend=StateBackend.OFF),
    )


def routing_of(config: GatewayConfig, clock: Clock | None = None) -> tuple[Routing, RouteConfig]:
    routing = Routing(config, now_s=clock or Clock())
    return routing, routing.route("auto")


def chosen(routing: Routing, route: RouteConfig, count: int) -> str:
    return "".join(routing.choose(route).target for _ in range(count))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"a": 3, "b": 1}, "aabaaaba"),
        ({"a": 1, "b": 1, "c": 1}, "abcabc"),
        ({"a": 5, "b": 1, "c": 1}, "aabacaa"),
        ({"a": 1}, "aaa"),
    ],
)
def test_weights_interleave(weights: dict[str, int], expected: str) -> None:
    routing, route = routing_of(configured(RoutePolicy.WEIGHTED, weights))
    assert chosen(routing, route, len(expected)) == expected


def test_shares_are_exact_over_a_round() -> None:
    weights = {"a": 7, "b": 2, "c": 1}
    routing, route = routing_of(configured(RoutePolicy.WEIGHTED, weights))
    assert Counter(chosen(routing, route, 1_000)) == {name: weight * 100 for name, weight in weights.items()}


def test_first_healthy_takes_the_first_until_it_fails() -> None:
    clock = Clock()
    routing, route = routing_of(configured(RoutePolicy.FIRST_HEALTHY, {"a": 1, "b": 1, "c": 1}), clock)
    assert chosen(routing, route, 3) == "aaa"
    routing.failed("a")
    assert chosen(routing, route, 3) == "bbb"
    routing.failed("b")
    assert chosen(routing, route, 3) == "ccc"
    routing.succeeded("a")
    assert chosen(routing, route, 3) == "aaa"


@pytest.mark.parametrize(("after_s", "expected"), [(REST_S - 0.001, "b"), (REST_S, "a")])
def test_failed_target_rests_for_its_time(after_s: float, expected: str) -> None:
    clock = Clock()
    routing, route = routing_of(configured(RoutePolicy.FIRST_HEALTHY, {"a": 1, "b": 1}), clock)
    routing.failed("a")
    clock.now_s += after_s
    assert routing.choose(route).target == expected


def test_resting_target_has_no_share() -> None:
    routing, route = routing_of(configured(RoutePolicy.WEIGHTED, {"a": 2, "b": 1, "c": 1}))
    routing.failed("a")
    assert Counter(chosen(routing, route, 8)) == {"b": 4, "c": 4}


def test_when_all_rest_the_one_that_failed_longest_ago_is_tried() -> None:
    clock = Clock()
    for policy in RoutePolicy:
        routing, route = routing_of(configured(policy, {"a": 9, "b": 1, "c": 9}), clock)
        for name in ("b", "a", "c"):
            routing.failed(name)
            clock.now_s += 1
        assert routing.choose(route).target == "b"
        assert routing.choose(route, prefer="c").target == "b"
        assert routing.choose(route, without=["b"]).target == "a"


def test_down_target_is_never_chosen() -> None:
    routing, route = routing_of(configured(RoutePolicy.WEIGHTED, {"a": 9, "b": 1}, down="a"))
    assert chosen(routing, route, 3) == "bbb"
    assert routing.choose(route, prefer="a").target == "b"
    routing.failed("b")
    assert routing.choose(route).target == "b"
    with pytest.raises(Refusal) as refused:
        routing.choose(route, without=["b"])
    assert (refused.value.status, refused.value.code, refused.value.reason) == (503, "no_target", "all_failed")


def test_route_whose_targets_are_all_down_is_refused() -> None:
    routing, route = routing_of(configured(RoutePolicy.FIRST_HEALTHY, {"a": 1, "b": 1}, down="ab"))
    with pytest.raises(Refusal) as refused:
        routing.choose(route)
    assert (refused.value.status, refused.value.code, refused.value.reason) == (503, "no_target", "all_down")


def test_preferred_target_goes_before_the_policy() -> None:
    for policy in RoutePolicy:
        routing, route = routing_of(configured(policy, {"a": 3, "b": 1}))
        assert routing.choose(route, prefer="b") == RouteTarget(target="b", model="m-b", weight=1)
        assert routing.choose(route, prefer="elsewhere").target == "a"
        assert routing.choose(route, prefer="b", without=["b"]).target == "a"
        routing.failed("b")
        assert routing.choose(route, prefer="b").target == "a"


def test_preference_does_not_count_in_the_weights() -> None:
    routing, route = routing_of(configured(RoutePolicy.WEIGHTED, {"a": 3, "b": 1}))
    for _ in range(5):
        routing.choose(route, prefer="b")
    assert chosen(routing, route, 4) == "aaba"


def test_retry_takes_another_target() -> None:
    routing, route = routing_of(configured(RoutePolicy.WEIGHTED, {"a": 9, "b": 1, "c": 1}))
    assert {routing.choose(route, without=["a", "b"]).target for _ in range(3)} == {"c"}


def test_unknown_model_is_refused() -> None:
    routing, _ = routing_of(configured(RoutePolicy.WEIGHTED, {"a": 1}))
    with pytest.raises(Refusal) as refused:
        routing.route("none")
    assert (refused.value.status, refused.value.code, refused.value.param) == (404, "model_not_found", "model")


def test_owner_that_does_not_serve_the_model_is_refused() -> None:
    routing, route = routing_of(configured(RoutePolicy.WEIGHTED, {"a": 1, "b": 1}))
    assert routing.of_target(route, "b").model == "m-b"
    with pytest.raises(Refusal) as refused:
        routing.of_target(route, "c")
    assert (refused.value.status, refused.value.param) == (400, "model")


def test_pinned_request_may_go_to_a_resting_target_but_not_to_one_that_is_down() -> None:
    routing, _ = routing_of(configured(RoutePolicy.WEIGHTED, {"a": 1, "b": 1}, down="b"))
    routing.failed("a")
    assert routing.down_reason("a") is None
    assert routing.down_reason("b")


def test_targets_carry_endpoint_and_account_into_their_identity() -> None:
    routing, _ = routing_of(configured(RoutePolicy.WEIGHTED, {"a": 1, "b": 1}, down="b"))
    targets = routing.targets()
    assert targets["a"].digest == target_digest("https://a.example/v1", format="responses")
    assert targets["a"].digest != targets["b"].digest
    assert (targets["a"].down, targets["b"].down is not None) == (None, True)
