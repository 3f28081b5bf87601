"""docs/benchmarks.md has the place that ``make bench`` writes to."""

from __future__ import annotations

from benchmarks.report import BEGIN, DOCS, END


def test_page_has_one_place_for_the_figures() -> None:
    page = (DOCS / "benchmarks.md").read_text()
    assert (page.count(BEGIN), page.count(END)) == (1, 1)
    assert page.index(BEGIN) < page.index(END)
