"""`-v` says what is opened, recovered and skipped; `-vv` says more; without it nothing is said."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

QUIET = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}


def said(*arguments: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True, text=True, check=True, env={**QUIET, **environment},
    )  # fmt: skip
    if "--json" in arguments:
        for line in done.stdout.splitlines():
            json.loads(line)
    return [line for line in done.stderr.splitlines() if line.startswith(("INFO", "DEBUG"))]


@pytest.fixture
def data(tmp_path: Path) -> str:
    with penstock.open(tmp_path / "data", environ={}) as store:
        store.put("t", b"x", queue=0)
    return str(tmp_path / "data")


@pytest.mark.parametrize("place", ["before", "after"])
def test_v_says_what_was_opened(place: str, data: str) -> None:
    stat = ["stat", data, "--json"]
    (line,) = said(*(["-v", *stat] if place == "before" else [*stat, "-v"]))
    assert f"{data}: opened read-only; 1 segments" in line
    assert said(*stat) == []
    more = said(
        *(["-vv", *stat] if place == "before" else [*stat, "-v", "-v"]), PENSTOCK_FLUSH__USE="sync"
    )
    assert any("plugin 'builtin-index'" in line for line in more)
    assert any("setting flush.use is 'sync'" in line for line in more)


def test_v_says_what_was_recovered(data: str) -> None:
    (Path(data) / "abort").touch()
    lines = said("init", data, "-v")
    assert any("opened for writing" in line and "its log ends at" in line for line in lines)


def test_vv_says_which_segment_is_checked(data: str) -> None:
    assert any("checking" in line and "commitlog" in line for line in said("verify", data, "-vv"))


def test_v_says_what_was_skipped(data: str, tmp_path: Path) -> None:
    source = tmp_path / "rows"
    source.write_text("{}\n{\n")
    lines = said("ingest", data, str(source), "--topic", "t", "--format", "ndjson", "--skip-bad", "-vv")  # fmt: skip
    assert any("is skipped" in line and "line 2" in line for line in lines)
