"""Writes messages for jobs: through the sink, in the order of rows, each batch once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Properties that the sink writes by itself, or that are the store's own.
OWN_PROPERTIES = ("TAGS", "KEYS", "WAIT", "DELAY", "UNIQ_KEY", "CLUSTER", "__CRC32#")
# Up to here one task writes a batch: a sort across tasks would read it twice.
_ONE_TASK_ROWS = 200_000


def write_batch(
    frame: Any, target: Path, app: str, version: int, options: Mapping[str, str]
) -> None:
    """Append a frame's rows to a store; do nothing if the batch is already written."""
    (
        frame.write.format("penstock")
        .mode("append")
        .options(**options)
        .option("txnAppId", app)
        .option("txnVersion", str(version))
        .save(str(target))
    )


def in_order(frame: Any, columns: list[str], rows: int) -> Any:
    """Return a frame whose rows the sink appends in this order."""
    if rows <= _ONE_TASK_ROWS:
        return frame.repartition(1).sortWithinPartitions(*columns)
    return frame.orderBy(*columns)


def headers_of(frame: Any) -> Any | None:
    """Return the column for the sink's `headers`, from headers or properties; None if there is neither."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    if "headers" in frame.columns:
        return f.col("headers")
    if "properties" not in frame.columns:
        return None
    others = f.map_filter("properties", lambda name, _: ~name.isin(*OWN_PROPERTIES))
    return f.transform(
        f.map_entries(others),
        lambda pair: f.struct(
            pair["key"].alias("key"), pair["value"].cast("binary").alias("value")
        ),
    )
