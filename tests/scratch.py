"""A copy of the source tree that a fault is planted in, so that the checkout is never changed."""

import os
import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LEFT_OUT = (".git", ".venv", "build", "*.part", ".*_cache", ".hypothesis", ".cache", "demo-data")


def copied_tree(folder: Path) -> Path:
    """Copy the tree into `folder`, with the kernel as it is built; returns the copy."""
    return Path(shutil.copytree(ROOT, folder / "tree", ignore=shutil.ignore_patterns(*_LEFT_OUT)))


def environment_in(tree: Path) -> dict[str, str]:
    """Return the environment of processes that import Penstock from a copy."""
    with (tree / "pyproject.toml").open("rb") as file:
        packages = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    roots = dict.fromkeys(str((tree / package).parent) for package in packages)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*roots, str(tree)])}
