"""Finds the installed plugins, and looks strategies up by name.

The entry-point group `penstock` is not loaded by pluggy's own loop, which silently ignores a second entry point of the
same name, and lets one broken package stop the host. A plugin that does not load is set aside: a warning and
`Registry.plugins` name it. That is fatal only if the configuration requires the plugin, or names a strategy that no
other plugin offers. A name that two plugins offer is an error only if the configuration uses it.

Only this module makes untyped calls; it returns typed classes.
"""

import functools
import re
import types
import typing
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import attrs
import pluggy

from penstock.contracts import (
    CONTRACT_VERSION,
    Allocator,
    Dispatcher,
    Extension,
    FlushPolicy,
    Replicator,
    RetentionPolicy,
    SegmentWriter,
    Strategy,
)
from penstock.errors import (
    DuplicateStrategyError,
    PluginLoadError,
    UnknownStrategyError,
)
from penstock.escape import get_logger
from penstock.plugins.loading import PluginInfo, PluginStatus, load_plugins
from penstock.runtime.workers import is_for_program

logger = get_logger(__name__)

S = TypeVar("S", bound=Strategy)
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
# In the progress file.
_DISPATCHER_NAME_MAX = 24

# To find them anew takes 5 to 7 percent of the time in which a store opens.
type_hints = functools.cache(typing.get_type_hints)


@attrs.define
class StrategySet(Generic[S]):
    """The strategies of one kind, by name."""

    kind: str
    contract: type[S]
    _classes: dict[str, type[S]] = attrs.Factory(dict)
    _offered_by: dict[str, str] = attrs.Factory(dict)
    _missing: dict[str, str] = attrs.Factory(dict)
    _contested: dict[str, DuplicateStrategyError] = attrs.Factory(dict)

    def add(self, cls: type[S], plugin: str) -> DuplicateStrategyError | None:
        """Register a class. A name that is registered twice is ambiguous: `get` raises the returned error for it."""
        name = cls.name
        if name in self._offered_by:
            error = DuplicateStrategyError(self.kind, name, self._offered_by[name], plugin)
            self._classes.pop(name, None)
            self._contested[name] = error
            return error
        self._classes[name] = cls
        self._offered_by[name] = plugin
        return None

    def replace(self, cls: type[S], plugin: str) -> None:
        """Register a class in place of one with the same name; for tests of a class that is not installed."""
        self._contested.pop(cls.name, None)
        self._classes[cls.name] = cls
        self._offered_by[cls.name] = plugin

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        return tuple(sorted(self._classes))

    def get(self, name: str) -> type[S]:
        """Return the class called `name`; raises `UnknownStrategyError` or `DuplicateStrategyError`."""
        if name in self._contested:
            raise self._contested[name]
        try:
            return self._classes[name]
        except KeyError:
            error = UnknownStrategyError(self.kind, name, self._classes)
            for plugin, reason in self._missing.items():
                error.add_note(f"plugin {plugin!r} was set aside and may have offered it: {reason}")
            raise error from None

    def offered_by(self, name: str) -> str:
        """Return the plugin that offers `name`."""
        return self._offered_by[name]

    def note_missing(self, plugin: str, reason: str) -> None:
        """Note a plugin that was set aside, so that the error for an unknown name can mention it."""
        self._missing[plugin] = reason


class Registry:
    """The installed plugins and strategies. Created by `load_registry`."""

    def __init__(self, manager: pluggy.PluginManager, plugins: list[PluginInfo]) -> None:
        self.plugins = plugins
        self._manager = manager
        self._silenced: set[tuple[str, str]] = set()
        self.writers = StrategySet("write", SegmentWriter)  # type: ignore[type-abstract] # never called
        self.allocators = StrategySet("alloc", Allocator)  # type: ignore[type-abstract] # never called
        self.flush_policies = StrategySet("flush", FlushPolicy)
        self.dispatchers = StrategySet("index", Dispatcher)  # type: ignore[type-abstract] # never called
        self.retention_policies = StrategySet("retention", RetentionPolicy)  # type: ignore[type-abstract] # as above
        self.extensions = StrategySet("extensions", Extension)
        self.replicators = StrategySet("replicate", Replicator)  # type: ignore[type-abstract] # as above

    def sets(self) -> dict[str, StrategySet[Any]]:
        """Return the strategy sets by their configuration section."""
        found = (
            self.writers,
            self.allocators,
            self.flush_policies,
            self.dispatchers,
            self.retention_policies,
            self.extensions,
            self.replicators,
        )
        return {each.kind: each for each in found}

    def ask(self, event: str, **facts: object) -> list[tuple[str, BaseException]]:
        """Call every plugin's hook for an event, even if some raise; return (plugin, exception) of those."""
        raised: list[tuple[str, BaseException]] = []
        for implementation in getattr(self._manager.hook, event).get_hookimpls():
            try:
                implementation.function(**{name: facts[name] for name in implementation.argnames})
            except BaseException as error:
                if is_for_program(error):
                    raise
                logger.exception("plugin %r failed in %s", implementation.plugin_name, event)
                raised.append((implementation.plugin_name, error))
        return raised

    def fire(self, event: str, **facts: object) -> None:
        """Call every plugin's hook for an event; a hook that raises is logged and not called again."""
        for implementation in getattr(self._manager.hook, event).get_hookimpls():
            key = (implementation.plugin_name, event)
            if key in self._silenced:
                continue
            try:
                implementation.function(**{name: facts[name] for name in implementation.argnames})
            except BaseException as error:
                if is_for_program(error):
                    raise
                self._silenced.add(key)
                logger.exception(
                    "plugin %r failed in %s; the store is not affected, and this hook is not called again", *key
                )  # fmt: skip


_REGISTER_HOOKS = {
    "write": "penstock_register_writer",
    "alloc": "penstock_register_allocator",
    "flush": "penstock_register_flush",
    "index": "penstock_register_dispatcher",
    "retention": "penstock_register_retention",
    "extensions": "penstock_register_extension",
    "replicate": "penstock_register_replicator",
}


def load_registry(block: Iterable[str] = (), require: Iterable[str] = ()) -> Registry:
    """Import every installed plugin, check its hooks, and register its strategies.

    Args:
        block: entry points not to load.
        require: entry points that must load; otherwise `PluginLoadError` is raised.
    """
    manager, infos = load_plugins(block)
    registry = Registry(manager, infos)
    for info in registry.plugins:
        if info.status in (PluginStatus.LOADED, PluginStatus.SLOW):
            _gather(manager, registry, info)
    _report(registry, tuple(require))
    return registry


def _gather(manager: pluggy.PluginManager, registry: Registry, info: PluginInfo) -> None:
    """Register all strategies of one plugin, or none of them if anything is wrong."""
    offered: list[tuple[StrategySet[Any], type[Strategy]]] = []
    try:
        for kind, hook_name in _REGISTER_HOOKS.items():
            strategies = registry.sets()[kind]
            for implementation in getattr(manager.hook, hook_name).get_hookimpls():
                if implementation.plugin_name == info.entry_point:
                    for cls in implementation.function():
                        _check_class(cls, strategies.contract, info)
                        offered.append((strategies, cls))
    except PluginLoadError:
        manager.unregister(name=info.entry_point)
        return
    except (KeyboardInterrupt, SystemExit):
        # Also of a signal handler.
        raise
    except BaseException as error:
        info.set_aside(PluginStatus.BROKEN, f"{type(error).__name__}: {error}", error)
        manager.unregister(name=info.entry_point)
        return
    registering = set(_REGISTER_HOOKS.values())
    callers = manager.get_hookcallers(manager.get_plugin(info.entry_point)) or []
    info.hooks = sorted(caller.name for caller in callers if caller.name not in registering)
    for strategies, cls in offered:
        taken = strategies.add(cls, info.entry_point)
        if taken is None:
            info.offers.append((strategies.kind, cls.name))
        else:
            # Neither plugin gets the name, since it is ambiguous; their other strategies stay registered.
            info.status, info.error = PluginStatus.DUPLICATE, taken


def _check_class(cls: object, contract: type[Strategy], info: PluginInfo) -> None:
    """Raise `PluginLoadError`, and set the plugin aside, if a class does not fit its contract."""
    problem = None
    if not (isinstance(cls, type) and issubclass(cls, contract)):
        problem = f"{cls!r} is not a class derived from {contract.__name__}"
    elif cls.needs_contract > CONTRACT_VERSION:
        problem = (
            f"{cls.__name__} was written for contract version {cls.needs_contract}, "
            f"this Penstock has {CONTRACT_VERSION}"
        )
    elif getattr(cls, "__abstractmethods__", None):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        problem = f"{cls.__name__} does not implement {missing} of {contract.__name__}"
    elif not isinstance(getattr(cls, "name", None), str) or not _NAME.fullmatch(cls.name):
        problem = f"{cls.__name__} has no name in kebab-case"
    elif issubclass(cls, Dispatcher) and len(cls.name) > _DISPATCHER_NAME_MAX:
        problem = f"the name of {cls.__name__} has over {_DISPATCHER_NAME_MAX} characters"
    elif not isinstance(getattr(cls, "capabilities", None), Iterable):
        problem = f"{cls.__name__}.capabilities is not a set of names"
    elif not attrs.has(cls.Options):
        problem = f"{cls.__name__}.Options is not an attrs class"
    else:
        try:
            _try_options(cls.Options)
        except Exception as error:
            problem = f"{cls.__name__}.Options cannot be used: {type(error).__name__}: {error}"
    if problem:
        info.set_aside(PluginStatus.INCOMPATIBLE, problem)
        assert info.error is not None
        raise info.error


def _try_options(options: type) -> None:
    """Raise an exception if a class of options has no defaults, or a field that settings cannot be checked against."""
    hints = type_hints(options)
    for field in attrs.fields(options):
        hint = hints[field.name]
        if isinstance(hint, types.UnionType):
            hint = next(kind for kind in typing.get_args(hint) if kind is not types.NoneType)
        if typing.get_origin(hint) is not list:
            isinstance(object(), hint)
    options()


def _report(registry: Registry, require: tuple[str, ...]) -> None:
    """Log a warning for each plugin that was set aside; raise if a required one is missing."""
    fine = (PluginStatus.LOADED, PluginStatus.SLOW)
    loaded = {info.entry_point for info in registry.plugins if info.status in fine}
    for info in registry.plugins:
        if info.error is not None:
            if info.entry_point in require:
                raise info.error
            logger.warning("plugin set aside: %s", info.error)
            for strategies in registry.sets().values():
                strategies.note_missing(info.entry_point, str(info.error))
    for name in require:
        if name not in loaded:
            raise PluginLoadError(name, "?", "plugins.require names it, but it is not installed")
