"""Environments that have Penstock with some of its extras and nothing else, out of the packages installed here.

Nothing is downloaded: an environment links to the packages that `pyproject.toml` and the installed metadata name for these
extras, so a package that only another extra brings is missing there, as it is after a `pip install` of that one extra.
"""

import importlib.metadata
import os
import re
import subprocess
import tomllib
import venv
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.audit import applies

ROOT = Path(__file__).parents[2]
PROMISES = Path(__file__).parent / "promises"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# `dev` is what the whole test suite runs in. atheris comes for some Pythons only, and `make fuzz` installs it.
NOT_ALONE = ("dev", "fuzz")
SOURCES = ["core", "tools", "plugins/flush", "plugins/index", "plugins/alloc", "plugins/retention", "plugins/messaging", "plugins/replicate", "pipeline"]  # fmt: skip
INSTALL_LINE = re.compile(r"pip install '(penstock(?:\[[a-z,]+\])?)'(?: '([^']+)')?")
SECONDS = 300

Extras = tuple[str, ...]


class NotInstalledError(Exception):
    """A package that an extra needs is not installed here."""


def in_the_docs() -> set[Extras]:
    """Return the combinations of extras in the install lines of the README and of all pages."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    lines = {found[1] for page in pages for found in INSTALL_LINE.finditer(page.read_text())}
    return {tuple(sorted(Requirement(line).extras)) for line in lines}


def combinations() -> list[Extras]:
    """Return the combinations that have a script: none, each extra alone, and those that the docs install together."""
    alone = {(extra,) for extra in EXTRAS if extra not in NOT_ALONE}
    return sorted({(), *alone, ("cli", "testing"), ("arrow", "cli"), *in_the_docs()})


def script_of(extras: Extras) -> Path:
    """Return the script that does what the docs promise for these extras."""
    return PROMISES / f"{'_'.join(extras) or 'bare'}.py"


def needed(extras: Iterable[str]) -> dict[str, importlib.metadata.Distribution]:
    """Return the installed distributions that Penstock needs with these extras, by name, without Penstock itself."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [Requirement(line) for line in _lines(extras)]
    done: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        if (name, frozenset(one.extras)) in done:
            continue
        done.add((name, frozenset(one.extras)))
        if name == "penstock":
            waiting += [Requirement(line) for line in _lines(one.extras)]
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError as error:
            raise NotInstalledError(name) from error
        asked = [Requirement(line) for line in found[name].requires or []]
        waiting += [each for each in asked if applies(each, one.extras)]
    return found


def _lines(extras: Iterable[str]) -> list[str]:
    return [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]


def make_environment(home: Path, extras: Extras) -> Path:
    """Make an environment with Penstock and these extras alone; returns its python. Raises `NotInstalledError`."""
    venv.create(home, symlinks=True, with_pip=False)
    _install_editable(link_needed(home, extras))
    return home / "bin" / "python"


def link_needed(home: Path, extras: Iterable[str]) -> Path:
    """Put what Penstock needs with these extras into an environment, by links; returns the folder of its packages."""
    site = next((home / "lib").glob("python*/site-packages"))
    for distribution in needed(extras).values():
        for path in _tops(distribution):
            target = site / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.symlink_to(Path(str(distribution.locate_file(path))).resolve())
    return site


def _install_editable(site: Path) -> None:
    """Put this checkout on the path with its entry points, as an editable install does."""
    (site / "penstock.pth").write_text("\n".join(str(ROOT / source) for source in SOURCES))
    noted = site / f"penstock-{PROJECT['version']}.dist-info"
    noted.mkdir()
    heading = f"Metadata-Version: 2.4\nName: penstock\nVersion: {PROJECT['version']}\n"
    (noted / "METADATA").write_text(heading)
    offered = "\n".join(
        f"{name} = {place}" for name, place in PROJECT["entry-points"]["penstock"].items()
    )
    (noted / "entry_points.txt").write_text(f"[penstock]\n{offered}\n")


def _tops(distribution: importlib.metadata.Distribution) -> Iterator[Path]:
    """Yield what to link: packages, single modules, and of folders that distributions share each entry."""
    files = [Path(str(file)) for file in distribution.files or []]
    own = {file.parts[0] for file in files if len(file.parts) == 2 and file.name in ("__init__.py", "METADATA")}  # fmt: skip
    for file in files:
        if file.parts[0] in own:
            yield Path(file.parts[0])
        elif ".." not in file.parts and file.parts[0] != "__pycache__":
            yield Path(*file.parts[:2])


def run_promise(python: Path, script: Path, folder: Path) -> str:
    """Run a script of promises in an environment, in the empty folder `folder`; returns what it printed."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    clean["PATH"] = f"{python.parent}{os.pathsep}{clean['PATH']}"
    done = subprocess.run(
        [python, "-W", "error::DeprecationWarning:penstock", script], cwd=folder, env=clean, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, (
        f"{script.name} ended with {done.returncode}\n{done.stdout[-4000:]}"
    )
    return done.stdout
