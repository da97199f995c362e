"""Builds the compiled kernel, `penstock._kernel`: for hatchling (wheels, editable installs), or as a command.

    python hatch_build.py             build the object beside its sources, unless the one there is of just these
    python hatch_build.py --requires  print what that needs of PyPI

The compiler is $CC, or cc, gcc or clang where there is one; else zig's, which comes as a wheel from PyPI, needs nothing
of the machine, and is asked for only then. Invariants:

* An object is as new as its recipe, the digest of sources, flags and tools that it holds. Times do not count.
* It appears whole, under its name, by a rename. Two builds in one checkout exclude each other; one for a wheel does so
  until the wheel is made, so a wheel has just the object that was built for it.
* The same recipe makes the same bytes, in whatever folder. Objects with sanitizers lie in a folder of their own.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.config import BuilderConfig
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:
    sys.exit(
        "hatchling is not installed in this Python: run `pip install 'hatchling>=1.27' 'cython>=3.1,<4'` first"
    )

ROOT = Path(__file__).resolve().parent
HATCHLING, CYTHON, ZIG = "hatchling>=1.27", "cython>=3.1,<4", "ziglang>=0.13"
# Signed numbers from disk may wrap, and structures of bytes are read through other types: neither may be optimized.
FLAGS = ["-std=c11", "-O2", "-Wall", "-fwrapv", "-fno-strict-aliasing", "-fvisibility=hidden", "-fPIC", "-shared",
         "-pthread", "-D_GNU_SOURCE"]  # fmt: skip
# No asserts, and no symbols: their names of files are all that would differ between two machines.
RELEASE = ["-DNDEBUG", "-s"]
# With sanitizers: asserts too, and whatever is found ends the process.
CHECKED = ["-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
# The C library that RHEL 8, Debian 10 and Ubuntu 18.10 have, as in manylinux_2_28.
GLIBC_FLOOR = "2.28"
_MARK = re.compile(rb"penstock-kernel-build:([0-9a-f]{64})")


class KernelBuildError(Exception):
    """The kernel cannot be built here; its text is one sentence that says why, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one object is built."""

    target: Path
    compiler: tuple[str, ...]
    flags: tuple[str, ...]
    sources: str  # their digest
    build: str  # the digest of all of this


def kernel_module(root: Path) -> Any:
    """Return `penstock.kernel` of the checkout `root`, loaded by itself: the package needs what is only built here."""
    path = root / "core" / "penstock" / "kernel.py"
    spec = importlib.util.spec_from_file_location("penstock_kernel_of_checkout", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def machine_compiler() -> tuple[str, ...]:
    """Return the command of this machine's C compiler; empty if it has none."""
    given = shlex.split(os.environ.get("CC", ""))
    if given:
        return tuple(given)
    return next(((found,) for found in map(shutil.which, ("cc", "gcc", "clang")) if found), ())


def requirements() -> list[str]:
    """Return what building needs of PyPI on this machine."""
    return [CYTHON] if machine_compiler() else [CYTHON, ZIG]


def zig_target() -> str:
    """Return zig's name for what this interpreter was built for, with the floor of the C library."""
    soabi = str(sysconfig.get_config_var("SOABI"))
    found = re.fullmatch(r"cpython-\d+[a-z]*-(\w+)-linux-(gnu|musl)(\w*)", soabi)
    if not found:
        raise KernelBuildError(
            f"zig has no target for this Python ({soabi}): install a C compiler, or set CC"
        )
    machine, library, abi = found.groups()
    machine = {"i386": "x86"}.get(machine, machine)
    return f"{machine}-linux-{library}{abi}" + (f".{GLIBC_FLOOR}" if library == "gnu" else "")


def check_platform() -> None:
    """Refuse a machine or an interpreter that the kernel is not built for."""
    if sys.platform != "linux":
        raise KernelBuildError(f"Penstock runs on Linux only, this is {sys.platform}")
    if sys.byteorder != "little":
        raise KernelBuildError(
            f"Penstock runs on little-endian machines only, {platform.machine()} is not"
        )
    if sys.implementation.name != "cpython":
        raise KernelBuildError(f"Penstock needs CPython, this is {sys.implementation.name}")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise KernelBuildError(
            "Penstock needs a Python with the interpreter's lock, this one is free-threaded"
        )


def check_tools() -> None:
    """Refuse an interpreter without headers, or without a Cython of the right version."""
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").is_file():
        raise KernelBuildError(
            f"{include} has no Python.h: install this Python's headers (on Debian python3-dev)"
        )
    found = version_of("cython")
    if not found or not (3, 1) <= tuple(map(int, found.split(".")[:2])) < (4, 0):
        raise KernelBuildError(
            f"Cython from 3.1 on is needed, {found or 'none'} is installed: run `pip install '{CYTHON}'` first, "
            "or leave out --no-build-isolation"
        )


def version_of(distribution: str) -> str:
    """Return the version of an installed distribution; empty if there is none."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def compiler_and_version(root: Path, with_checks: str) -> tuple[tuple[str, ...], str]:
    """Return the command that compiles, and a text that is another for another compiler."""
    found = machine_compiler()
    if found:
        return found, run([*found, "--version"], root)
    if with_checks:
        raise KernelBuildError(
            "PENSTOCK_SANITIZE needs gcc or clang, zig brings no sanitizers: install one, or set CC"
        )
    version = version_of("ziglang")
    if not version:
        raise KernelBuildError(
            f"no C compiler was found: install one (on Debian gcc), set CC, or run `pip install '{ZIG}'`"
        )
    # Without a target zig compiles for the processor it runs on.
    target = zig_target()
    command = (sys.executable, "-m", "ziglang", "cc", "-target", target, "-fno-sanitize=undefined")
    return command, f"zig {version} {target}"


def recipe_of(root: Path) -> Recipe:
    """Return how the kernel of the checkout `root` is built now."""
    kernel = kernel_module(root)
    with_checks = kernel.sanitizers()
    compiler, version = compiler_and_version(root, with_checks)
    ending = [f"-fsanitize={with_checks}", *CHECKED] if with_checks else RELEASE
    flags = (*FLAGS, *ending)
    sources = kernel.digest_of_sources(root / "core" / "penstock")
    parts = (
        sources,
        *flags,
        *compiler[1:],
        version,
        version_of("cython"),
        kernel.OBJECT,
        platform.python_version(),
    )
    build = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    target = kernel.object_in_checkout(root)
    return Recipe(target=target, compiler=compiler, flags=flags, sources=sources, build=build)


def holds(path: Path, build: str) -> bool:
    """Tell whether the object at `path` is of the recipe with the digest `build`."""
    try:
        found = _MARK.search(path.read_bytes())
    except FileNotFoundError:
        return False
    return found is not None and found[1].decode() == build


def build(root: Path, say: Callable[[str], None]) -> Recipe:
    """Build the kernel of the checkout `root` unless it is there; the caller holds `exclusive`."""
    check_tools()
    recipe = recipe_of(root)
    if holds(recipe.target, recipe.build):
        return recipe
    say(f"building {recipe.target.relative_to(root)} with {shlex.join(recipe.compiler)}")
    # Nobody else writes here meanwhile, so what an earlier build was killed in is written over.
    part = recipe.target.with_name("_kernel.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    warnings = compile_to(part, recipe, root)
    if warnings:
        say(warnings)
    if not holds(part, recipe.build):
        raise KernelBuildError(
            'core/penstock/_kernel.pyx lacks the line `include "_kernel/build.pxi"`: add it'
        )
    part.replace(recipe.target)
    return recipe


def compile_to(part: Path, recipe: Recipe, root: Path) -> str:
    """Make the object `part`; returns the warnings of Cython and the compiler.

    Paths below the checkout are given as seen from it: they end up in the C, and in the object's messages.
    """
    pyx, c = "core/penstock/_kernel.pyx", "build/kernel/_kernel.c"
    command = [
        *recipe.compiler,
        *recipe.flags,
        f"-ffile-prefix-map={root}=.",
        "-Icore/penstock",
        *include_flags(),
        f'-DPENSTOCK_SOURCES="{recipe.sources}"',
        f'-DPENSTOCK_BUILD="{recipe.build}"',
        c,
        "-o",
        str(part.relative_to(root)),
    ]
    output = run([sys.executable, "-m", "cython", "-3", pyx, "-o", c], root)
    return (output + run(command, root)).strip()


def include_flags() -> list[str]:
    """Return the compiler's flags for this interpreter's headers.

    Debian's `pyconfig.h` includes another one below `/usr/include`, by the name of the machine, and zig does not search
    the machine's own folders. There it searches last, so the C library's headers are still its target's.
    """
    include = Path(sysconfig.get_path("include"))
    return [f"-I{include}", "-idirafter", str(include.parent)]


def run(command: list[str], folder: Path) -> str:
    """Run a tool and return what it printed; raises `KernelBuildError` with all of it if it fails."""
    # By default zig keeps them in a home folder, which need not be there.
    caches = dict.fromkeys(
        ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(folder / "build" / "zig")
    )
    try:
        done = subprocess.run(
            command, cwd=folder, env=os.environ | caches, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except OSError as error:
        raise KernelBuildError(
            f"{command[0]} cannot be run ({error.strerror}): install a C compiler, or set CC"
        ) from error
    if done.returncode:
        raise KernelBuildError(
            f"{done.stdout.rstrip()}\n{shlex.join(command)} failed: the lines above say why"
        )
    return done.stdout


@contextlib.contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Hold off other builds in the checkout `root`; the system ends it with this process."""
    import fcntl  # noqa: PLC0415 - not on every system that this file has to refuse

    folder = root / "build" / "kernel"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("wb")
    except OSError as error:
        raise KernelBuildError(
            f"{folder} cannot be written ({error.strerror}): build in a copy of the sources"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class KernelHook(BuildHookInterface[BuilderConfig]):
    """Builds the kernel before a wheel or an editable install is made. See the module."""

    def dependencies(self) -> list[str]:
        """Return what the frontend is to install before it builds."""
        return requirements()

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and have the wheel take just that object; an editable install finds it beside its sources."""
        build_data["pure_python"], build_data["infer_tag"] = False, True
        self._locks = contextlib.ExitStack()
        try:
            recipe = self._build(Path(self.root))
        except KernelBuildError as error:
            self.app.abort(str(error))
            raise
        if version != "editable":
            noted = Path(self.root, "build", "kernel", "_kernel.abi")
            noted.write_text(recipe.sources + "\n")
            build_data["force_include"][str(recipe.target)] = f"penstock/{recipe.target.name}"
            build_data["force_include"][str(noted)] = f"penstock/{noted.name}"

    def _build(self, root: Path) -> Recipe:
        if kernel_module(root).sanitizers():
            raise KernelBuildError(
                "PENSTOCK_SANITIZE is for `make kernel`: unset it to install or to make a wheel"
            )
        check_platform()
        self._locks.enter_context(exclusive(root))
        return build(root, self.app.display_info)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Let other builds go on: what this one made is in its wheel."""
        self._locks.close()


def main() -> int:
    """Build in this checkout; returns the exit code."""
    if sys.argv[1:] == ["--requires"]:
        sys.stdout.write("\n".join([HATCHLING, *requirements()]) + "\n")
        return 0
    try:
        check_platform()
        with exclusive(ROOT):
            build(ROOT, lambda line: print(line, flush=True))
    except KernelBuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
