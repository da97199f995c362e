"""Real builds: their bytes, when they happen, two at once, wheels and source distributions.

The whole kernel takes twenty seconds of a processor to compile. So it is compiled once as released, out of the source
distribution, and once with sanitizers; all that is not about its bytes builds one that does nothing.
"""

import fcntl
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import hatch_build
import pytest
from tests.conftest import unpack
from tests.night.spark.elsewhere import make_bare_python
from tests.packaging.checkouts import (
    ROOT,
    build,
    clean_environment,
    loaded_from,
    make_built_checkout,
    make_checkout,
    make_wheel,
    object_of,
    run,
)

from penstock import kernel

SMOKE = ROOT / "tests" / "packaging" / "smoke.py"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout with its object; no test changes it."""
    return make_built_checkout(tmp_path_factory.mktemp("built") / "checkout")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return a checkout of the test's own, with a kernel that does nothing."""
    return make_checkout(tmp_path / "small", small=True)


@pytest.mark.night
def test_a_warning_is_shown(small: Path) -> None:
    header = small / "core" / "penstock" / "_kernel" / "build.h"
    header.write_text(header.read_text() + "\nstatic int idle(void) { int unused; return 0; }\n")
    told = build(small)
    assert "-Wunused-variable" in told
    assert "-Wunused-function" in told


def test_it_is_built_again_only_when_its_recipe_has_changed(small: Path) -> None:
    assert build(small).startswith("building ")
    header = small / "core" / "penstock" / "_kernel" / "build.h"
    header.touch()
    assert build(small) == ""
    header.write_text(header.read_text() + "\n")
    assert build(small).startswith("building ")
    assert build(small) == ""


def test_a_build_that_fails_leaves_the_object_that_was_there(small: Path) -> None:
    object_of(small).write_bytes(b"an older one")
    pyx = small / "core" / "penstock" / "_kernel.pyx"
    pyx.write_text(pyx.read_text() + "\ncdef int answer(): return missing\n")
    assert "undeclared name not builtin: missing" in build(small, code=1)
    assert object_of(small).read_bytes() == b"an older one"


def test_a_kernel_that_does_not_say_what_it_was_built_from_is_refused(small: Path) -> None:
    """It could never be told from a stale one, and would be built again each time."""
    (small / "core" / "penstock" / "_kernel.pyx").write_text("def answer(): return 42\n")
    assert 'lacks the line `include "_kernel/build.pxi"`' in build(small, code=1)
    assert not object_of(small).exists()


@pytest.mark.night
def test_a_compiler_that_dies_within_its_work_leaves_the_object_that_was_there(small: Path) -> None:
    """And bytes written into a file that is mapped would change the code that runs."""
    object_of(small).write_bytes(b"an older one")
    compiler = small / "cc"
    compiler.write_text(
        '#!/bin/sh\nfor word; do last=$word; done\n[ "$last" = --version ] || { echo half > "$last"; exit 1; }\n'
    )
    compiler.chmod(0o755)
    build(small, code=1, given={"CC": str(compiler)})
    assert object_of(small).read_bytes() == b"an older one"
    with object_of(small).open("rb") as old:
        build(small)
        assert old.read() == b"an older one"
    assert object_of(small).read_bytes().startswith(b"\x7fELF")


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for something that `process` is to bring about."""
    while not is_so():
        assert process.poll() is None, process.communicate()


def waits_for_lock(process: subprocess.Popen[str]) -> bool:
    """Tell whether a process waits for a lock on a file."""
    words = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(line[1] == "->" and line[5] == str(process.pid) for line in words)


@pytest.mark.night
def test_a_build_waits_for_one_that_runs_and_finds_its_object(small: Path) -> None:
    with hatch_build.exclusive(small):
        builds = [
            subprocess.Popen(
                [sys.executable, "hatch_build.py"], cwd=small, env=clean_environment(), text=True,
                stdout=subprocess.PIPE,
            )
            for _ in range(2)
        ]  # fmt: skip
        for process in builds:
            wait_until(lambda process=process: waits_for_lock(process), process)  # type: ignore[misc] # bound now
        assert not object_of(small).exists()
    told = [process.communicate(timeout=300)[0] for process in builds]
    assert [process.returncode for process in builds] == [0, 0]
    assert sorted(map(bool, told)) == [False, True], "one builds, the other finds what it built"


def is_held(checkout: Path) -> bool:
    """Tell whether a build has the checkout for itself."""
    with (checkout / "build" / "kernel" / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def make_hook(checkout: Path) -> hatch_build.KernelHook:
    """Return the hook as hatchling makes it for a wheel."""
    from hatchling.bridge.app import Application  # noqa: PLC0415 - only here
    from hatchling.builders.wheel import WheelBuilder  # noqa: PLC0415 - only here

    builder = WheelBuilder(str(checkout))
    return hatch_build.KernelHook(
        str(checkout),
        {},
        builder.config,
        builder.metadata,
        str(checkout / "dist"),
        "wheel",
        Application(),
    )


@pytest.mark.parametrize("version", ["standard", "editable"])
def test_no_other_build_comes_in_until_the_wheel_is_made(
    version: str, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a wheel could take an object that another build has put in place meanwhile."""
    monkeypatch.delenv("PENSTOCK_SANITIZE", raising=False)
    hook = make_hook(built)
    data: dict[str, dict[str, str]] = {"force_include": {}}
    hook.initialize(version, data)
    assert is_held(built)
    hook.finalize(version, data, "")
    assert not is_held(built)
    taken = {"standard": [kernel.ABI, kernel.OBJECT], "editable": []}[version]
    assert sorted(Path(target).name for target in data["force_include"].values()) == taken


def test_no_wheel_is_made_with_sanitizers(
    built: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_SANITIZE", "address")
    with pytest.raises(SystemExit, match="1"):
        make_hook(built).initialize("standard", {"force_include": {}})
    told = capsys.readouterr()
    assert "unset it to install or to make a wheel" in told.out + told.err


def test_a_wheel_has_its_one_object_and_no_source(small: Path, tmp_path: Path) -> None:
    for stray in ("_kernel.cpython-399-x86_64-linux-gnu.so", "stray.so", "_kernel.part"):
        (small / "core" / "penstock" / stray).write_bytes(b"of another build")
    with zipfile.ZipFile(make_wheel(small, tmp_path / "dist")) as wheel:
        names = wheel.namelist()
        of_kernel = sorted(name for name in names if "kernel" in name)
        assert of_kernel == sorted(
            f"penstock/{name}" for name in (kernel.ABI, kernel.OBJECT, "_kernel.pyi", "kernel.py")
        )
        assert [name for name in names if name.endswith((".so", ".part", ".c", ".h", ".pyx"))] == [
            f"penstock/{kernel.OBJECT}"
        ]
        assert wheel.read(f"penstock/{kernel.OBJECT}") == object_of(small).read_bytes()
        tag = wheel.read("penstock-0.1.0.dist-info/WHEEL").decode()
    assert f"Tag: cp3{sys.version_info.minor}-cp3{sys.version_info.minor}-linux_" in tag
    assert "Root-Is-Purelib: false" in tag


@pytest.fixture(scope="module")
def unpacked(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the source distribution of a checkout that has been built, unpacked."""
    folder = tmp_path_factory.mktemp("a folder elsewhere")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, folder=built)
    unpack(next(folder.glob("*.tar.gz")), folder)
    return next(path for path in folder.iterdir() if path.is_dir())


def test_a_source_distribution_has_every_source_and_no_object(built: Path, unpacked: Path) -> None:
    package = built / "core" / "penstock"
    for source in kernel.sources(package):
        copy = unpacked / source.relative_to(built)
        assert copy.read_bytes() == source.read_bytes()
    assert (unpacked / "hatch_build.py").is_file()
    assert not [path for path in unpacked.rglob("*") if path.suffix in {".so", ".c", ".part"}]


@pytest.fixture(scope="module")
def from_source(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the wheel of the source distribution, and what making it said."""
    folder = tmp_path_factory.mktemp("wheel of the source distribution")
    told = run(
        sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder,
        folder=unpacked, given={"TMPDIR": str(folder)},
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel, told


@pytest.mark.night
def test_two_builds_are_equal_name_no_folder_and_warn_of_nothing(
    built: Path, unpacked: Path, from_source: tuple[Path, str]
) -> None:
    """One in a checkout, one in the source distribution, in a folder elsewhere.

    The compiler is told to warn; here a warning is an error, while it stops nobody who only installs.
    """
    wheel, told = from_source
    first, *others = told.splitlines()
    assert first.startswith(f"building core/penstock/{kernel.OBJECT} with ")
    assert [line for line in others if not line.endswith(wheel.name)] == [], told
    data = object_of(built).read_bytes()
    assert data == object_of(unpacked).read_bytes()
    assert unpacked.parent != built.parent
    for folder in (built, unpacked, Path(sys.prefix), Path(sys.base_prefix), Path.home()):
        assert f"{folder}/".encode() not in data


@pytest.mark.night
def test_a_wheel_of_the_source_distribution_works_where_nothing_else_is(
    built: Path, from_source: tuple[Path, str], tmp_path: Path
) -> None:
    python = make_bare_python(tmp_path / "bare")
    run(sys.executable, "-m", "pip", f"--python={python}", "install", "-q", "--no-deps", "--no-index", from_source[0],
        folder=tmp_path)  # fmt: skip
    loaded = loaded_from(run(python, SMOKE, folder=tmp_path, given={"PYTHONPATH": ""}))
    assert loaded.is_relative_to(tmp_path / "bare")
    assert loaded.read_bytes() == object_of(built).read_bytes()


@pytest.mark.night
def test_make_builds_what_has_changed_before_anything_else(small: Path) -> None:
    """`make demo`, `make test` and the others stand on `.venv/demo` and `.venv/dev`, and those on `kernel`."""
    (small / ".venv" / "bin").mkdir(parents=True)
    python = small / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    for stamp in ("python", "tools", "demo", "dev"):
        (small / ".venv" / stamp).touch()
    header = small / "core" / "penstock" / "_kernel" / "build.h"
    for target in (".venv/demo", ".venv/dev", "kernel"):
        header.write_text(header.read_text() + "\n")
        assert "building core/penstock/_kernel" in run("make", target, folder=small), target
        assert "building" not in run("make", target, folder=small), target


def unoptimized(compiler: tuple[str, ...], path: Path) -> Path:
    """Make a command that is a compiler with the last word on optimizing: none."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(compiler)} "$@" -O0\n')
    path.chmod(0o755)
    return path


@pytest.mark.night
def test_an_object_with_sanitizers_is_built_apart_and_loaded_where_it_is_asked_for(
    tmp_path: Path,
) -> None:
    """The whole kernel, put to and read from. Not optimized: that takes most of the time, and is no claim of this test."""
    compiler = hatch_build.machine_compiler()
    preload = compiler and run(*compiler, "-print-file-name=libasan.so", folder=tmp_path).strip()
    if not preload or not Path(preload).is_absolute():
        pytest.skip("this machine has no compiler with sanitizers")
    checkout = make_checkout(tmp_path / "checkout")
    asked = {"PENSTOCK_SANITIZE": "undefined,address"}
    build(checkout, given=asked | {"CC": str(unoptimized(compiler, tmp_path / "cc"))})
    assert not list((checkout / "core" / "penstock").glob("_kernel.*.so"))
    path = ":".join(str(checkout / part) for part in ("core", "tools", "plugins/flush", "plugins/index", "plugins/alloc",
                                                      "plugins/retention", "plugins/messaging", "plugins/replicate", "pipeline"))  # fmt: skip
    told = run(
        sys.executable, SMOKE, folder=tmp_path,
        given=asked | {"PYTHONPATH": path, "LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"},
    )  # fmt: skip
    apart = checkout / "build" / "sanitize" / "address-undefined" / kernel.OBJECT
    assert loaded_from(told) == apart
    assert b"__asan_init" in apart.read_bytes()
    assert f"missing; run `{sys.executable} hatch_build.py`" in run(
        sys.executable, SMOKE, folder=tmp_path, code=1, given={"PYTHONPATH": path}
    )
