"""Installs Penstock into bare environments of each Python given: `python -m tests.packaging.installs`, or `make test-install`.

For each Python: a wheel of this checkout, the checkout itself, an editable install, and with `--extras` each extra and each
combination in an install line of the docs, in an environment of its own, with what PyPI has today. `--lowest` does so once
more with the lowest versions that `pyproject.toml` allows, on the first Python. The result is a table in Markdown.

It downloads hundreds of megabytes; `test_extras` runs the same scripts on the packages that are installed already.
"""

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from tests.packaging.checkouts import clean_environment, make_checkout
from tests.packaging.extras import (
    EXTRAS,
    NOT_ALONE,
    PROJECT,
    Extras,
    combinations,
    run_promise,
    script_of,
)

SMOKE = Path(__file__).with_name("smoke.py")
KNOWN = ("3.11", "3.12", "3.13", "3.14")
SECONDS = 1800
# What one extra needs says nothing about the others.
ALONE = combinations()


class InstallError(Exception):
    """A step failed; its text is the end of what it printed."""


def run(*command: str | Path, folder: Path) -> str:
    """Run a program without this environment's settings; returns what it printed."""
    clean = clean_environment()
    clean.pop("PYTHONPATH", None)
    done = subprocess.run(
        command, cwd=folder, env=clean, text=True, check=False, timeout=SECONDS,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise InstallError(done.stdout[-2000:])
    return done.stdout


def make_bare(python: Path, home: Path) -> Path:
    """Make an environment with pip alone; returns its python."""
    run(python, "-m", "venv", home, folder=home.parent)
    return home / "bin" / "python"


def pip(python: Path, *words: str | Path) -> None:
    """Run pip in an environment."""
    run(python, "-m", "pip", "--quiet", *words, folder=python.parents[1])


def make_wheel(python: Path, work: Path) -> Path:
    """Build the wheel of a copy of this checkout, as a user does: in an isolated environment."""
    builder = make_bare(python, work / "builder")
    pip(builder, "wheel", "--no-deps", "--wheel-dir", work / "dist", make_checkout(work / "source"))
    return next((work / "dist").glob("penstock-*.whl"))


def lowest() -> str:
    """Return constraints that allow of each package that the project names only the lowest version."""
    lines = PROJECT["dependencies"] + [
        line for extra, own in EXTRAS.items() if extra not in NOT_ALONE for line in own
    ]
    floors = {
        one.name: floor.version
        for one in map(Requirement, lines)
        for floor in one.specifier
        if floor.operator == ">="
    }
    return "".join(f"{name}=={version}\n" for name, version in sorted(floors.items()))


def steps(
    work: Path, *, extras: bool, floors: bool
) -> Iterator[tuple[str, Extras, list[str | Path]]]:
    """Yield each install: its name, its extras, and the words for pip."""
    wheel = next((work / "dist").glob("penstock-*.whl"))
    yield "wheel", (), [wheel]
    yield "checkout", (), [work / "source"]
    yield "editable", (), ["--editable", work / "source"]
    for each in ALONE[1:] if extras else ():
        yield f"[{','.join(each)}]", each, [f"{wheel}[{','.join(each)}]"]
    if floors:
        (work / "lowest.txt").write_text(lowest())
        limited: list[str | Path] = ["--constraint", work / "lowest.txt"]
        yield "lowest versions", (), [*limited, wheel]
        for each in ALONE[1:]:
            asked = f"[{','.join(each)}]"
            yield f"lowest versions, {asked}", each, [*limited, f"{wheel}{asked}"]


def install(python: Path, home: Path, extras: Extras, words: list[str | Path]) -> None:
    """Install into an environment of its own, put and read, and do what the docs promise for the extras."""
    home.mkdir()
    try:
        own = make_bare(python, home / "env")
        pip(own, "install", *words)
        run(own, SMOKE, folder=home)
        (home / "work").mkdir()
        run_promise(own, script_of(extras), home / "work")
    except AssertionError as error:
        raise InstallError(str(error)) from error
    finally:
        shutil.rmtree(home, ignore_errors=True)


def found() -> list[Path]:
    """Return the interpreters `python3.11` to `python3.14` of the PATH, and of pyenv."""
    versions = Path.home() / ".pyenv" / "versions"
    named = [next(versions.glob(f"{each}.*/bin/python"), None) or shutil.which(f"python{each}") for each in KNOWN]  # fmt: skip
    return [Path(each) for each in named if each]


def main() -> int:
    """Install with each Python; 1 if a step failed."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "pythons", nargs="*", type=Path, help="interpreters; by default those found"
    )
    parser.add_argument("--extras", action="store_true", help="each extra, too")
    parser.add_argument("--lowest", action="store_true", help="on the first one, the lowest versions, too")  # fmt: skip
    given = parser.parse_args()
    failed = 0
    print(f"| Python ({platform.platform()}) | install | result |\n|---|---|---|", flush=True)
    for number, python in enumerate(given.pythons or found()):
        with tempfile.TemporaryDirectory(prefix="penstock-installs-") as folder:
            work = Path(folder)
            version = run(python, "-c", "import platform; print(platform.python_version())", folder=work).strip()  # fmt: skip
            make_wheel(python, work)
            for name, extras, words in steps(work, extras=given.extras, floors=given.lowest and not number):  # fmt: skip
                try:
                    install(python, work / "one", extras, words)
                except InstallError as error:
                    failed += 1
                    sys.stderr.write(f"{error}\n")
                    print(f"| {version} | {name} | FAILED |", flush=True)
                else:
                    print(f"| {version} | {name} | passed |", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
