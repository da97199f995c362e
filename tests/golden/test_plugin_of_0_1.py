"""A plugin that was written for 0.1 works unchanged: `penstock-search-1.0.zip` is the example of that commit."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent


def test_the_plugin_of_0_1_passes_its_own_tests_unchanged(tmp_path: Path) -> None:
    """Against the present contracts and their suites, though it was written for those of 0.1."""
    with zipfile.ZipFile(HERE / "penstock-search-1.0.zip") as packed:
        packed.extractall(tmp_path)
    info = tmp_path / "penstock_search-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock-search\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[penstock]\nsearch = penstock_search.plugin\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pyproject.toml", "tests"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert " passed" in done.stdout
