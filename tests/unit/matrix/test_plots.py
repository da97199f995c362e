"""The pictures of a report: one for each question, in the page's own ink."""

from typing import Any

import pytest

from penstock.matrix.plots import plots, ready
from penstock.matrix.summary import METRICS


def row(label: str, factor: float) -> dict[str, Any]:
    figure = {"median": factor, "low": factor, "high": factor, "rounds": [factor]}
    return {"label": label, "figures": dict.fromkeys(METRICS, figure)}


@pytest.mark.slow
def test_each_picture_names_every_row_that_was_measured() -> None:
    report = {"rows": [row("mmap sync", 2.0), row("file async", 3.0), {"label": "failed", "figures": {}}]}  # fmt: skip
    made = plots(report)
    assert [title for title, _, _ in made] == [
        "Throughput", "Latency of one put", "Durable puts", "After a kill", "Memory", "Disk",
    ]  # fmt: skip
    for _, about, svg in made:
        assert about
        assert svg.startswith("<svg")
        assert "mmap sync" in svg
        assert "failed" not in svg
        assert "#123456" not in svg, "the ink is the page's"


def test_without_figures_there_is_nothing_to_draw() -> None:
    assert plots({"rows": []}) == []
    assert plots({"rows": [{"label": "x", "figures": {}}]}) == []
    assert ready.__doc__
