"""The matrix: what is in it, what a report says, and the page that shows it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import InstallPlugin

import penstock
from penstock.errors import ConfigError
from penstock.matrix.combos import Combo, combinations, promise
from penstock.matrix.measure import Plan
from penstock.matrix.page import render
from penstock.matrix.run import Outcome
from penstock.matrix.summary import METRICS, Report, make_report
from penstock.registry import load_registry

REGISTRY = load_registry()
HEADINGS = ("Heat map", "What each choice changes", "Throughput", "Every figure", "Refused")


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
        outcomes.append(Outcome(combo, [figures(scale * part) for part in (0.9, 1.0, 1.2)]))
    outcomes[0].rounds.clear()
    outcomes[0].failure = "its process <b>ended</b>"
    return make_report(outcomes, refused, Plan(rounds=3), REGISTRY, folder=Path(), seconds=7)


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
    with pytest.raises(ConfigError, match="there is no flush called 'nevr'; async, never"):
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


def test_configurations_to_paste_open_a_store(report: Report, tmp_path: Path) -> None:
    for number, name in enumerate(sorted(set(report["best"].values()))):
        row = next(row for row in report["rows"] if row["label"] == name)
        path = tmp_path / f"{number}.toml"
        path.write_text(row["config"])
        assert tomllib.loads(row["config"])["index"]["feed"] == row["feed"]
        with penstock.open(tmp_path / str(number), path, environ={}) as store:
            assert store.stats()["strategies"]["write"]["name"] == row["write"]


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
    assert page.count("<svg") == 5
    assert "its process &lt;b&gt;ended&lt;/b&gt;" in page
    assert "<b>ended</b>" not in page.replace("its process <b>ended<\\/b>", "")


@pytest.fixture
def browser() -> str:
    """Return the path of a Chromium; skips, or fails in CI, where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("PENSTOCK_REQUIRE_CHROMIUM") == "1":
            pytest.fail("the page's test needs chromium")
        pytest.skip("the page's test needs chromium")
    return found


def look(browser: str, home: Path, url: str, *options: str) -> str:
    """Open a page in a headless browser."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               f"--user-data-dir={home}", *options, url]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def test_the_page_works_in_a_browser(report: Report, browser: str, tmp_path: Path) -> None:
    page = tmp_path / "m.html"
    page.write_text(render(report))
    shown = look(
        browser, tmp_path / "b", f"{page.as_uri()}#metric=put_p99_us&sort=put_per_s", "--dump-dom"
    )
    heat = shown[shown.index('id="heat"') :][: shown.index("</table>")]
    assert 'data-metric="put_p99_us"' in heat
    assert "color-mix" in heat
    assert "us, lower is better" in shown
    table = shown[shown.index('id="all"') :]
    assert 'aria-sort="ascending"' in table
    rates = [
        float(text)
        for text in re.findall(
            r"<tr><td>[^<]*</td><td[^>]*>[^<]*</td><td[^>]*data-value=\"([^\"]+)\"", table
        )
    ]
    assert len(rates) == len(report["rows"]) - 1
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]
    picture = tmp_path / "m.png"
    look(
        browser, tmp_path / "b", page.as_uri(), "--window-size=1280,1400", f"--screenshot={picture}"
    )
    from matplotlib.image import imread  # noqa: PLC0415 - an extra of this test only

    pixels = imread(picture)
    assert pixels.shape[:2] == (1400, 1280)
    assert pixels[..., :3].std() > 0.05, "not blank"


def test_the_verb_measures_and_writes_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "penstock", "matrix", str(tmp_path), "--only", "write=mmap",
               "--only", "alloc=recycle", "--only", "flush=sync", "--only", "feed=direct", "--quick",
               "--seconds", "0.02", "--body", "200", "--html", str(page), "--json"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    (row,) = report["rows"]
    assert row["failure"] is None
    assert row["acknowledged"] == "on disk"
    assert set(row["figures"]) == set(METRICS)
    for name, figure in row["figures"].items():
        assert len(figure["rounds"]) == 2, name
        assert figure["low"] <= figure["median"] <= figure["high"], name
        assert figure["median"] > 0 or name == "memory_mib", name
    assert report["plan"]["body"] == 200
    assert "mmap recycle sync direct" in page.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html"], "all is removed"


def test_a_setting_that_is_wrong_is_said_once(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "penstock",
        "matrix",
        str(tmp_path),
        "--set",
        "flush.asinc.x=1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no setting flush.asinc.x" in done.stderr
