"""Which sources are changed, by area, and which folders of tests are run against them."""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CORE, KERNEL = "core/penstock", "core/penstock/_kernel"
# Tests that read the sources as text would find any change, those of other languages and of Spark take too long.
TESTED_BY = ("unit", "contract", "property", "golden", "cli", "fuzz", "damage", "faults", "crash")


class Area(NamedTuple):
    """The sources of one area, as globs of paths below the root.

    Attributes:
        python: modules.
        kernel: parts of the compiled kernel, in Cython or C.
    """

    python: tuple[str, ...]
    kernel: tuple[str, ...] = ()


# A file that two areas name belongs to the first.
AREAS = {
    "append": Area(
        (
            f"{CORE}/store/engine.py",
            f"{CORE}/store/batches.py",
            f"{CORE}/log/commit_log.py",
            f"{CORE}/write/*.py",
        ),
        (
            f"{KERNEL}/append.pxi",
            f"{KERNEL}/encode.pxi",
            f"{KERNEL}/arrow_rows.pxi",
            f"{KERNEL}/record.h",
        ),
    ),
    "log": Area((f"{CORE}/log/*.py",)),
    "flushing": Area(
        (f"{CORE}/durability/*.py",),
        (f"{KERNEL}/gate.h", f"{KERNEL}/gate.pxi"),
    ),
    "messaging": Area(("plugins/messaging/penstock_messaging/**/*.py",)),
    "retention": Area((f"{CORE}/retention/*.py", "plugins/retention/penstock_retention/*.py")),
    "dispatch": Area(
        (f"{CORE}/dispatch/*.py", "plugins/index/penstock_index/*.py"),
        (f"{KERNEL}/dispatch.h", f"{KERNEL}/dispatch.pxi"),
    ),
    "recovery": Area((f"{CORE}/recovery/*.py",)),
    "repair": Area(("tools/penstock_tools/repairs/*.py", f"{CORE}/integrity/verification.py")),
    "plugins": Area(("plugins/flush/penstock_flush/*.py", "plugins/alloc/penstock_alloc/*.py")),
}


def files_by_area(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the files of each area, as paths below the root in their order; each file once.

    Raises `ValueError` for a glob that names no file: it was moved, and would be left out in silence.
    """
    taken: set[str] = set()
    found: dict[str, list[str]] = {}
    for name, area in AREAS.items():
        found[name] = []
        for pattern in (*area.python, *area.kernel):
            paths = sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))
            if not paths:
                raise ValueError(f"{pattern} names no file: correct tests/mutants/areas.py")
            found[name] += [path for path in paths if path not in taken]
            taken.update(paths)
    return found


def is_kernel(path: str) -> bool:
    """Tell whether a file is a part of the compiled kernel."""
    return not path.endswith(".py")
