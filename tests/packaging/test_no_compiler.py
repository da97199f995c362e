"""A machine without a C compiler: Penstock is installed from its sources all the same, with zig's, which PyPI has.

It is 101 MB to fetch. Skipped where no package index can be reached, unless `PENSTOCK_REQUIRE_ZIG=1`.
"""

import os
import subprocess
import venv
from pathlib import Path

import pytest
from tests.packaging.checkouts import ROOT, loaded_from, make_checkout, object_of

SECONDS = 900
SMOKE = ROOT / "tests" / "packaging" / "smoke.py"
# What pip ends with when it cannot reach an index, or is told to use none.
UNREACHABLE = ("Could not find a version that satisfies", "No matching distribution found")


def run(home: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment `home` where the PATH holds nothing else."""
    clean = {
        name: text
        for name, text in os.environ.items()
        if name not in ("CC", "PENSTOCK_SANITIZE") and not name.startswith("PYTHON")
    }
    clean |= {"PATH": str(home / "bin"), "HOME": str(home)}
    return subprocess.run(
        [home / "bin" / command[0], *command[1:]], cwd=home, env=clean, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS,
    )  # fmt: skip


def test_an_editable_install_needs_no_compiler(tmp_path: Path) -> None:
    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    checkout = make_checkout(tmp_path / "checkout")
    done = run(home, "pip", "install", "-q", "-e", checkout)
    if done.returncode and any(words in done.stdout for words in UNREACHABLE):
        assert os.environ.get("PENSTOCK_REQUIRE_ZIG") != "1", done.stdout[-4000:]
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stdout[-4000:]
    assert "warning:" not in done.stdout
    done = run(home, "python", SMOKE)
    assert done.returncode == 0, done.stdout[-4000:]
    assert loaded_from(done.stdout) == object_of(checkout)
    assert (checkout / "build" / "zig").is_dir(), "zig's cache: it has compiled"
