"""One report from many rounds: medians, bests, effects."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.matrix.combos import Combo, combinations
from penstock.matrix.measure import MeasurePlan
from penstock.matrix.page import render
from penstock.matrix.run import RunOutcome
from penstock.matrix.summary import METRICS, Report, make_report
from penstock.plugins.registry import load_registry

REGISTRY = load_registry()


PLAIN = Combo("mmap", "on-demand", "async", "follow")


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


def test_medians_spread_bests_and_effects(report: Report) -> None:
    rows = {row["label"]: row for row in report["rows"]}
    plain = rows["mmap on-demand async follow"]["figures"]["put_per_s"]
    assert (plain["low"], plain["median"], plain["high"]) == (900, 1000, 1200)
    assert rows[report["best"]["throughput"]]["figures"]["put_per_s"]["median"] == 6000
    assert rows[report["best"]["durability"]]["acknowledged"] == "on disk"
    effects = {(e["name"], e["metric"]): e for e in report["effects"]}
    assert effects["recycle", "synced_mib_s"]["median"] == pytest.approx(2)
    assert effects["recycle", "synced_mib_s"]["pairs"] == 15, "one of the sixteen has no figures"
    assert effects["file", "put_p99_us"]["median"] == pytest.approx(1 / 3)
    assert effects["direct", "lag_ms"]["median"] == pytest.approx(1)
    assert "Linux" in report["machine"]["system"]
    assert json.loads(json.dumps(report)) == report


def outcome(scale: float, combo: Combo = PLAIN, **more: Any) -> RunOutcome:
    return RunOutcome(combo, [figures(scale)], **more)


def report_of(*outcomes: RunOutcome) -> Report:
    return make_report(outcomes, [], MeasurePlan(rounds=1), REGISTRY, folder=Path(), seconds=1)


@pytest.mark.slow
def test_an_effect_counts_only_where_all_pairs_agree() -> None:
    flushes = ("async", "none", "sync")
    rows = [outcome(1, PLAIN._replace(flush=flush)) for flush in flushes]
    same, better = (1.5, 0.9, 1.6), (1.5, 1.2, 1.6)
    for scales, verdict in ((same, "unclear"), (better, "best")):
        others = [
            outcome(scale, PLAIN._replace(flush=flush, alloc="recycle"))
            for scale, flush in zip(scales, flushes, strict=True)
        ]
        page = render(report_of(*rows, *others))
        (cell,) = re.findall(r'synced bytes, MiB/s</td><td class="(\w+)">', page)
        assert cell == verdict
        (time,) = re.findall(r'a sync of 1 MiB, ms</td><td class="(\w+)">', page)
        assert time == verdict, "less is better there"
