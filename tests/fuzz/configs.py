"""Fuzz target: configuration from a TOML file, the environment, and a broker.conf; the first byte says which."""

import contextlib
import functools
from pathlib import Path

from tests.fuzz.ground import folder

from penstock import config
from penstock.brokerconf import from_broker_conf
from penstock.errors import ConfigError
from penstock.registry import Registry, load_registry


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
        config.plugin_lists(given)
        built = config.build(given, _registry())
        assert all(isinstance(key, str) for key, _, _ in built.items())


def _file(content: bytes) -> config.Given:
    _path().write_bytes(content)
    return config.gather(_path(), {}, {})


def _environment(content: bytes) -> config.Given:
    lines = content.decode("utf-8", "surrogateescape").replace("\0", "").split("\n")
    pairs = (line.partition("=") for line in lines)
    return config.gather(None, {f"PENSTOCK_{name}": value for name, _, value in pairs}, {})


def _broker(content: bytes) -> config.Given:
    return config.gather(None, {}, from_broker_conf(content.decode("utf-8", "replace")))
