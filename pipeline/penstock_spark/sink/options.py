"""The sink's options: declared, parsed and checked. This module does not import pyspark."""

import tomllib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from penstock.errors import ConfigError
from penstock_spark.option_parser import (
    GivenOptions,
    Parser,
    choice,
    option,
    optional,
    plain,
    required,
    seconds_of,
    whole,
)
from penstock_spark.stores import SHARDS_MAX, without_scheme

_READING = "is for reading; the sink takes"
_OTHERS = {
    "subscribe": f"{_READING} one topic, or a column 'topic'",
    "subscribePattern": f"{_READING} one topic, or a column 'topic'",
    "assign": f"{_READING} queues from a column 'partition'",
    "startingOffsets": f"{_READING} no offsets",
    "endingOffsets": f"{_READING} no offsets",
    **dict.fromkeys(
        ("since", "until", "tags", "keys", "startingTimestamp", "endingTimestamp"),
        f"{_READING} all rows",
    ),
    **dict.fromkeys(
        ("delay", "deliver_at", "delay_level", "tag", "key", "queue"),
        "is no option: the sink takes columns, and delivers at once",
    ),
    "profile": "is a setting of the stores: 'set.profile'",
    "config": "is no option: give each setting of the stores as 'set.<setting>'",
    "paths": "names several paths; the sink writes to one, and to several stores with 'shards'",
}
SETTING = "set."
_NO_PATH = "give the folder of a store to write to: save(path), or option 'path'"
# What the sink opens a store with, unless `set.` says otherwise: it appends large pieces and closes again, and what
# may go, and when, is for the store's owner to say.
USUAL = {"write.use": "file", "retention.use": [], "scrub.digests": False}
_QUEUES_MAX = 65_536
_VERSION_MAX = (1 << 63) - 1


def _root(_name: str, path: str) -> Path:
    if not path:
        raise ConfigError(_NO_PATH)
    path = without_scheme(path)
    if "://" in path:
        raise ConfigError(
            f"the sink writes to folders of this machine's file system, not to {path}"
        )
    return Path(path).absolute()


def _app(name: str, text: str) -> str:
    if not text.strip():
        raise ConfigError(f"{name} is empty; give the writer's name, or omit the option")
    return text


def _one_of(*names: str) -> Parser[str]:
    return choice({name: name for name in names})


@attrs.frozen(kw_only=True)
class SinkOptions:
    """All options of the sink; docs/spark-sink.md describes them.

    Attributes:
        store_settings: the options `set.<setting>`, which are settings of the stores, by dotted name.
    """

    # As in a table.
    # fmt: off
    root: Path = required("path", _root, "folder of the store, or of the dataset")
    topic: str | None = optional("topic", plain, None, "the topic of all rows; if None, the rows' column `topic`")
    partitions: int = option("partitions", whole(1, _QUEUES_MAX), "4",
        "number of queues that the partitioner distributes rows over")
    partitioner: str = option("partitioner", _one_of("key", "round-robin", "task"), "key",
        "how the queue of a row is chosen")
    shards: int = optional("shards", whole(1, SHARDS_MAX), 0, "number of stores of the dataset; 0 if it was not given")
    app: str | None = optional("txnAppId", _app, None, "the application that writes, within which batch numbers are "
        "unique; None for a stream identified by its query id")
    version: int | None = optional("txnVersion", whole(0, _VERSION_MAX), None,
        "the batch number of a batch query within `app`; None for a save without one")
    lock_timeout_s: float = option("lockTimeout", seconds_of, "60s",
        "maximum time a commit waits for a store to which another process writes")
    retention_s: float = option("stagingRetention", seconds_of, "7d",
        "age at which staged files that no batch names are deleted")
    store_settings: Mapping[str, Any] = attrs.Factory(dict)
    # fmt: on

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the stores are opened with, by dotted name."""
        return {**USUAL, **self.store_settings}


def parse_options(options: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Return the options of a batch query or of a stream.

    Raises:
        ConfigError: a name is a misspelt option, a value is invalid, or two options exclude each other.
    """
    settings = {k: v for k, v in options.items() if k.lower().startswith(SETTING)}
    given = GivenOptions(
        {k: v for k, v in options.items() if k not in settings}, SinkOptions, _OTHERS
    )
    if "path" not in given:
        raise ConfigError(_NO_PATH)
    _check_transaction(given, is_stream=is_stream)
    values = given.values()
    if not is_stream:
        values.setdefault("app", f"save-{uuid.uuid4().hex}")
    return SinkOptions(**values, store_settings=_parse_settings(settings))


def _check_transaction(given: GivenOptions, *, is_stream: bool) -> None:
    if is_stream and "txnVersion" in given:
        raise ConfigError(
            "txnVersion is for batch queries only; Spark numbers the batches of a stream"
        )
    if not is_stream and ("txnVersion" in given) != ("txnAppId" in given):
        raise ConfigError("give both txnAppId and txnVersion, or neither")


def _parse_settings(options: Mapping[str, str]) -> dict[str, Any]:
    """Return settings for `penstock.open`: TOML values; a value that is not valid TOML is taken as text."""
    settings: dict[str, Any] = {}
    for key, text in options.items():
        name = key.lower().removeprefix(SETTING)
        try:
            settings[name] = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):
            settings[name] = text
    return settings
