"""How the kernel is loaded: from a checkout, an installed wheel; and what is refused, with what to do."""

import os
import shutil
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.packaging.checkouts import (
    NOTHING,
    make_built_checkout,
    make_checkout,
    make_wheel,
    run,
)

from penstock import kernel

OTHER = "_kernel.cpython-399-x86_64-linux-gnu.so"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout with its object; no test changes it."""
    return make_built_checkout(tmp_path_factory.mktemp("built") / "checkout")


@pytest.fixture
def checkout(built: Path, tmp_path: Path) -> Path:
    """Return a checkout of the test's own, with its object."""
    copy = tmp_path / "checkout"
    shutil.copytree(built, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(built, tmp_path_factory.mktemp("dist"))


def sentence(told: str) -> str:
    """Return the one sentence that a refused import ends with."""
    last = told.rstrip().splitlines()[-1]
    assert last.startswith("ImportError: "), told
    return last.removeprefix("ImportError: ")


def refused(
    folder: Path, path: Path, given: Mapping[str, str] = NOTHING, *, before: str = ""
) -> str:
    """Import Penstock from `path`, after a statement on `sys`, and return the sentence that it is refused with."""
    code = f"import sys; {before}\nimport penstock._kernel"
    return sentence(run(sys.executable, "-c", code, folder=folder, code=1, given={"PYTHONPATH": str(path), **given}))  # fmt: skip


def test_a_missing_object_is_named_with_the_command_that_builds_it(tmp_path: Path) -> None:
    """The folder of sources, which has the object's name, is not taken for it."""
    checkout = make_checkout(tmp_path / "checkout", small=True)
    object_at = checkout / "core" / "penstock" / kernel.OBJECT
    command = f"{sys.executable} hatch_build.py"
    told = refused(tmp_path, checkout / "core")
    assert told == f"the compiled kernel {object_at} is missing; run `{command}` in {checkout}"


@pytest.mark.parametrize("source", ["_kernel.pyx", "_kernel/build.h", "_kernel/build.pxi"])
def test_a_stale_object_is_named_with_the_command_that_builds_it(
    source: str, checkout: Path, tmp_path: Path
) -> None:
    changed = checkout / "core" / "penstock" / source
    before = changed.stat()
    changed.write_text(changed.read_text() + "\n")
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    told = refused(tmp_path, checkout / "core")
    assert "was built from other sources than the installed Python modules" in told
    assert told.endswith(f"; run `{sys.executable} hatch_build.py` in {checkout}")


def test_in_the_checkouts_own_environment_the_command_is_make(
    checkout: Path, tmp_path: Path
) -> None:
    (checkout / "core" / "penstock" / kernel.OBJECT).unlink()
    own = f"sys.prefix = {str(checkout / '.venv')!r}"
    told = refused(tmp_path, checkout / "core", before=own)
    assert "run `make kernel` in " in told
    told = refused(tmp_path, checkout / "core", {"PENSTOCK_SANITIZE": "undefined"}, before=own)
    assert "run `PENSTOCK_SANITIZE=undefined make kernel` in " in told


@pytest.mark.parametrize(("before", "words"), [
    ("sys.implementation.name = 'pypy'", "Penstock needs CPython, this is pypy"),
    ("sys.abiflags = 't'", "not free-threaded"),
])  # fmt: skip
def test_an_interpreter_that_it_is_not_built_for_is_refused(
    before: str, words: str, built: Path, tmp_path: Path
) -> None:
    assert words in refused(tmp_path, built / "core", before=before)


IN_SUB_INTERPRETER = """
import importlib, os, sys
name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
interpreters = importlib.import_module(name)
source = '''
try:
    import penstock
except ImportError as error:
    import os
    os.write(1, str(error).encode())
'''
inside = interpreters.create()
print(interpreters.run_string(inside, source) or "", flush=True)
interpreters.destroy(inside)
import penstock._kernel
print("loaded in the first", flush=True)
# CPython 3.12.1 aborts at the end of any process that had another interpreter.
os._exit(0)
"""


def test_a_sub_interpreter_is_refused_and_the_first_one_goes_on(
    built: Path, tmp_path: Path
) -> None:
    """Whichever loads it first would keep it, if the kernel itself were left to refuse."""
    told = run(
        sys.executable,
        "-c",
        IN_SUB_INTERPRETER,
        folder=tmp_path,
        given={"PYTHONPATH": str(built / "core")},
    )
    assert told.splitlines() == [
        "Penstock cannot be imported in a sub-interpreter: use the main interpreter, or another process",
        "loaded in the first",
    ]


def installed(wheel: Path, folder: Path) -> Path:
    """Unpack a wheel as an installer does; returns the package's folder."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder / "penstock"


def test_an_installed_wheel_of_another_python_is_named(wheel: Path, tmp_path: Path) -> None:
    package = installed(wheel, tmp_path / "site")
    (package / kernel.OBJECT).rename(package / OTHER)
    told = refused(tmp_path, package.parent)
    assert f"has no compiled kernel for this Python ({kernel.OBJECT}; found: {OTHER})" in told
    assert "pip install --force-reinstall penstock" in told


def test_an_installed_object_of_another_version_is_refused(wheel: Path, tmp_path: Path) -> None:
    package = installed(wheel, tmp_path / "site")
    (package / kernel.ABI).write_text("0" * 64 + "\n")
    assert "was built from other sources" in refused(tmp_path, package.parent)
    (package / kernel.ABI).unlink()
    assert "was built from other sources" in refused(tmp_path, package.parent)


def test_in_a_zip_it_is_refused_with_what_to_do(wheel: Path, tmp_path: Path) -> None:
    """Spark puts what `--py-files` names on the path as a zip."""
    archive = tmp_path / "penstock.zip"
    shutil.copy(wheel, archive)
    told = refused(tmp_path, archive)
    assert told.startswith(f"{archive}/penstock is in a zip file")
    assert "install the wheel, or unpack it (Spark does so with --archives)" in told
