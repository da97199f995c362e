"""Reads settings from their sources. Precedence, lowest to highest: a TOML file, the environment, overrides.

Nothing is checked here but the form of each source; `build` checks keys and values.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import ConfigError

ENVIRONMENT_PREFIX = "PENSTOCK_"
# Section, strategy, option; deeper tables hold no setting.
_DEPTH_MAX = 8
# Keywords of `penstock.open` that take a strategy's name as the section's `use`.
SHORTCUTS = ("write", "alloc", "flush", "index", "retention", "extensions")
Given = dict[str, tuple[Any, str]]


class Sourced(NamedTuple):
    """The value of an override that did not come from a call, and its origin, which messages name."""

    value: Any
    origin: str


def gather(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, Any]) -> Given:
    """Return (value, origin) by dotted key from all sources; precedence, lowest to highest: file, environment, overrides."""
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
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            parts = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
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
