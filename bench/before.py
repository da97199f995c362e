"""The packages of another commit of this repository, built into `.cache/bench`, to compare this one with.

The engine "penstock-before" runs the same benchmark on them, in a process that finds them before the installed ones.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
CACHE = HERE / ".cache" / "bench"
NOT_GIVEN = "needs a commit: --before COMMIT"


class NoCommitError(Exception):
    """Why there is no other commit to measure."""


def build(commit: str, cache: Path = CACHE) -> str:
    """Check out and build a commit, unless that was done before; return its full name."""
    if not commit:
        raise NoCommitError(NOT_GIVEN)
    name = _run(HERE, "git", "rev-parse", "--verify", f"{commit}^{{commit}}").strip()
    folder = cache / f"commit-{name}"
    if not (folder / "built").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        packed = folder / "packed.tar"
        _run(
            HERE,
            "git",
            "archive",
            "-o",
            str(packed),
            name,
            "core",
            "plugins",
            "hatch_build.py",
            "pyproject.toml",
        )
        _run(folder, "tar", "-xf", packed.name)
        packed.unlink()
        _run(folder, sys.executable, "hatch_build.py")
        (folder / "built").touch()
    return name


def environment(name: str, cache: Path = CACHE) -> dict[str, str]:
    """Return the variables of a process that uses the packages of a commit that `build` returned."""
    folder = cache / f"commit-{name}"
    places = [folder / "core", *sorted((folder / "plugins").iterdir())]
    further = [path for path in (os.environ.get("PYTHONPATH"),) if path]
    return {"PYTHONPATH": os.pathsep.join([*map(str, places), *further])}


def _run(folder: Path, *command: str) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=900, check=False
        )
    except OSError as error:
        raise NoCommitError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise NoCommitError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout
