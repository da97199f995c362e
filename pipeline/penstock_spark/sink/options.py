"""The sink's options, parsed and checked. No pyspark in here."""

import re
import tomllib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from penstock.errors import ConfigError
from penstock_spark.option_parser import Given
from penstock_spark.stores.dataset import SHARDS_MAX

PARTITIONERS = ("key", "round-robin", "task")
PROFILES = ("embedded", "rocketmq")
NAMES = (
    "path", "topic", "partitions", "partitioner", "shards", "txnAppId", "txnVersion", "lockTimeout",
    "stagingRetention", "profile", "config",
)  # fmt: skip
_READING = "is for reading; the sink takes"
_OTHERS = {
    "subscribe": f"{_READING} one topic, or a column 'topic'",
    "subscribePattern": f"{_READING} one topic, or a column 'topic'",
    "assign": f"{_READING} queues from a column 'partition'",
    "startingOffsets": f"{_READING} no offsets",
    "endingOffsets": f"{_READING} no offsets",
    "paths": "names several paths; the sink writes to one, and to several stores with 'shards'",
}
SETTING = "set."
# What the sink opens a store with, unless told otherwise: it appends large pieces and closes again, and what
# may go, and when, is for the store's owner to say.
USUAL = {
    "write.use": "file", "index.feed": "direct", "retention.use": [], "scrub.digests": False,
}  # fmt: skip
_QUEUES_MAX = 65_536
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, None: 1}


@attrs.frozen(kw_only=True)
class SinkOptions:
    """Where to and how.

    Attributes:
        root: folder of the store, or of the dataset.
        topic: the topic of all rows; None takes it from the column.
        partitions: how many queues the partitioner spreads rows over.
        partitioner: "key", "round-robin" or "task".
        shards: stores of the dataset; 0 where it was not given.
        app: who writes; batches are told apart within it. None for a stream that goes by its query's id.
        version: which batch of `app` a batch query is; None for a save that is only itself.
        lock_timeout_s: how long a commit waits for a store that another writes.
        retention_s: staged files that no batch names go when they are so old.
        config: a configuration file for the stores.
        settings: what the stores are opened with, by dotted name.
    """

    root: Path
    topic: str | None = None
    partitions: int = 4
    partitioner: str = "key"
    shards: int = 0
    app: str | None = None
    version: int | None = None
    lock_timeout_s: float = 60.0
    retention_s: float = 7 * 86400.0
    config: Path | None = None
    settings: Mapping[str, Any] = attrs.Factory(lambda: dict(USUAL))


def parse_options(options: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Return the options, checked."""
    settings = {k: v for k, v in options.items() if k.lower().startswith(SETTING)}
    rest = {k: v for k, v in options.items() if k not in settings}
    given = Given(rest, NAMES, _OTHERS)
    app, version = _transaction(given, is_stream=is_stream)
    config = given.text("config")
    return SinkOptions(
        root=_root(given.text("path")),
        topic=given.text("topic"),
        partitions=given.whole("partitions", 4, 1, _QUEUES_MAX),
        partitioner=given.choice("partitioner", PARTITIONERS, "key"),
        shards=given.whole("shards", 0, 1, SHARDS_MAX) if "shards" in given else 0,
        app=app,
        version=version,
        lock_timeout_s=_seconds(given, "lockTimeout", "60s"),
        retention_s=_seconds(given, "stagingRetention", "7d"),
        config=Path(config) if config is not None else None,
        settings=_settings(given, settings, has_config=config is not None),
    )


def _root(path: str | None) -> Path:
    if not path:
        raise ConfigError("give the folder of a store to write to: save(path), or option 'path'")
    path = path.removeprefix("file://") if path.startswith("file:///") else path
    path = path.removeprefix("file:") if path.startswith("file:/") else path
    if "://" in path:
        raise ConfigError(
            f"the sink writes to folders of this machine's file system, not to {path}"
        )
    return Path(path).absolute()


def _transaction(given: Given, *, is_stream: bool) -> tuple[str | None, int | None]:
    app = given.text("txnAppId")
    if app is not None and not app.strip():
        raise ConfigError("txnAppId is empty; leave it out, or name who writes")
    if is_stream:
        if "txnVersion" in given:
            raise ConfigError(
                "txnVersion is for batch queries; a stream's batches have numbers already"
            )
        return app, None
    if ("txnVersion" in given) != (app is not None):
        raise ConfigError("txnAppId and txnVersion go together: give both, or neither")
    if app is None:
        return f"save-{uuid.uuid4().hex}", None
    return app, given.whole("txnVersion", 0, 0, (1 << 63) - 1)


def _seconds(given: Given, name: str, default: str) -> float:
    text = str(given.text(name, default)).strip()
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"{name} is {text!r}; it must be a duration, as 500ms, 30s, 5m, 12h or 7d"
        )
    return float(found[1]) * _SECONDS[found[2]]


def _settings(given: Given, options: Mapping[str, str], *, has_config: bool) -> dict[str, Any]:
    """Return settings for `penstock.open`; those of a file count before the usual ones."""
    settings: dict[str, Any] = {} if has_config else dict(USUAL)
    if "profile" in given:
        settings["profile"] = given.choice("profile", PROFILES, "embedded")
    for key, text in options.items():
        name = key.lower().removeprefix(SETTING)
        try:
            settings[name] = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):
            settings[name] = text
    return settings
