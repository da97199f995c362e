"""`penstock matrix`: which combinations there are, what is measured of each, and what report and page say."""

import json
import mmap
import os
from pathlib import Path

import pytest
from tests.conftest import InstallPlugin

import penstock
from penstock.errors import ConfigError
from penstock.plugins.registry import load_registry
from penstock_tools.matrix.measure import MeasurePlan, Subject, open_store, own_kib
from penstock_tools.matrix.report import (
    METRICS,
    Combo,
    Report,
    RunOutcome,
    combinations,
    make_report,
    promise,
    run,
)

REGISTRY = load_registry()
PLAIN = Combo("mmap", "on-demand", "async")
TINY = MeasurePlan(
    body=200, batch=50, sync_threads=2, seconds=0.005, rounds=2, segment_bytes=256 << 10
)


def outcome(scale: float, combo: Combo = PLAIN) -> RunOutcome:
    """Return three rounds of made-up figures: rates grow and times shrink with `scale`."""
    return RunOutcome(combo, [
        {
            name: 1000 * part * scale if better == "higher" else 1000 / (part * scale)
            for name, (_, _, better) in METRICS.items()
        }
        for part in (0.9, 1.0, 1.2)
    ])  # fmt: skip


@pytest.fixture(scope="module")
def report() -> Report:
    """Return a report of all combinations with figures that are known; one has failed."""
    outcomes, refused = [], []
    for combo in combinations(REGISTRY):
        if reason := combo.conflict(REGISTRY):
            refused.append((combo, reason))
        else:
            scale = (2 if combo.alloc == "recycle" else 1) * (3 if combo.write == "file" else 1)
            outcomes.append(outcome(scale, combo))
    failed = next(each for each in outcomes if each.combo == PLAIN._replace(write="file"))
    failed.rounds.clear()
    failed.failure = "its process <b>ended</b>"
    plan = MeasurePlan(rounds=3)
    return make_report(outcomes, refused, plan, REGISTRY, folder=Path(), seconds=7)


# --- which combinations, and what they promise


def test_every_combination_is_in_it_a_third_partys_too(install_plugin: InstallPlugin) -> None:
    assert len(combinations(REGISTRY)) == 3 * 3 * 3
    install_plugin(
        "penstock-never",
        """
        from penstock import FlushPolicy, hookimpl
        class Never(FlushPolicy):
            "Never."
            name = "never"
        @hookimpl
        def penstock_register_flush(): return [Never]
    """,
    )
    registry = load_registry()
    found = combinations(registry, [("flush", "never"), ("write", "mmap"), ("write", "file")])
    assert {(combo.write, combo.flush) for combo in found} == {("mmap", "never"), ("file", "never")}
    assert len(found) == 2 * 3
    with pytest.raises(ConfigError, match="no flush named 'nevr'; installed: async, never"):
        combinations(registry, [("flush", "nevr")])
    with pytest.raises(ConfigError, match="kinds: write, alloc, flush"):
        combinations(registry, [("flsh", "never")])


def test_what_an_answer_is_worth() -> None:
    def worth(write: str, flush: str) -> tuple[str, ...]:
        return promise(Combo(write, "on-demand", flush), REGISTRY)

    assert worth("mmap", "sync") == ("on disk", "nothing acknowledged", "nothing acknowledged")
    assert worth("file", "async")[:2] == ("in the page cache", "nothing acknowledged")
    assert worth("transient-pool", "none")[0] == "in the process's memory"
    assert "not committed" in worth("transient-pool", "none")[1]


def test_a_configuration_to_paste_opens_the_combination(report: Report, tmp_path: Path) -> None:
    best = report["best"]["throughput"]
    row = next(row for row in report["rows"] if row["label"] == best)
    (tmp_path / "best.toml").write_text(row["config"])
    with penstock.open(tmp_path / "s", tmp_path / "best.toml", environ={}) as store:
        assert store.stats()["strategies"]["write"]["name"] == row["write"]


# --- what is measured


@pytest.mark.slow
@pytest.mark.parametrize("flush", REGISTRY.flush_policies.names())
def test_recycling_recycles_before_it_is_measured(flush: str, tmp_path: Path) -> None:
    settings = {"alloc": "recycle", "flush": flush}
    with open_store(str(tmp_path / "s"), settings, TINY) as store:
        Subject(store, TINY).warm_up()
        assert store.stats()["strategies"]["alloc"]["segments_recycled"] > 0
        assert store.stats()["segments"] <= 4


def test_memory_that_belongs_to_no_file_is_counted() -> None:
    data = os.urandom(1 << 20) * 32
    before = own_kib()
    private = mmap.mmap(-1, len(data), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    shared = mmap.mmap(-1, len(data))
    private[:] = shared[:] = data
    grown = own_kib() - before
    private.close()
    shared.close()
    assert 64 << 10 <= grown < 80 << 10


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
        work, [PLAIN._replace(flush=name) for name in names], TINY,
        on_progress=lambda outcome: told.append(outcome.combo.flush),
    )  # fmt: skip
    assert dies.failure == "the measuring process ended without an answer: killed by SIGTERM"
    assert raises.failure is not None
    assert raises.failure.startswith("StoreFailedError: ")
    assert "flush policy 'raises' failed" in raises.failure
    assert "no such thing" in raises.failure
    assert refuses.failure == "ConfigError: not on a Monday"
    assert len(fine.rounds) == 2
    assert sorted(told) == sorted(names * 2)
    assert list(work.iterdir()) == []


# --- the report and its page


def test_medians_spread_and_bests(report: Report) -> None:
    rows = {row["label"]: row for row in report["rows"]}
    plain = rows[PLAIN.label]["figures"]["put_per_s"]
    assert (plain["low"], plain["median"], plain["high"]) == (900, 1000, 1200)
    assert rows[report["best"]["throughput"]]["figures"]["put_per_s"]["median"] == 6000
    assert rows[report["best"]["durability"]]["acknowledged"] == "on disk"
    assert {row["label"] for row in report["refused"]}.isdisjoint(rows)
    assert "Linux" in report["machine"]["system"]
    assert json.loads(json.dumps(report)) == report
