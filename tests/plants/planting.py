"""Faults planted as edits of the source: a module gets other text at one place when it is imported.

`site/sitecustomize.py` calls `plant_from_environment` in every Python process that has the folder `site` on
its path, before anything of Penstock is imported. So the fault is there whoever imports the module and by
whatever name, also in processes that a test starts. Nothing is written to disk, no `.pyc` either.
"""

import importlib
import json
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

VARIABLE = "PENSTOCK_TESTS_PLANT"
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Plant(NamedTuple):
    """A fault, and what must find it.

    Attributes:
        about: what is wrong, in a few words.
        module: the module that is changed.
        old: text that stands in its source exactly once.
        new: what stands there instead.
        tests: node ids of tests, each of which must fail; all together take under 3 seconds.
    """

    about: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]


def plants() -> dict[str, Plant]:
    """Return every plant of every table in `tables`, by name."""
    found: dict[str, Plant] = {}
    for each in sorted(pkgutil.iter_modules([str(HERE / "tables")]), key=lambda m: m.name):
        table = importlib.import_module(f"tests.plants.tables.{each.name}").PLANTS
        taken = found.keys() & table.keys()
        assert not taken, f"{each.name}: these names are taken: {taken}"
        found |= table
    return found


def edited(plant: Plant, source: str) -> str:
    """Return a module's source with the fault in it."""
    count = source.count(plant.old)
    if count != 1:
        raise ValueError(
            f"{plant.module}: the text to change is there {count} times: {plant.old!r}"
        )
    return source.replace(plant.old, plant.new)


class _Loader(SourceFileLoader):
    def __init__(self, plant: Plant, path: str) -> None:
        super().__init__(plant.module, path)
        self._plant = plant

    def get_code(self, fullname: str) -> CodeType:
        # Never from a .pyc, and none is written.
        path = self.get_filename(fullname)
        source = edited(self._plant, Path(path).read_text())
        return compile(source, path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, plant: Plant) -> None:
        self._plant = plant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._plant.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(self._plant, spec.origin)
        return spec


def plant_from_environment() -> None:
    """Plant the fault that the environment holds as JSON; nothing happens where it holds none."""
    text = os.environ.get(VARIABLE)
    if text:
        plant = Plant(*json.loads(text))
        assert plant.module not in sys.modules, f"{plant.module} is imported already"
        sys.meta_path.insert(0, _Finder(plant))
