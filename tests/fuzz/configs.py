"""Fuzz target: configuration from a TOML file, the environment, and a broker.conf; the first byte says which."""

import contextlib
import functools
from pathlib import Path

from tests.fuzz.ground import folder

from penstock.config import sources
from penstock.config.broker_conf import from_broker_conf
from penstock.config.sources import build_config, plugin_lists
from penstock.errors import ConfigError
from penstock.plugins.registry import Registry, load_registry


@functools.cache
def _registry() -> Registry:
    return load_registry()


@functools.cache
def _path() -> Path:
    return folder() / "penstock.toml"


def target(data: bytes) -> None:
    which, content = (data[0] % 3, data[1:]) if data else (0, b"")
    with contextlib.suppress(ConfigError):
        given = [_file, _environment, _broker][which](content)
        plugin_lists(given)
        built = build_config(given, _registry())
        assert all(isinstance(key, str) for key, _, _ in built.items())


def _file(content: bytes) -> sources.Given:
    _path().write_bytes(content)
    return sources.gather(_path(), {}, {})


def _environment(content: bytes) -> sources.Given:
    lines = content.decode("utf-8", "surrogateescape").replace("\0", "").split("\n")
    pairs = (line.partition("=") for line in lines)
    return sources.gather(None, {f"PENSTOCK_{name}": value for name, _, value in pairs}, {})


def _broker(content: bytes) -> sources.Given:
    return sources.gather(None, {}, from_broker_conf(content.decode("utf-8", "replace")))
