"""A unit test is found by the name of its module: `log/segment.py` has `tests/unit/log/test_segment.py`.

The modules in the folders of a plugin's package are tested beside each other, so no two of them have the same name. What else a module needs told stands beside it as `test_<module>_<topic>.py`.
"""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests" / "unit"
KERNEL = ROOT / "core" / "penstock"
# Modules and folders of the kernel without a file of their own, by their path.
COVERED_ELSEWHERE = {
    "batch.py": "a door: names of other modules",
    "findings.py": "a door: names of other modules",
    "cli/verbs": "tests/cli runs each verb as a command",
    "testing/suites": "tests/contract runs each suite, on strategies that keep it and on some that break it",
}
# Modules that have none yet; to be emptied.
MISSING: set[str] = set()
# Folders of tests that are not those of modules.
OTHER_FOLDERS = {"kernel": "the compiled kernel is C: its sources are no modules"}


def modules_of_ours() -> dict[str, str]:
    """Return `<folder>/<module>` of what is to have a unit test, with its import name."""
    found = {}
    for path in KERNEL.rglob("*.py"):
        place = path.relative_to(KERNEL)
        is_elsewhere = any(place.is_relative_to(other) for other in COVERED_ELSEWHERE)
        if not place.stem.startswith("__") and not is_elsewhere:
            found[str(place.with_suffix(""))] = ".".join(("penstock", *place.with_suffix("").parts))
    for path in (ROOT / "plugins").glob("*/penstock_*/**/*.py"):
        package, *folders = path.relative_to(ROOT / "plugins").parts[1:-1]
        # `plugin` only lists what its package offers; the contract suites find it by that. `tests/cli` runs commands.
        if not path.stem.startswith("__") and path.stem != "plugin" and "commands" not in folders:
            found[f"{package}/{path.stem}"] = ".".join((package, *folders, path.stem))
    return found


MODULES = modules_of_ours()
FILES = {str(path.relative_to(UNIT)): path for path in sorted(UNIT.rglob("*.py"))}


def imported(path: Path) -> set[str]:
    """Return the full names of what a module imports, and of the modules that it comes from, past a package's door."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            door = importlib.import_module(str(node.module))
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
            names |= {getattr(getattr(door, a.name, None), "__module__", "") for a in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("place", sorted(set(MODULES) - MISSING))
def test_a_module_has_a_unit_test_of_its_name_that_imports_it(place: str) -> None:
    folder, _, module = place.rpartition("/")
    path = UNIT / folder / f"test_{module}.py"
    assert path.is_file(), f"{path.relative_to(ROOT)} is missing: write the unit tests of {place}"
    assert MODULES[place] in imported(path), f"{path.relative_to(ROOT)} does not import {MODULES[place]}"  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_unit_test_is_named_after_a_module_of_its_folder(name: str) -> None:
    folder, _, file = name.rpartition("/")
    if folder in OTHER_FOLDERS:
        return
    words = file.removeprefix("test_").removesuffix(".py").split("_")
    beginnings = {"_".join(words[:count]) for count in range(1, len(words) + 1)}
    known = {place.rpartition("/")[2] for place in MODULES if place.rpartition("/")[0] == folder}
    assert file.startswith("test_"), f"{name}: what tests share lies in tests/conftest.py"
    assert beginnings & known, f"{name} is named after no module of {folder}/"


def test_the_tables_of_exceptions_name_what_is_there() -> None:
    assert all((KERNEL / name).exists() for name in COVERED_ELSEWHERE)
    assert all((UNIT / name).is_dir() for name in OTHER_FOLDERS)
    assert set(MODULES) >= MISSING
    is_written = [place for place in MISSING if f"{place.rpartition('/')[0]}/test_{place.rpartition('/')[2]}.py" in FILES]  # fmt: skip
    assert not is_written, "written by now: take them out of MISSING"
