"""docs/benchmarks.md has the places that ``make bench`` writes to, and explains the gateway's rows."""

from __future__ import annotations

import math

import pytest

from benchmarks import gateway
from benchmarks.measure import added, bucket_quantile
from benchmarks.report import BEGIN, DOCS, END, GATEWAY_BEGIN, GATEWAY_END, gateway_tables

BUCKETS = [(0.001, 10.0), (0.002, 10.0), (0.003, 90.0), (math.inf, 100.0)]


@pytest.mark.parametrize(("begin", "end"), [(BEGIN, END), (GATEWAY_BEGIN, GATEWAY_END)])
def test_page_has_one_place_for_the_figures(begin: str, end: str) -> None:
    page = (DOCS / "benchmarks.md").read_text()
    assert (page.count(begin), page.count(end)) == (1, 1)
    assert page.index(begin) < page.index(end)


@pytest.mark.parametrize("kind", gateway.KINDS, ids=lambda kind: kind.name)
def test_page_explains_every_kind_of_request_through_the_gateway(kind: gateway.Kind) -> None:
    assert f"| {kind.name} |" in (DOCS / "benchmarks.md").read_text()


@pytest.mark.parametrize(
    ("q", "expected_s"),
    [(0.05, 0.0005), (0.1, 0.001), (0.5, 0.0025), (0.9, 0.003), (0.99, 0.003)],
    ids=["inside the first", "on a bound", "behind an empty one", "on the last bound", "above the last bound"],
)
def test_quantile_of_buckets_lies_on_the_line_between_their_bounds(q: float, expected_s: float) -> None:
    assert bucket_quantile(BUCKETS, q) == pytest.approx(expected_s)


def test_added_is_the_difference_of_medians_and_an_aim_is_reached_or_not() -> None:
    direct_s, gateway_s = [0.001, 0.002, 0.003], [0.004, 0.005, 0.006]
    name = f"{gateway.CONTINUATION}, 1 at once"
    row = added(name, "Kafka", direct_s, gateway_s, BUCKETS)
    assert row.added_p50_ms == pytest.approx(3.0)
    aims = gateway.aims([row])
    assert [aim.measured_ms for aim in aims] == pytest.approx([0.5, 2.5])
    assert [aim.is_reached for aim in aims] == [True, True]
    text = gateway_tables([row], aims, {"cores": "2"})
    assert f"| {name} | Kafka | 3 | 2.000 | 3.000 | 5.000 | 6.000 | 3.000 | 2.500 | 3.000 |" in text
    assert "held p50 | Kafka | 3.000 | 2.500 | reached |" in text
