"""From settings to the checked, frozen configuration.

Every table is checked, used or not: an unknown key is an error that suggests the nearest known key.
"""

import difflib
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from penstock.config.model import CHECKSUMS, SECTIONS, Config, PluginsConfig
from penstock.config.profiles import PROFILES
from penstock.config.sources import SHORTCUTS, Given
from penstock.errors import ConfigError, shown
from penstock.plugins.registry import Registry


def plugin_lists(given: Given) -> PluginsConfig:
    """Return the section `plugins`, which is needed before the other sections can be checked."""
    found: PluginsConfig = _fill(PluginsConfig, "plugins", given, {})
    return found


def build_config(given: Given, registry: Registry, arguments: Sequence[str] = ()) -> Config:
    """Return the checked configuration.

    `arguments` are the names of the caller's other arguments, which an unknown key of a call may have meant.
    """
    origins = {key: origin for key, (_, origin) in given.items()}
    _check_keys(given, registry, arguments)
    sections = {name: _fill(section, name, given, origins) for name, section in SECTIONS.items()}
    profile, origin = given.get("profile", (None, "default"))
    if profile is not None and (not isinstance(profile, str) or profile not in PROFILES):
        raise ConfigError(
            f"profile is {shown(profile)} ({origin}); it must be one of: {', '.join(PROFILES)}"
        )
    if sections["log"].checksum is not None:
        _check_word("log.checksum", sections["log"].checksum, CHECKSUMS)
    options = {}
    for kind, strategies in registry.sets().items():
        for name in strategies.names():
            options[kind, name] = _fill(
                strategies.get(name).Options, f"{kind}.{name}", given, origins
            )
    return Config(profile=profile, **sections, options=options, origins=origins)


def _check_word(key: str, value: str, words: Sequence[str]) -> None:
    if value not in words:
        raise ConfigError(f"{key} is {value!r}; it must be one of: {', '.join(words)}")


def _check_keys(given: Given, registry: Registry, arguments: Sequence[str]) -> None:
    """Raise `ConfigError` for a key that no section and no strategy has; it suggests the nearest known key."""
    known = {"profile"}
    for name, section in SECTIONS.items():
        known.update(f"{name}.{field.name}" for field in attrs.fields(section))
    for kind, strategies in registry.sets().items():
        for name in strategies.names():
            fields = attrs.fields(strategies.get(name).Options)
            known.update(f"{kind}.{name}.{field.name}" for field in fields)
    for key, (_, origin) in given.items():
        if key not in known:
            others = [*arguments, *SHORTCUTS] if origin == "call" and "." not in key else ()
            near = difflib.get_close_matches(key, [*others, *sorted(known)], 1, 0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; sections: {', '.join(SECTIONS)}"
            raise ConfigError(f"there is no setting {key} ({origin}){hint}")


def _fill(cls: type, prefix: str, given: Given, origins: Mapping[str, str]) -> Any:
    """Return an instance of a section's class with the given values, checked; raises `ConfigError`."""
    hints = typing.get_type_hints(cls)
    values = {}
    for field in attrs.fields(cls):
        key = f"{prefix}.{field.name}"
        if key in given:
            value, origin = given[key]
            values[field.name] = _convert(key, value, hints[field.name], origin)
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{prefix}: {error}") from error


def _convert(key: str, value: object, hint: Any, origin: str) -> object:
    """Return a value as the type of its field; raises `ConfigError` if it has another type."""
    if isinstance(hint, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return value if value is None else _convert(key, value, kinds[0], origin)
    if typing.get_origin(hint) is list:
        if isinstance(value, str):
            value = [value] if value else []
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return list(value)
    elif hint is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    elif isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    expected = getattr(hint, "__name__", str(hint))
    raise ConfigError(f"{key} is {shown(value)} ({origin}); it must be of type {expected}")
