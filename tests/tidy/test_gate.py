"""The gate ends, whatever a test does to the process that runs it."""

import os
import subprocess
import sys
from pathlib import Path

CRASHES = """
import os, pytest

@pytest.mark.parametrize("number", range(4))
def test_ends(number):
    if number == 1:
        os._exit(3)
"""


def test_a_run_goes_on_after_a_test_that_ended_its_worker(tmp_path: Path) -> None:
    """The next worker got the files that were done first, with no test to run, and waited for ever."""
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import pytest_xdist_make_scheduler\n"
    )
    (tmp_path / "test_first.py").write_text("def test_passes(): pass\n")
    (tmp_path / "test_second.py").write_text(CRASHES)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "--numprocesses", "1", "--dist", "loadfile"]
    done = subprocess.run(
        [*command, "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=120,
        check=False,
        capture_output=True,
        text=True,
    )
    assert "1 failed, 4 passed" in done.stdout, done.stdout
