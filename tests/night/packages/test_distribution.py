"""The example distribution, installed beside Penstock's wheel in a fresh environment, far from the sources."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "penstock-search"
INDEXES = 'index.use=["consume-queue","hash-index","full-text"]'


class Fresh:
    """A fresh environment, and a folder to work in."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.bin = home / "env" / "bin"

    def run(self, *command: str, code: int = 0, given: str | None = None) -> str:
        """Run a program of the environment, without anything of ours on its path."""
        clean = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]], cwd=self.home, env=clean, input=given,
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """Build both wheels and install them."""
    home = tmp_path_factory.mktemp("fresh")
    for source in (ROOT, EXAMPLE):
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "-w",
            str(home / "wheels"),
            str(source),
        ]
        subprocess.run(command, check=True, timeout=300)
    venv.create(home / "env", with_pip=True)
    made = Fresh(home)
    penstock, search = (
        next((home / "wheels").glob(pattern))
        for pattern in ("penstock-*.whl", "penstock_search-*.whl")
    )
    made.run("pip", "install", "-q", f"{penstock}[cli,testing]", str(search))
    return made


def test_its_strategies_are_listed(fresh: Fresh) -> None:
    plugins = [json.loads(line) for line in fresh.run("penstock", "plugins", "--json").splitlines()]
    ours = next(plugin for plugin in plugins if plugin["plugin"] == "search")
    assert (ours["distribution"], ours["version"], ours["status"]) == (
        "penstock-search",
        "1.0",
        "loaded",
    )
    offered = {(s["section"], s["name"]): s for s in ours["strategies"]}
    assert set(offered) == {("index", "full-text"), ("flush", "every"), ("retention", "keep-last")}
    assert offered["flush", "every"]["options"] == {"bytes": 1_000_000}
    assert offered["index", "full-text"]["capabilities"] == ["own-files"]


def test_config_alone_puts_them_to_use(fresh: Fresh) -> None:
    lines = "".join(
        f"line {n} about {'pears' if n % 100 == 0 else 'stones'}\n" for n in range(1000)
    )
    chosen = ["--set", INDEXES, "--set", "flush.use=every", "--set", "flush.every.bytes=4096",
              "--set", "retention.use=keep-last"]  # fmt: skip
    fresh.run("penstock", "ingest", "data", "-", "--topic", "t", *chosen, given=lines)
    found = fresh.run("penstock", "search", "data", "pears", "--json").splitlines()
    assert json.loads(found[0])["snippet"] == "line 900 about [pears]"
    assert len(found) == 10
    assert "search" in fresh.run("penstock", "--help")
    fresh.run("penstock", "verify", "data")


@pytest.mark.parametrize("name", ["flush.every", "retention.keep-last", "index.full-text"])
def test_the_check_passes(fresh: Fresh, name: str) -> None:
    verdict = json.loads(fresh.run("penstock", "plugins", "check", name, "--points", "8", "--json"))
    assert verdict["passed"]
    assert "of penstock-search 1.0 meets the contract" in verdict["sentence"]


def test_they_are_in_the_matrix(fresh: Fresh) -> None:
    only = [
        "--only",
        "flush=every",
        "--only",
        "write=mmap",
        "--only",
        "alloc=on-demand",
    ]
    told = fresh.run(
        "penstock", "matrix", *only, "--quick", "--seconds", "0.02", "--html", "", "--json"
    )
    (row,) = json.loads(told)["rows"]
    assert row["flush"] == "every"
    assert row["failure"] is None


def test_its_own_tests_pass_from_outside(fresh: Fresh) -> None:
    out = fresh.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE / "tests"),
                    "-c", str(EXAMPLE / "pyproject.toml"))  # fmt: skip
    assert " passed" in out
    assert "failed" not in out
