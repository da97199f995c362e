"""Checkouts to build in, so that no test changes the object that the other tests run on."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from penstock import kernel

ROOT = Path(__file__).parents[2]
FILES = [
    "hatch_build.py",
    "pyproject.toml",
    "Makefile",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    ".gitignore",
]
FOLDERS = ["core", "tools", "plugins", "pipeline"]
SECONDS = 300
NOTHING: Mapping[str, str] = MappingProxyType({})


# Enough of a kernel for what is not about the kernel: the whole takes many times as long to compile.
SMALL = 'include "_kernel/build.pxi"\n'
PARTS_OF_SMALL = {"build.h", "build.pxi"}


def make_checkout(folder: Path, *, small: bool = False) -> Path:
    """Copy what is built and installed to `folder`, without an object; `small` has a kernel that does nothing."""
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    for name in FOLDERS:
        left_out = shutil.ignore_patterns("__pycache__", "*.so", "*.part")
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    if small:
        package = folder / "core" / "penstock"
        (package / "_kernel.pyx").write_text(SMALL)
        for path in (package / "_kernel").iterdir():
            if path.name not in PARTS_OF_SMALL:
                path.unlink()
    return folder


def make_built_checkout(folder: Path) -> Path:
    """Return a checkout with its object: the one that the other tests run on, if it is of this recipe."""
    checkout = make_checkout(folder)
    for path in (ROOT / "core" / "penstock").glob("_kernel.*.so"):
        shutil.copy(path, checkout / "core" / "penstock")
    build(checkout)
    return checkout


def clean_environment(given: Mapping[str, str] = NOTHING) -> dict[str, str]:
    """Return this process's environment without what changes a build, or what Python imports."""
    kept = {
        name: text
        for name, text in os.environ.items()
        if name not in ("CC", "PENSTOCK_SANITIZE")
        and (name == "PYTHONPATH" or not name.startswith("PYTHON"))
    }
    return kept | dict(given)


def run(
    *command: str | Path, folder: Path, code: int = 0, given: Mapping[str, str] = NOTHING
) -> str:
    """Run a command in `folder` and return what it printed; fails unless it ends with `code`."""
    done = subprocess.run(
        command, cwd=folder, env=clean_environment(given), text=True, check=False, timeout=SECONDS,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == code, f"{command} ended with {done.returncode}\n{done.stdout[-4000:]}"
    return done.stdout


def build(checkout: Path, code: int = 0, given: Mapping[str, str] = NOTHING) -> str:
    """Run the command that builds the kernel of a checkout; returns what it printed."""
    return run(sys.executable, "hatch_build.py", folder=checkout, code=code, given=given)


def object_of(checkout: Path) -> Path:
    """Return the path of the object for this interpreter."""
    return checkout / "core" / "penstock" / kernel.OBJECT


def make_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of a checkout, or of an unpacked source distribution, with the tools installed here."""
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation",
        "--wheel-dir", folder, source, folder=source)  # fmt: skip
    (wheel,) = folder.glob("penstock-*.whl")
    return wheel


def loaded_from(told: str) -> Path:
    """Return the file that `smoke.py` loaded the kernel from: its last line, whatever was logged before."""
    return Path(told.splitlines()[-1])
