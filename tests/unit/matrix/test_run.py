"""Rounds over all combinations: refusals, deaths, settings."""

from pathlib import Path
from typing import Any

import pytest
from tests.conftest import InstallPlugin

from penstock.matrix.combos import Combo, combinations
from penstock.matrix.measure import MeasurePlan
from penstock.matrix.page import render
from penstock.matrix.run import RunOutcome, run
from penstock.matrix.summary import METRICS, Report, make_report
from penstock.plugins.registry import load_registry

pytestmark = pytest.mark.slow


REGISTRY = load_registry()


PLAIN = Combo("mmap", "on-demand", "async", "follow")


TINY = MeasurePlan(
    body=200, batch=50, sync_threads=2, seconds=0.005, rounds=2, segment_bytes=256 << 10
)


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


def outcome(scale: float, combo: Combo = PLAIN, **more: Any) -> RunOutcome:
    return RunOutcome(combo, [figures(scale)], **more)


def report_of(*outcomes: RunOutcome) -> Report:
    return make_report(outcomes, [], MeasurePlan(rounds=1), REGISTRY, folder=Path(), seconds=1)


def test_what_a_store_refuses_at_open_is_no_row() -> None:
    third = PLAIN._replace(flush="none")
    report = report_of(outcome(1), RunOutcome(third, refusal="it makes no sense"))
    assert [row["label"] for row in report["rows"]] == [PLAIN.label]
    assert report["refused"] == [
        {"label": third.label, **third._asdict(), "reason": "it makes no sense"}
    ]
    assert "it makes no sense" in render(report)


@pytest.mark.slow
def test_one_process_that_dies_is_told_and_the_others_go_on(
    install_plugin: InstallPlugin, tmp_path: Path
) -> None:
    install_plugin(
        "penstock-bad",
        """
        import os, signal
        from penstock import FlushPolicy, hookimpl
        from penstock.errors import ConfigError
        class Dies(FlushPolicy):
            "Dies."
            name = "dies"
            def after_append(self, end_offset): os.kill(os.getpid(), signal.SIGTERM)
        class Raises(Dies):
            "Raises."
            name = "raises"
            def after_append(self, end_offset): raise ValueError("no such thing")
        class Refuses(Dies):
            "Refuses."
            name = "refuses"
            def __init__(self, options, context, flusher): raise ConfigError("not on a Monday")
        @hookimpl
        def penstock_register_flush(): return [Dies, Raises, Refuses]
    """,
    )
    work = tmp_path / "work"
    work.mkdir()
    names = ("dies", "raises", "refuses", "none")
    told: list[str] = []
    dies, raises, refuses, fine = run(
        work, [PLAIN._replace(flush=name) for name in names], TINY, settings={},
        on_progress=lambda outcome: told.append(outcome.combo.flush),
    )  # fmt: skip
    assert dies.failure == "the measuring process ended without an answer: killed by SIGTERM"
    assert raises.failure == "ValueError: no such thing"
    assert (refuses.failure, refuses.refusal) == (None, "not on a Monday")
    assert len(fine.rounds) == 2
    assert sorted(told) == sorted(names * 2)
    assert list(work.iterdir()) == []


@pytest.mark.slow
def test_a_combination_beats_a_setting_for_all(tmp_path: Path) -> None:
    settings = {"log.checksum": "crc32+record", "flush": "none"}
    plain, found = run(tmp_path, [PLAIN, PLAIN._replace(flush="sync")], TINY, settings=settings)
    assert found.failure is None
    waits, returns = (each.rounds[0]["put_p50_us"] for each in (found, plain))
    assert waits > 2 * returns, "a put that waits for the disk"
