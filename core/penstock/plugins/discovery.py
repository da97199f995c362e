"""Searches the installed distributions for entry points, once for each state of the search path.

A search reads the entry points of every distribution (5 ms for 150 of them). In folders it is done here: importing
`importlib.metadata`, which parses metadata as e-mail, takes more processor time than the whole rest of
`penstock --help`. Distributions in zip files and those of other finders are left to `importlib.metadata`.
"""

import functools
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple


class EntryPoint(NamedTuple):
    """A name that a distribution offers to a group, and the module, or the attribute of one, that it stands for."""

    name: str
    value: str
    group: str

    def load(self) -> Any:
        """Import the module, and return it or its attribute."""
        module, _, attribute = self.value.partition("[")[0].partition(":")
        found: Any = import_module(module.strip())
        return functools.reduce(getattr, filter(None, attribute.strip().split(".")), found)


class Discovered(NamedTuple):
    """An entry point, with the name and version of its distribution; "?" if they are not known."""

    entry_point: EntryPoint
    distribution: str
    version: str


def discover(group: str) -> tuple[Discovered, ...]:
    """Return the entry points of a group, in the order of `sys.path`.

    Distributions that are installed or removed later are noticed, because that changes the time of their folder.
    """
    paths = tuple(path or str(Path.cwd()) for path in sys.path)
    return _search(group, paths, tuple(map(_mtime_ns, paths)))


def _mtime_ns(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


@functools.lru_cache(maxsize=8)
def _search(group: str, paths: tuple[str, ...], _times: tuple[int, ...]) -> tuple[Discovered, ...]:
    if _has_other_finders():
        return tuple(_search_slowly(group, None))
    found: list[Discovered] = []
    names: set[str] = set()
    for path in paths:
        if Path(path).is_dir():
            found += _search_folder(group, Path(path), names)
        elif Path(path).is_file():
            found += _search_slowly(group, [path])
    return tuple(found)


def _has_other_finders() -> bool:
    """Return whether something else than Python's own path finder can find distributions."""
    return any(
        hasattr(finder, "find_distributions") and getattr(finder, "__name__", "") != "PathFinder"
        for finder in sys.meta_path
    )


def _search_slowly(group: str, paths: list[str] | None) -> Iterator[Discovered]:
    """Yield the entry points of all distributions, or of those at `paths`, in any form that Python knows."""
    from importlib import metadata  # noqa: PLC0415 - slow to import, see the module

    for dist in metadata.distributions() if paths is None else metadata.distributions(path=paths):
        for each in dist.entry_points:
            if each.group == group:
                facts = dist.metadata
                yield Discovered(
                    EntryPoint(each.name, each.value, group),
                    facts["Name"] or "?",
                    facts["Version"] or "?",
                )


def _search_folder(group: str, folder: Path, names: set[str]) -> Iterator[Discovered]:
    """Yield the entry points of the distributions in a folder; the first one of a name hides those after it."""
    try:
        entries = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return
    for entry in entries:
        stem, _, ending = entry.lower().rpartition(".")
        if ending not in ("dist-info", "egg-info"):
            continue
        name = stem.partition("-")[0].replace("_", "-").replace(".", "-")
        if name in names:
            continue
        names.add(name)
        text = _read(folder / entry / "entry_points.txt")
        offered = list(_entry_points(group, text.splitlines()))
        if offered:
            origin = _origin(folder / entry)
            yield from (Discovered(each, *origin) for each in offered)


def _entry_points(group: str, lines: Iterable[str]) -> Iterator[EntryPoint]:
    """Yield a group's entries of an `entry_points.txt`."""
    section = ""
    for line in map(str.strip, lines):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif section == group and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield EntryPoint(name.strip(), value.strip(), group)


def _origin(folder: Path) -> tuple[str, str]:
    """Return the name and version of a distribution; "?" for one that it does not state."""
    facts = {"name": "?", "version": "?"}
    text = _read(folder / "METADATA") or _read(folder / "PKG-INFO")
    # The header ends at the first empty line.
    for line in text.partition("\n\n")[0].splitlines():
        key, separator, value = line.partition(":")
        if separator and value.strip() and facts.get(key.lower()) == "?":
            facts[key.lower()] = value.strip()
    return facts["name"], facts["version"]


def _read(path: Path) -> str:
    """Return the text of a file, empty if there is none."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
