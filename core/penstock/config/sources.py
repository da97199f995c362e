"""Reads settings from their sources, and builds the checked, frozen configuration.

Precedence of the sources, lowest to highest: a TOML file, the environment, overrides. Every table is checked, used or
not: an unknown key is an error that suggests the nearest known key.
"""

import difflib
import sys
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from penstock.config.model import CHECKSUMS, PROFILES, SECTIONS, Config, PluginsConfig
from penstock.errors import ConfigError, PenstockError
from penstock.escape import shown
from penstock.plugins.registry import Registry, type_hints

ENVIRONMENT_PREFIX = "PENSTOCK_"
# Section, strategy, option; deeper tables hold no setting.
_DEPTH_MAX = 8
# Keywords of `penstock.open` that take a strategy's name as the section's `use`.
SHORTCUTS = ("write", "alloc", "flush", "index", "retention", "extensions", "replicate")
Given = dict[str, tuple[Any, str]]


class Sourced(NamedTuple):
    """The value of an override that did not come from a call, and its origin, which messages name."""

    value: Any
    origin: str


def gather(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, Any]) -> Given:
    """Return (value, origin) by dotted key; precedence of sources, lowest to highest: file, environment, overrides."""
    given: Given = {}
    if path is not None:
        given.update(_from_file(path))
    given.update(_from_environment(environ))
    for key, override in overrides.items():
        value, origin = override if isinstance(override, Sourced) else (override, "call")
        if value is None:
            continue
        if key in SHORTCUTS and not isinstance(value, Mapping):
            given[f"{key}.use"] = (value, origin)
        else:
            given.update(_flatten(key, value, origin))
    return given


def _from_file(path: Path) -> Given:
    """Return the settings of a TOML file; raises `ConfigError` if it is missing or not valid TOML."""
    try:
        with path.open("rb") as file:
            tree = tomllib.load(file)
    except FileNotFoundError as error:
        is_mode = str(path).rstrip("b+") in {"r", "w", "a", "x"}
        hint = "; no mode is expected here: read_only opens for reading" if is_mode else ""
        raise ConfigError(f"there is no configuration file {path}{hint}") from error
    except OSError as error:
        raise ConfigError(
            f"the configuration file {path} cannot be read: {error.strerror}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    given: Given = {}
    for key, value in tree.items():
        given.update(_flatten(key, value, str(path)))
    return given


def _flatten(key: str, value: object, origin: str, depth: int = 1) -> Given:
    if not isinstance(value, Mapping):
        return {key: (value, origin)}
    if depth > _DEPTH_MAX:
        raise ConfigError(f"there is no setting {key} ({origin}): it is nested too deeply")
    given: Given = {}
    for name, inner in value.items():
        given.update(_flatten(f"{key}.{name}", inner, origin, depth + 1))
    return given


def _from_environment(environ: Mapping[str, str]) -> Given:
    given: Given = {}
    for name, text in environ.items():
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        parts = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        # Other variables have the prefix, too. One that begins with a section is a setting with an underscore too few.
        if len(parts) > 1 or parts[0] == "profile" or parts[0].partition("_")[0] in SECTIONS:
            # A strategy's name is the middle part, and in kebab-case.
            parts[1:-1] = [part.replace("_", "-") for part in parts[1:-1]]
            given[".".join(parts)] = (parse_value(text), f"environment variable {name}")
    return given


def parse_value(text: str) -> Any:
    """Return a value written in TOML; anything that is not a TOML value is taken as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


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
    checksum = sections["log"].checksum
    if checksum is not None and checksum not in CHECKSUMS:
        raise ConfigError(
            f"log.checksum is {checksum!r}; it must be one of: {', '.join(CHECKSUMS)}"
        )
    for kind in ("index", "retention", "extensions"):
        names = sections[kind].use or []
        if len(set(names)) < len(names):
            raise ConfigError(f"{kind}.use names a strategy twice: {names}")
    options = {}
    for kind, strategies in registry.sets().items():
        for name in strategies.names():
            options[kind, name] = _fill(
                strategies.get(name).Options, f"{kind}.{name}", given, origins
            )
    return Config(profile=profile, **sections, options=options, origins=origins)


def _check_keys(given: Given, registry: Registry, arguments: Sequence[str]) -> None:
    """Raise `ConfigError` for a key that no section and no strategy has; it suggests the nearest known key.

    For an option of a strategy that is missing, the error is that of the strategy: it says which plugin is in the way.
    """
    known = {"profile"}
    for name, section in SECTIONS.items():
        known.update(f"{name}.{field.name}" for field in attrs.fields(section))
    for kind, strategies in registry.sets().items():
        for name in strategies.names():
            fields = attrs.fields(strategies.get(name).Options)
            known.update(f"{kind}.{name}.{field.name}" for field in fields)
    for key, (_, origin) in given.items():
        if key not in known:
            kind, name, *option = [*key.split("."), ""]
            if kind in registry.sets() and len(option) > 1:
                try:
                    registry.sets()[kind].get(name)
                except PenstockError as error:
                    error.add_note(f"{key} is set ({origin})")
                    raise
            others = [*arguments, *SHORTCUTS] if origin == "call" and "." not in key else ()
            near = difflib.get_close_matches(key, [*others, *sorted(known)], 1, 0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; sections: {', '.join(SECTIONS)}"
            raise ConfigError(f"there is no setting {key} ({origin}){hint}")


def _fill(cls: type, prefix: str, given: Given, origins: Mapping[str, str]) -> Any:
    """Return an instance of a section's class with the given values, checked; raises `ConfigError`."""
    hints = type_hints(cls)
    values = {}
    for field in attrs.fields(cls):
        key = f"{prefix}.{field.name}"
        if key in given:
            value, origin = given[key]
            values[field.name] = _convert(key, value, hints[field.name], origin)
    try:
        return cls(**values)
    except Exception as error:
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
