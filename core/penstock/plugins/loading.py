"""Finds the entry points of plugins, imports the plugins and checks their hooks.

That is all that the list of commands needs, so this module imports nothing heavy: no contracts, no numpy, no attrs.
`registry` goes on with the strategies that the plugins offer.

A search reads the entry points of every distribution (5 ms for 150 of them), once for each state of the search path. In
folders it is done here: importing `importlib.metadata`, which parses metadata as e-mail, takes more processor time than
the whole rest of `penstock --help`. Other finders, and zip files, are left to `importlib.metadata`.
"""

import functools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pluggy

from penstock.errors import PluginError, PluginLoadError
from penstock.escape import follow_level, get_logger
from penstock.plugins import hookspecs
from penstock.runtime.clock import Clock

logger = get_logger(__name__)


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


_CLOCK = Clock()


# A plugin whose import takes longer than this slows every command, and is reported as slow.
SLOW_MS = 500


class PluginStatus(StrEnum):
    """The state of an installed plugin. All but `LOADED` and `SLOW` are set aside."""

    LOADED = "loaded"
    SLOW = "slow"  # loaded, but its import took long
    BLOCKED = "blocked"  # plugins.block names it
    BROKEN = "broken"  # its import or its registration raised
    MISSPELT = "misspelt"  # it implements a hook that does not exist
    INCOMPATIBLE = "incompatible"  # a strategy that it offers does not fit the contract
    DUPLICATE = "duplicate"  # its name, or a name that it offers, is taken


@dataclass(eq=False)
class PluginInfo:
    """One entry point: its distribution, its strategies, and why it was set aside, if it was.

    `offers` lists (section, name) of its strategies, `hooks` the events it listens to; `load_ms` is its import time.
    """

    entry_point: str
    distribution: str
    version: str
    offers: list[tuple[str, str]] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)
    status: PluginStatus = PluginStatus.LOADED
    error: PluginError | None = None
    load_ms: int = 0

    def set_aside(
        self, status: PluginStatus, reason: str, cause: BaseException | None = None
    ) -> None:
        """Note why the plugin is not used."""
        self.status = status
        self.error = PluginLoadError(self.entry_point, self.distribution, reason)
        self.error.__cause__ = cause


def load_plugins(block: Iterable[str] = ()) -> tuple[pluggy.PluginManager, list[PluginInfo]]:
    """Import every installed plugin but those that `block` names, and check its hooks; none of the hooks is called."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    blocked = frozenset(block)
    infos: dict[str, PluginInfo] = {}
    for found in discover(hookspecs.PROJECT):
        _load(manager, found, infos, is_blocked=found.entry_point.name in blocked)
    return manager, list(infos.values())


def load_commands(block: Iterable[str] = ()) -> Iterator[object]:
    """Yield the command-line commands that plugins add, but those that `block` names; no strategy is imported for that.

    A plugin that fails is logged and adds no command.
    """
    manager, infos = load_plugins(block)
    for info in infos:
        if info.error is not None:
            logger.warning("plugin set aside: %s", info.error)
    for implementation in manager.hook.penstock_register_commands.get_hookimpls():
        try:
            offered: Any = implementation.function()
            commands = list(offered)
        except (KeyboardInterrupt, SystemExit):
            # Also of a signal handler.
            raise
        except BaseException:
            logger.exception("plugin %r failed to add its commands", implementation.plugin_name)
            continue
        yield from commands


def _load(
    manager: pluggy.PluginManager,
    found: Discovered,
    infos: dict[str, PluginInfo],
    *,
    is_blocked: bool,
) -> None:
    """Import one plugin and register its hooks; add its `PluginInfo` to `infos`, with the reason if it is set aside."""
    entry_point, distribution, version = found
    name = entry_point.name
    info = PluginInfo(name, distribution, version)
    first = infos.get(name)
    if first is not None:
        if (first.distribution, first.version) == (distribution, version):
            return  # the same installation, seen by two paths
        info.set_aside(
            PluginStatus.DUPLICATE,
            f"distribution {first.distribution!r} also has an entry point of that name",
        )
        infos[f"{name} ({distribution})"] = info
        return
    infos[name] = info
    if is_blocked:
        info.status = PluginStatus.BLOCKED
        return
    began = _CLOCK.monotonic_ms()
    try:
        follow_level(entry_point.value.partition(":")[0])
        manager.register(entry_point.load(), name)
        # Reports a hook implementation with a misspelt name, which would never be called.
        manager.check_pending()
    except (KeyboardInterrupt, SystemExit):
        # Also of a signal handler.
        raise
    except BaseException as error:
        if manager.has_plugin(name):
            manager.unregister(name=name)
        is_hook = isinstance(error, pluggy.PluginValidationError)
        status = PluginStatus.MISSPELT if is_hook else PluginStatus.BROKEN
        info.set_aside(status, f"{type(error).__name__}: {error}", error)
        return
    info.load_ms = _CLOCK.monotonic_ms() - began
    logger.debug("plugin %r of %s %s imported in %d ms", name, distribution, version, info.load_ms)
    if info.load_ms > SLOW_MS:
        info.status = PluginStatus.SLOW
        logger.warning("plugin %r took %d ms to import", name, info.load_ms)
