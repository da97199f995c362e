"""Loads the compiled kernel, `penstock._kernel`, beside the package; refuses one that does not match these modules.

`penstock/__init__` calls `load` before anything else, so every other module may use `from penstock._kernel import ...`.

* In a checkout the shared object is beside its sources. It is refused unless it was built from exactly these sources.
* In a wheel it is beside the modules; `_kernel.abi` holds the digest of the sources that it was built from.
* In a zip it is refused: Python loads no compiled module from there.

Imports no other Penstock module: all of them may need the kernel, and `hatch_build.py` uses its digest and paths.
"""

import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

NAME = "penstock._kernel"
# For example `_kernel.cpython-311-x86_64-linux-gnu.so`: the suffix names version, machine and C library.
OBJECT = "_kernel" + importlib.machinery.EXTENSION_SUFFIXES[0]
ABI = "_kernel.abi"
_SOURCE = "_kernel.pyx"
_SUFFIXES = {".pyx", ".pxi", ".pxd", ".h"}


def load() -> None:
    """Load the kernel as `penstock._kernel`; raises `ImportError` with a message that says what to do."""
    if NAME in sys.modules:
        return
    _check_interpreter()
    package = Path(__file__).parent
    if not package.is_dir():
        raise ImportError(
            f"{package} is in a zip file, from which Python loads no compiled module: install the wheel, "
            "or unpack it (Spark does so with --archives)",
            name=NAME,
        )
    if (package / _SOURCE).is_file():
        path, expected, cure = _from_checkout(package)
    else:
        path, expected, cure = _from_wheel(package)
    module = _load_object(path)
    found = module.abi()
    if found != expected:
        del sys.modules[NAME]
        raise ImportError(
            f"the compiled kernel {path} was built from other sources than the installed Python modules; {cure}",
            name=NAME,
        )
    # The import system does this for a submodule that it has found by itself.
    sys.modules["penstock"].__dict__["_kernel"] = module


def is_rescue() -> bool:
    """Return whether this process runs `python -m penstock.rescue`, which needs no kernel."""
    return sys.orig_argv[1:3] == ["-m", "penstock.rescue"]


def sources(package: Path) -> list[Path]:
    """Return all files that the object is compiled from, sorted by name."""
    parts = (path for path in (package / "_kernel").iterdir() if path.suffix in _SUFFIXES)
    return [package / _SOURCE, *sorted(parts)]


def digest_of_sources(package: Path) -> str:
    """Return the digest of the names and bytes of the kernel's sources below `package`."""
    digest = hashlib.sha256()
    for path in sources(package):
        data = path.read_bytes()
        digest.update(b"%s %d\n" % (path.name.encode(), len(data)))
        digest.update(data)
    return digest.hexdigest()


def sanitizers() -> str:
    """Return the sanitizers listed in `PENSTOCK_SANITIZE`, sorted, in the form that `-fsanitize` takes."""
    given = os.environ.get("PENSTOCK_SANITIZE", "")
    return ",".join(sorted({word.strip() for word in given.split(",") if word.strip()}))


def object_in_checkout(root: Path) -> Path:
    """Return the path of the object in the checkout `root`; an object with sanitizers has a folder of its own."""
    with_checks = sanitizers()
    if with_checks:
        return root / "build" / "sanitize" / with_checks.replace(",", "-") / OBJECT
    return root / "core" / "penstock" / OBJECT


def _check_interpreter() -> None:
    """Raise `ImportError` in an interpreter that the kernel does not support; loading would crash or fail unclearly."""
    if sys.implementation.name != "cpython":
        raise ImportError(f"Penstock needs CPython, this is {sys.implementation.name}", name=NAME)
    if "t" in sys.abiflags:
        raise ImportError(
            "Penstock needs the interpreter's lock: run it with a Python that is not free-threaded",
            name=NAME,
        )
    if not _is_main_interpreter():
        raise ImportError(
            "Penstock cannot be imported in a sub-interpreter: use the main interpreter, or another process",
            name=NAME,
        )


def _is_main_interpreter() -> bool:
    """Return whether this is the process's main interpreter; True on a Python without sub-interpreters."""
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        is_main: bool = interpreters.get_current() == interpreters.get_main()
        return is_main
    return True


def _from_checkout(package: Path) -> tuple[Path, str, str]:
    """Return the object of a checkout, the digest it must have, and the command that builds it."""
    root = package.parents[1]
    command = (
        "make kernel" if sys.prefix == str(root / ".venv") else f"{sys.executable} hatch_build.py"
    )
    with_checks = f"PENSTOCK_SANITIZE={sanitizers()} " if sanitizers() else ""
    cure = f"run `{with_checks}{command}` in {root}"
    path = object_in_checkout(root)
    if not path.is_file():
        raise ImportError(f"the compiled kernel {path} is missing; {cure}", name=NAME)
    return path, digest_of_sources(package), cure


def _from_wheel(package: Path) -> tuple[Path, str, str]:
    """Return the object of an installed package, the digest it must have, and what to do if the digest differs."""
    path, cure = (
        package / OBJECT,
        f"run `{sys.executable} -m pip install --force-reinstall penstock`",
    )
    if not path.is_file():
        found = ", ".join(sorted(entry.name for entry in package.glob("_kernel.*.so"))) or "none"
        raise ImportError(
            f"{package} has no compiled kernel for this Python ({OBJECT}; found: {found}); {cure}",
            name=NAME,
        )
    noted = package / ABI
    return path, noted.read_text().strip() if noted.is_file() else "nothing", cure


def _load_object(path: Path) -> ModuleType:
    """Load the object at `path` as `penstock._kernel`, which is the name that pickles hold."""
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[NAME]
        raise
    return module
