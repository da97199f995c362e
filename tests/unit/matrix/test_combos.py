"""Every combination of installed strategies, and what an answer under it is worth."""

import tomllib
from pathlib import Path

import pytest
from tests.conftest import InstallPlugin

import penstock
from penstock.errors import ConfigError
from penstock.matrix.combos import Combo, combinations, promise
from penstock.matrix.measure import MeasurePlan
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


def test_every_combination_is_in_it_a_third_partys_too(install_plugin: InstallPlugin) -> None:
    assert len(combinations(REGISTRY)) == 3 * 3 * 3 * 2
    install_plugin(
        "penstock-never",
        """
        from penstock import FlushPolicy, hookimpl
        class Never(FlushPolicy):
            "Never."
            name = "never"
            def after_append(self, end_offset): pass
        @hookimpl
        def penstock_register_flush(): return [Never]
    """,
    )
    registry = load_registry()
    found = combinations(registry, [("flush", "never"), ("write", "mmap"), ("write", "file")])
    assert len(found) == 2 * 3 * 1 * 2
    assert {combo.flush for combo in found} == {"never"}
    with pytest.raises(
        ConfigError, match="there is no flush named 'nevr'; installed: async, never"
    ):
        combinations(registry, [("flush", "nevr")])
    with pytest.raises(ConfigError, match="kinds: write, alloc, flush, feed"):
        combinations(registry, [("flsh", "never")])


def test_what_an_answer_is_worth() -> None:
    def worth(write: str, flush: str) -> tuple[str, ...]:
        return promise(Combo(write, "on-demand", flush, "follow"), REGISTRY)

    assert worth("mmap", "sync") == ("on disk", "nothing acknowledged", "nothing acknowledged")
    assert worth("file", "async")[:2] == ("in the page cache", "nothing acknowledged")
    assert worth("transient-pool", "none")[0] == "in the process's memory"
    assert "not committed" in worth("transient-pool", "none")[1]


@pytest.mark.slow
def test_configurations_to_paste_open_a_store(report: Report, tmp_path: Path) -> None:
    for number, name in enumerate(sorted(set(report["best"].values()))):
        row = next(row for row in report["rows"] if row["label"] == name)
        path = tmp_path / f"{number}.toml"
        path.write_text(row["config"])
        assert tomllib.loads(row["config"])["index"]["feed"] == row["feed"]
        with penstock.open(tmp_path / str(number), path, environ={}) as store:
            assert store.stats()["strategies"]["write"]["name"] == row["write"]


def test_a_configuration_has_the_settings_that_mean_something_with_it() -> None:
    settings = {
        "profile": "embedded", "log.checksum": 'odd "\u00fc"', "index.use": ["consume-queue"],
        "write.transient-pool.buffers": 2, "flush.async.interval_ms": 7, "alloc.recycle.spares": 1,
    }  # fmt: skip
    assert tomllib.loads(PLAIN.toml(settings)) == {
        "profile": "embedded", "log": {"checksum": 'odd "\u00fc"'}, "write": {"use": "mmap"},
        "alloc": {"use": "on-demand"}, "flush": {"use": "async", "async": {"interval_ms": 7}},
        "index": {"use": ["consume-queue"], "feed": "follow"},
    }  # fmt: skip
    assert PLAIN.toml().startswith('[write]\nuse = "mmap"\n\n[alloc]')
