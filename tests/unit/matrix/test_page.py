"""The matrix: what is in it, what is measured, what a report says, and the page that shows it."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from penstock.matrix.combos import Combo, combinations
from penstock.matrix.measure import MeasurePlan
from penstock.matrix.page import render
from penstock.matrix.run import RunOutcome
from penstock.matrix.summary import METRICS, Report, make_report
from penstock.plugins.registry import load_registry

REGISTRY = load_registry()
PLAIN = Combo("mmap", "on-demand", "async", "follow")
HEADINGS = ("Heat map", "What each choice changes", "Throughput", "Every figure", "Refused",
            "Memory", "Disk", "How it was measured")  # fmt: skip


def figures(scale: float) -> dict[str, float]:
    """Return made-up figures: rates grow and times shrink with `scale`."""
    return {
        name: 1000 * scale if better == "higher" else 1000 / scale
        for name, (_, _, better) in METRICS.items()
    }


@pytest.fixture(scope="module")
def report() -> Report:
    """Return a report of all combinations with figures that are known."""
    combos = [combo for combo in combinations(REGISTRY) if combo.conflict(REGISTRY) is None]
    refused = [(combo, str(combo.conflict(REGISTRY))) for combo in combinations(REGISTRY)
               if combo.conflict(REGISTRY) is not None]  # fmt: skip
    outcomes = []
    for combo in combos:
        scale = (2 if combo.alloc == "recycle" else 1) * (3 if combo.write == "file" else 1)
        outcomes.append(RunOutcome(combo, [figures(scale * part) for part in (0.9, 1.0, 1.2)]))
    outcomes[0].rounds.clear()
    outcomes[0].failure = "its process <b>ended</b>"
    return make_report(outcomes, refused, MeasurePlan(rounds=3), REGISTRY, folder=Path(), seconds=7)


def report_of(*outcomes: RunOutcome) -> Report:
    return make_report(outcomes, [], MeasurePlan(rounds=1), REGISTRY, folder=Path(), seconds=1)


def test_a_page_without_any_row_is_whole() -> None:
    page = render(report_of(RunOutcome(PLAIN, refusal="it makes no sense")))
    assert "it makes no sense" in page
    assert "<svg" not in page


# --- measuring


# --- the page


class Tags(HTMLParser):
    """Checks that elements close in order, and gathers what the page would load."""

    VOID = frozenset({"meta", "br", "path", "use", "line"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.loads += [
            value for name, value in attrs
            if name in ("src", "href", "xlink:href") and value and not value.startswith("#")
        ]  # fmt: skip

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [v for n, v in attrs if n == "src" and v]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.slow
def test_the_page_is_whole_and_loads_nothing(report: Report) -> None:
    page = render(report)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.loads == []
    assert not re.search(r"url\(\s*['\"]?https?:|@import|<link", page)
    for row in report["rows"]:
        assert page.count(row["label"]) >= 2
    for heading in HEADINGS:
        assert f"<h2>{heading}" in page
    assert page.count("<svg") == 6
    assert "its process &lt;b&gt;ended&lt;/b&gt;" in page
    assert "<b>ended</b>" not in page.replace("its process <b>ended<\\/b>", "")
