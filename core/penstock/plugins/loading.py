"""Imports the installed plugins and checks their hooks.

That is all that the list of commands needs, so this module imports nothing heavy: no contracts, no numpy, no attrs.
`registry` goes on with the strategies that the plugins offer.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pluggy

from penstock.errors import PluginError, PluginLoadError
from penstock.escape import follow_level, get_logger
from penstock.plugins import hookspecs
from penstock.plugins.discovery import Discovered, discover
from penstock.runtime.clock import Clock

logger = get_logger(__name__)

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

    def set_aside(self, status: PluginStatus, reason: str, cause: Exception | None = None) -> None:
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


def load_commands() -> Iterator[object]:
    """Yield the command-line commands that plugins add; no strategy is imported for that.

    A plugin that fails is logged and adds no command.
    """
    manager, infos = load_plugins()
    for info in infos:
        if info.error is not None:
            logger.warning("plugin set aside: %s", info.error)
    for implementation in manager.hook.penstock_register_commands.get_hookimpls():
        try:
            offered: Any = implementation.function()
            commands = list(offered)
        except Exception:
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
    except Exception as error:
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
