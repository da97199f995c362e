"""Transforms messages on their way into another store: filters them, replaces keys, and creates the sink's columns."""

from collections.abc import Mapping
from typing import Any

import attrs

from penstock.errors import ConfigError
from penstock_spark.jobs.sink_write import headers_of, in_order

# Columns for the order only: a store's, or a Parquet file's.
_OF_STORE = "_log_offset"
_OF_FILES = ("_file", "_row")


@attrs.frozen(kw_only=True)
class Transform:
    """The changes to messages; every attribute is optional.

    Attributes:
        topics: only these topics.
        tags: only these tags.
        where: an SQL condition over the source's columns.
        topic: the topic for all messages; if None, each keeps its own.
        key: an SQL expression for the key.
        tag: an SQL expression for the tag.
        partition: an SQL expression for the queue.
    """

    topics: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    where: str | None = None
    topic: str | None = None
    key: str | None = None
    tag: str | None = None
    partition: str | None = None


def changed(frame: Any, change: Transform, options: Mapping[str, str]) -> Any:
    """Return a frame with the sink's columns and the columns for the order; raise `ConfigError` for invalid expressions."""
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415 - an extra
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    names = frame.columns
    if "value" not in names:
        raise ConfigError(f"the source has no column 'value'; it has: {', '.join(names)}")
    if "topic" not in names and change.topic is None:
        raise ConfigError("the source has no column 'topic': give the topic")
    for column, wanted in (("topic", change.topics), ("tags", change.tags)):
        if wanted and column not in names:
            raise ConfigError(f"the source has no column {column!r} to filter by")
        if wanted:
            frame = frame.where(f.col(column).isin(*wanted))
    try:
        if change.where is not None:
            frame = frame.where(change.where)
        made = frame.select(*_columns(frame, change, options))
        # Over Spark Connect nothing is looked at before this.
        _ = made.columns
    except (AnalysisException, ParseException) as error:
        text = str(error).strip().splitlines()[0]
        raise ConfigError(f"an expression of the replay is not valid: {text}") from error
    return made


def _columns(frame: Any, change: Transform, options: Mapping[str, str]) -> list[Any]:
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    names = set(frame.columns)
    made = {"value": f.col("value").cast("binary")}
    made["topic"] = f.lit(change.topic) if change.topic is not None else f.col("topic")
    # How many queues there are, and who picks one, may be the sink's matter.
    is_picked = bool({"partitions", "partitioner"} & options.keys())
    for name, expression, kind, is_kept in (
        ("key", change.key, "string", True), ("tags", change.tag, "string", True),
        ("partition", change.partition, "int", not is_picked),
    ):  # fmt: skip
        if expression is not None:
            made[name] = f.expr(expression).cast(kind)
        elif name in names and is_kept:
            made[name] = f.col(name).cast(kind)
    headers = headers_of(frame)
    if headers is not None:
        made["headers"] = headers
    born = next((name for name in ("bornTimestamp", "timestamp") if name in names), None)
    if born is not None:
        made["timestamp"] = f.col(born).cast("timestamp")
    for name, source in ((_OF_STORE, "logOffset"), *((name, name) for name in _OF_FILES)):
        if source in names:
            made[name] = f.col(source)
    return [column.alias(name) for name, column in made.items()]


def ordered(frame: Any, rows: int) -> Any:
    """Return about so many rows in the order of storing, or in the order of their files."""
    order = [_OF_STORE] if _OF_STORE in frame.columns else list(_OF_FILES)
    return in_order(frame, order, rows).drop(_OF_STORE, *_OF_FILES)
