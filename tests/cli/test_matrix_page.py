"""`penstock matrix` as a user runs it, and its page in a browser, from a report that is fixed."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from penstock_tools.cli import root
from penstock_tools.matrix.measure import counts_writes
from penstock_tools.matrix.page import render
from penstock_tools.matrix.report import METRICS, Report, file_system

ONE = ("--only", "write=mmap", "--only", "alloc=on-demand", "--only", "flush=async", "--quick",
       "--seconds", "0.01", "--body", "200")  # fmt: skip


def row(label: str, put: float, p99: float) -> dict[str, Any]:
    """Return a row of a report; all metrics but two are the same in each."""
    write, alloc, flush = label.split()
    figures = {
        name: {"median": value, "low": value * 0.9, "high": value * 1.1, "rounds": [value]}
        for name in METRICS
        for value in ({"put_per_s": put, "put_p99_us": p99}.get(name, 10.0),)
    }
    return {
        "label": label, "write": write, "alloc": alloc, "flush": flush,
        "acknowledged": "in the page cache", "process_crash": "nothing acknowledged",
        "machine_crash": "what was not synced yet", "config": f'[write]\nuse = "{write}"\n',
        "failure": None, "figures": figures,
    }  # fmt: skip


@pytest.fixture
def fixed() -> Report:
    """Return a report as it is documented, through JSON."""
    fastest, slowest = "mmap on-demand none", "file recycle async"
    report = {
        "made": "2026-01-02T03:04:05+00:00", "seconds": 12.5, "machine": {"processor": "<slow> & old"},
        "plan": {"body": 1024, "threads": 1, "sync_threads": 4, "batch": 100, "seconds": 0.1,
                 "rounds": 1, "segment_bytes": 4 << 20},
        "metrics": {name: dict(zip(("title", "unit", "better"), about, strict=True))
                    for name, about in METRICS.items()},
        "rows": [row("mmap preallocate async", 700, 90), row(slowest, 300, 12),
                 row(fastest, 1500, 40)],
        "refused": [{"label": "pool recycle sync", "write": "pool", "alloc": "recycle",
                     "flush": "sync", "reason": "it would wait for nothing"}],
        "best": {"throughput": fastest, "p99": slowest},
    }  # fmt: skip
    found: Report = json.loads(json.dumps(report))
    return found


def look(browser: str, home: Path, url: str, *options: str) -> str:
    """Open a page in a headless browser."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               f"--user-data-dir={home}", *options, url]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


@pytest.fixture
def page(fixed: Report, tmp_path: Path) -> Path:
    """Return the page of the fixed report, as a file."""
    path = tmp_path / "m.html"
    path.write_text(render(fixed))
    return path


def test_a_page_comes_from_the_documented_report_alone(fixed: Report) -> None:
    text = render(fixed)
    for each in fixed["rows"]:
        assert text.count(each["label"]) >= 2
    assert "pool recycle sync" in text
    assert "it would wait for nothing" in text
    assert "&lt;slow&gt; &amp; old" in text
    assert not re.search(r"(src|href)=.https?:|url\(\s*['\"]?https?:|@import|<link", text)


@pytest.mark.night
def test_a_metric_can_be_picked(page: Path, browser: str, tmp_path: Path) -> None:
    plain, picked = (
        look(browser, tmp_path / "b", page.as_uri() + asked, "--dump-dom")
        for asked in ("", "#metric=put_p99_us")
    )
    assert 'data-metric="put_per_s"' in plain
    assert 'data-metric="put_p99_us"' in picked
    assert "us, lower is better" in picked
    shades = {
        label: int(shade)
        for shade, label in re.findall(
            r'style="[^"]*var\(--good\) (\d+)%[^"]*" title="([^":]+):', picked
        )
    }
    assert shades.pop("mmap preallocate async") == 8
    assert shades.pop("file recycle async") == 70
    assert 8 < shades.pop("mmap on-demand none") < 70
    heat = picked[picked.index('id="heat"') :]
    heat = heat[: heat.index("</table>")]
    assert heat.count(">refused<") == 1
    assert heat.count(">not measured<") == 4 * 3 - 3 - 1, "four by three cells"


@pytest.mark.night
def test_the_table_sorts(page: Path, browser: str, tmp_path: Path) -> None:
    def rates(asked: str) -> list[str]:
        shown = look(browser, tmp_path / "b", page.as_uri() + asked, "--dump-dom")
        table = shown[shown.index('id="all"') :]
        assert 'aria-sort="ascending"' in table or not asked
        return re.findall(
            r"<tr><td>[^<]*</td><td[^>]*>[^<]*</td><td[^>]*data-value=\"([^\"]+)\"", table
        )

    assert rates("") == ["700", "300", "1500"]
    assert rates("#sort=put_per_s") == ["300", "700", "1500"], "as numbers, not as texts"


@pytest.mark.night
@pytest.mark.parametrize("width", [500, 1280])
def test_a_picture_of_it_is_not_blank(page: Path, browser: str, tmp_path: Path, width: int) -> None:
    picture = tmp_path / "m.png"
    size = f"--window-size={width},1400"
    look(browser, tmp_path / "b", page.as_uri(), size, f"--screenshot={picture}")
    from matplotlib.image import imread  # noqa: PLC0415 - an extra of this test only

    pixels = imread(picture)
    assert pixels.shape[:2] == (1400, width)
    assert pixels[..., :3].std() > 0.05


# --- the verb


def matrix(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", "matrix", *arguments],
        capture_output=True, text=True, check=False, timeout=120, **more,
    )  # fmt: skip


def test_the_verb_measures_and_writes_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "penstock", "matrix", str(tmp_path), "--only", "write=mmap",
               "--only", "alloc=recycle", "--only", "flush=sync", "--quick",
               "--seconds", "0.02", "--body", "200", "--html", str(page), "--json"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    (row,) = report["rows"]
    assert row["failure"] is None
    assert row["acknowledged"] == "on disk"
    uncounted = set() if counts_writes(tmp_path) else {"sync_bytes"}
    assert set(row["figures"]) == set(METRICS) - uncounted
    for name, figure in row["figures"].items():
        assert len(figure["rounds"]) == 2, name
        assert figure["low"] <= figure["median"] <= figure["high"], name
        assert figure["median"] > 0 or name == "memory_mib", name
    assert report["plan"]["body"] == 200
    assert "mmap recycle sync" in page.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html"], "all is removed"


@pytest.mark.night
def test_the_bytes_of_a_durable_put_are_a_column(counted_disk: Path, tmp_path: Path) -> None:
    """At least a page, since queues follow later; at most what `test_write_amplification` bounds."""
    page = tmp_path / "page.html"
    only = ["--only", "write=file", "--only", "alloc=on-demand", "--only", "flush=sync"]  # fmt: skip
    done = matrix(
        str(counted_disk), *only, "--quick", "--seconds", "0.1", "--html", str(page), "--json", cwd=tmp_path
    )  # fmt: skip
    (found,) = json.loads(done.stdout)["rows"]
    assert 4096 <= found["figures"]["sync_bytes"]["median"] <= 32 << 10
    assert "written per durable put<br>bytes" in page.read_text()


@pytest.mark.night
def test_without_a_disk_the_bytes_of_a_durable_put_are_not_applicable(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or file_system(memory)[0] != "tmpfs":
        pytest.skip("there is no tmpfs at /dev/shm")
    page = tmp_path / "page.html"
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        done = matrix(folder, *ONE, "--html", str(page), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"mmap on-demand async .*│ +n/a +│", done.stdout)
    assert "<td>n/a</td>" in page.read_text()
    assert '"sync_bytes": {"median"' not in page.read_text()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--only", "flush=snyc"), "there is no flush named 'snyc'"),
        (("--html", "none/x.html"), "this file cannot be written"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_measured(
    option: tuple[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert root.run(["matrix", str(tmp_path), *ONE, *option]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert "└" not in shown.out


@pytest.mark.night
def test_the_table_marks_the_best(tmp_path: Path) -> None:
    done = matrix(str(tmp_path), *ONE, "--html", "", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"mmap on-demand async +│ cache +│ +[\d,.]+ \*", done.stdout)
    assert "best by throughput: mmap on-demand async" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_draws_is_missed_before_anything_is_measured(tmp_path: Path) -> None:
    site = tmp_path / "site" / "matplotlib"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("raise ModuleNotFoundError('none')")
    environment = {**os.environ, "PYTHONPATH": f"{site.parent}:{os.environ.get('PYTHONPATH', '')}"}
    missing = matrix(str(tmp_path), *ONE, env=environment, cwd=tmp_path)
    assert missing.returncode == 2
    assert "pip install 'penstock[plots]'" in missing.stderr
    assert "└" not in missing.stdout, "nothing was measured"
    without = matrix(str(tmp_path), *ONE, "--html", "", env=environment, cwd=tmp_path)
    assert without.returncode == 0, without.stderr


def test_the_engine_does_not_import_what_draws() -> None:
    code = "import sys, penstock, penstock_tools.matrix.page; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.night
def test_all_refused_and_large_bodies(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = matrix(str(tmp_path), "--only", "write=transient-pool", "--only", "flush=sync", "--quick",
                  "--html", str(page))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("refused: ") == 3
    assert "Every requested combination is refused" in page.read_text()
    done = matrix(str(tmp_path), *ONE[:-1], "3000000", "--batch", "2", "--html", "", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["plan"]["segment_bytes"] >= 12_000_000
    for wrong in ("--threads", "--batch", "--body", "--rounds"):
        assert matrix(str(tmp_path), *ONE, wrong, "0").returncode == 2
