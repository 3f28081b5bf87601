"""Which target of a route gets a request that no state pins: deterministic, from configuration and passive health.

Rules it keeps:

- a target that is configured down is never chosen;
- a target that just failed rests for ``REST_S``, unless all rest: then the one whose failure is longest ago is tried,
  because a refusal would be certain and this is not;
- *weighted* interleaves the targets by their weights (smooth weighted round robin, as nginx does it): 3 to 1 is a, a,
  b, a and not a, a, a, b. *First healthy* takes the first;
- a preferred target, which may have the history in its prefix cache, goes before the policy and does not count in it.

Health is this process's own: it is only a guess about the next call, so replicas need not agree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from api.gateway.config import GatewayConfig, RouteConfig, RoutePolicy, RouteTarget
from ledger.continuation import Target, target_digest
from ledger.refusal import Refusal

REST_S = 10.0
"""Long enough that a dead target costs few requests their first attempt, short enough that a restarted one is back
before anybody looks."""
DOWN_REASON = "in the configuration"


class Routing:
    """The routes of one process, and how its targets have done lately."""

    def __init__(self, config: GatewayConfig, *, now_s: Callable[[], float]) -> None:
        """``now_s`` is a monotonic clock."""
        self._now_s = now_s
        self._routes = config.routes
        self._targets = {
            target.name: Target(
                name=target.name,
                digest=target_digest(target.base_url, target.account, target.format),
                down=DOWN_REASON if target.down else None,
            )
            for target in config.targets.values()
        }
        self._failed_at_s: dict[str, float] = {}
        self._turns: dict[str, dict[str, int]] = {}
        """Per model and target: how far its next turn has come."""

    def route(self, model: str) -> RouteConfig:
        """Return the route of a model that a client named. Raises ``Refusal``."""
        route = self._routes.get(model)
        if route is None:
            message = "The model does not exist here; GET /v1/models lists those that do."
            raise Refusal(404, message, code="model_not_found", param="model", reason="model_not_found")
        return route

    def choose(self, route: RouteConfig, *, prefer: str | None = None, without: Collection[str] = ()) -> RouteTarget:
        """Return where to send a request that no state pins; ``without`` are those that it has failed on already.

        Raises ``Refusal``: 503 ``no_target``, with the reason ``all_down`` or ``all_failed``.
        """
        up = [way for way in route.targets if self._targets[way.target].down is None]
        left = [way for way in up if way.target not in without]
        if not left:
            message = "Every target of this model is marked down." if not up else "Every target of this model failed."
            raise Refusal(503, message, code="no_target", reason="all_failed" if up else "all_down")
        healthy = [way for way in left if not self._rests(way.target)]
        if not healthy:
            return min(left, key=lambda way: self._failed_at_s[way.target])
        for way in healthy:
            if way.target == prefer:
                return way
        match route.policy:
            case RoutePolicy.FIRST_HEALTHY:
                return healthy[0]
            case RoutePolicy.WEIGHTED:
                return self._next_by_weight(route.model, healthy)

    def of_target(self, route: RouteConfig, name: str) -> RouteTarget:
        """Return the route's way to the target that owns the state. Raises ``Refusal`` when it has none."""
        for way in route.targets:
            if way.target == name:
                return way
        message = "The target that holds this state does not serve this model, and no other target can continue it."
        raise Refusal(400, message, code="model_not_at_owner", param="model", reason="model_not_at_owner")

    def failed(self, name: str) -> None:
        """Take note that a target did not answer as it should."""
        self._failed_at_s[name] = self._now_s()

    def succeeded(self, name: str) -> None:
        """Take note that a target answered."""
        self._failed_at_s.pop(name, None)

    def down_reason(self, name: str) -> str | None:
        """Return why a target must not be called at all; None: a pinned request may, even while it rests."""
        return self._targets[name].down

    def targets(self) -> Mapping[str, Target]:
        """Return every target as far as ownership goes, by name."""
        return self._targets

    def _rests(self, name: str) -> bool:
        failed_at_s = self._failed_at_s.get(name)
        return failed_at_s is not None and self._now_s() < failed_at_s + REST_S

    def _next_by_weight(self, model: str, ways: list[RouteTarget]) -> RouteTarget:
        turns = self._turns.setdefault(model, {})
        for way in ways:
            turns[way.target] = turns.get(way.target, 0) + way.weight
        chosen = max(ways, key=lambda way: turns[way.target])
        turns[chosen.target] -= sum(way.weight for way in ways)
        return chosen
