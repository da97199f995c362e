"""How the kernel is loaded: from a checkout, an installed wheel, a zip; and what is refused, with what to do."""

import os
import shlex
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.packaging.checkouts import (
    NOTHING,
    ROOT,
    loaded_from,
    make_built_checkout,
    make_checkout,
    make_wheel,
    run,
)

from penstock import kernel

SMOKE = ROOT / "tests" / "packaging" / "smoke.py"
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


def refused(folder: Path, path: Path, given: Mapping[str, str] = NOTHING) -> str:
    """Run `python -m penstock` from `path`, and return the sentence that it is refused with."""
    return sentence(run(sys.executable, "-m", "penstock", "--help", folder=folder, code=1, given={"PYTHONPATH": str(path), **given}))  # fmt: skip


def test_a_missing_object_is_named_with_the_command_that_builds_it(tmp_path: Path) -> None:
    """The folder of sources, which has the object's name, is not taken for it.

    Of a kernel that does nothing: the package loads it before anything that needs more of it.
    """
    checkout = make_checkout(tmp_path / "checkout", small=True)
    object_at = checkout / "core" / "penstock" / kernel.OBJECT
    command = f"{sys.executable} hatch_build.py"
    told = refused(tmp_path, checkout / "core")
    assert told == f"the compiled kernel {object_at} is missing; run `{command}` in {checkout}"
    run(*shlex.split(command), folder=checkout)
    told = run(
        sys.executable,
        "-c",
        "import penstock; print(penstock._kernel.__file__)",
        folder=tmp_path,
        given={"PYTHONPATH": str(checkout / "core")},
    )
    assert told == f"{object_at}\n"


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
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(checkout / ".venv"))
    monkeypatch.delenv("PENSTOCK_SANITIZE", raising=False)
    (checkout / "core" / "penstock" / kernel.OBJECT).unlink()
    with pytest.raises(ImportError, match="run `make kernel` in "):
        kernel._from_checkout(checkout / "core" / "penstock")
    monkeypatch.setenv("PENSTOCK_SANITIZE", "undefined")
    with pytest.raises(ImportError, match="run `PENSTOCK_SANITIZE=undefined make kernel` in "):
        kernel._from_checkout(checkout / "core" / "penstock")


@pytest.mark.parametrize(("where", "name", "value", "words"), [
    (sys.implementation, "name", "pypy", "Penstock needs CPython, this is pypy"),
    (sys, "abiflags", "t", "not free-threaded"),
    (kernel, "_is_main_interpreter", lambda: False, "cannot be imported in a sub-interpreter"),
])  # fmt: skip
def test_an_interpreter_that_it_is_not_built_for_is_refused(
    where: object, name: str, value: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel._check_interpreter()
    monkeypatch.setattr(where, name, value)
    with pytest.raises(ImportError, match=words):
        kernel._check_interpreter()


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


def run_zipped(archive: Path | str, folder: Path) -> Path:
    """Put and read with the Penstock of a zip; returns the file that its kernel was loaded from."""
    (folder / "tmp").mkdir(exist_ok=True)
    given = {"TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(archive)}
    return loaded_from(run(sys.executable, SMOKE, folder=folder, given=given))


@pytest.fixture
def zipped(wheel: Path, tmp_path: Path) -> Path:
    """Return the wheel, named as Spark takes it, with an object for another Python in it, too."""
    archive = tmp_path / "penstock.zip"
    shutil.copy(wheel, archive)
    with zipfile.ZipFile(archive, "a") as opened:
        opened.writestr(f"penstock/{OTHER}", b"for another Python")
    return archive


def test_of_a_zip_the_object_for_this_python_is_loaded(zipped: Path, tmp_path: Path) -> None:
    loaded = run_zipped(zipped, tmp_path)
    with zipfile.ZipFile(zipped) as opened:
        assert loaded.read_bytes() == opened.read(f"penstock/{kernel.OBJECT}")
    assert loaded.parent == tmp_path / "tmp" / f"penstock-{os.getuid()}"
    assert stat.S_IMODE(loaded.parent.stat().st_mode) == 0o700
    assert [path.name for path in loaded.parent.iterdir()] == [loaded.name]


@pytest.mark.parametrize("path", ["penstock.zip", "./penstock.zip", "tmp/../penstock.zip"])
def test_however_the_path_of_the_zip_is_written_it_is_loaded(
    path: str, zipped: Path, tmp_path: Path
) -> None:
    """On Spark's executors it was `./penstock.zip`, and no object was found there."""
    assert zipped.parent == tmp_path
    assert run_zipped(path, tmp_path).parent == tmp_path / "tmp" / f"penstock-{os.getuid()}"


def test_a_zip_may_hold_it_below_a_folder(zipped: Path, tmp_path: Path) -> None:
    archive = tmp_path / "outer.zip"
    with zipfile.ZipFile(zipped) as source, zipfile.ZipFile(archive, "w") as target:
        for name in source.namelist():
            target.writestr(f"lib/{name}", source.read(name))
    assert run_zipped(archive / "lib", tmp_path).is_relative_to(tmp_path / "tmp")


@pytest.mark.night
def test_the_copy_is_made_once_and_made_again_if_it_is_not_whole(
    zipped: Path, tmp_path: Path
) -> None:
    loaded = run_zipped(zipped, tmp_path)
    first, data = loaded.stat(), loaded.read_bytes()
    assert run_zipped(zipped, tmp_path) == loaded
    assert loaded.stat().st_ino == first.st_ino
    for broken in (b"", data[: len(data) // 2]):
        loaded.write_bytes(broken)
        assert run_zipped(zipped, tmp_path) == loaded
        assert loaded.read_bytes() == data


@pytest.mark.night
def test_several_processes_at_once_all_load_it(zipped: Path, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    given = os.environ | {"TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(zipped)}
    started = [
        subprocess.Popen([sys.executable, "-c", "import penstock._kernel"], cwd=tmp_path, env=given)
        for _ in range(6)
    ]
    assert [process.wait(300) for process in started] == [0] * 6
    assert len(list((tmp_path / "tmp").rglob("*.so"))) == 1


def folder_open_to_all(tmp_path: Path) -> None:
    (tmp_path / "tmp" / f"penstock-{os.getuid()}").mkdir(parents=True)
    (tmp_path / "tmp" / f"penstock-{os.getuid()}").chmod(0o777)


def link_to_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / f"penstock-{os.getuid()}").symlink_to(tmp_path / "elsewhere")


def file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / f"penstock-{os.getuid()}").touch(mode=0o600)


@pytest.mark.parametrize("prepare", [folder_open_to_all, link_to_elsewhere, file_in_its_place])
def test_where_the_folder_is_not_the_users_alone_it_is_loaded_from_memory(
    prepare: object, zipped: Path, tmp_path: Path
) -> None:
    assert callable(prepare)
    prepare(tmp_path)
    assert run_zipped(zipped, tmp_path).is_relative_to("/proc/self/fd")
    assert not list((tmp_path / "tmp").rglob("*.so"))


def test_somebody_elses_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = os.getuid()
    assert kernel.copy_out(b"bytes").parent.name == f"penstock-{mine}"
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    (tmp_path / f"penstock-{mine + 1}").mkdir(mode=0o700)
    assert kernel.copy_out(b"bytes").read_bytes() == b"bytes"
    assert not list((tmp_path / f"penstock-{mine + 1}").iterdir())


def test_where_nothing_may_be_run_from_it_is_loaded_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = os.statvfs(tmp_path)
    # An `os.statvfs_result` takes its fields as one sequence; the flags are the ninth.
    flags = os.statvfs_result([*found[:8], found.f_flag | os.ST_NOEXEC, *found[9:]])
    monkeypatch.setattr(os, "statvfs", lambda _: flags)
    path = kernel.copy_out(b"bytes")
    assert path.is_relative_to("/proc/self/fd")
    assert path.read_bytes() == b"bytes"
    assert kernel.copy_out(b"others") != path, "two objects never have one path"


def test_a_zip_for_other_pythons_is_named_with_what_it_has(wheel: Path, tmp_path: Path) -> None:
    archive = tmp_path / "penstock.zip"
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(archive, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            target.writestr(OTHER.join(name.split(kernel.OBJECT)), data)
    told = refused(tmp_path, archive)
    assert (
        f"{archive} has no compiled kernel for this Python ({kernel.OBJECT}; found: {OTHER})"
        in told
    )
    assert "one of them for this Python and machine" in told


@pytest.mark.parametrize("noted", [b"0" * 64, None])
def test_a_zip_made_from_two_versions_is_refused(
    noted: bytes | None, zipped: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "mixed.zip"
    with zipfile.ZipFile(zipped) as source, zipfile.ZipFile(archive, "w") as target:
        for name in source.namelist():
            if not name.endswith(kernel.ABI):
                target.writestr(name, source.read(name))
            elif noted is not None:
                target.writestr(name, noted)
    told = refused(tmp_path, archive, {"TMPDIR": str(tmp_path)})
    assert "was built from other sources" in told
    assert "make mixed.zip from wheels of one version" in told
