"""Runs one task: reads its spans of queues as Spark's record batches. This module does not import pyspark."""

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import penstock
from penstock.errors import OffsetError
from penstock.escape import get_logger
from penstock_spark.columns import converter, store_columns
from penstock_spark.errors import DataLossError
from penstock_spark.source.options import SourceOptions
from penstock_spark.source.planning import StoreSpan
from penstock_spark.stores.locations import Location
from penstock_spark.stores.open import open_store

if TYPE_CHECKING:
    import pyarrow as pa

logger = get_logger(__name__)

# A batch is cut where its records have so many bytes, whatever `rowsPerBatch` says.
BATCH_BYTES = 8 << 20
_ADVICE = "give failOnDataLoss=false to skip such messages with a warning"


class Losses:
    """Reports missing messages: raises an error, or logs a warning."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def report(self, what: str, cause: Exception | None = None) -> None:
        """Raise or log, as `failOnDataLoss` says."""
        if self._fails:
            raise DataLossError(what, _ADVICE) from cause
        logger.warning("%s; they are skipped, since failOnDataLoss is false", what)

    def in_store(self, name: str) -> "penstock.Lost":
        """Return the callback for messages that were deleted while they were read."""

        def lost(span: penstock.QueueSpan, error: OffsetError | None) -> None:
            self.report(
                f"messages [{span.start}, {span.stop}) of queue {span.queue} of topic {span.topic!r} in "
                f"{name} are gone: retention or a repair deleted them before they were read",
                error,
            )

        return lost


def read_spans(
    options: SourceOptions, names: Sequence[str], spans: Sequence[StoreSpan]
) -> "Iterator[pa.RecordBatch]":
    """Yield the batches of a task, store by store, each in the order of its log."""
    convert, needed = converter(names), store_columns(names)
    losses = Losses(fails=options.fail_on_loss)
    for name, mine in itertools.groupby(spans, lambda span: span.store):
        with open_store(Location(name)) as store:
            batches = store.lowlevel.arrow_spans(
                [penstock.QueueSpan(*span[1:]) for span in mine], needed,
                rows=options.rows_per_batch, size=BATCH_BYTES, verify=options.verify,
                tags=options.tags, keys=options.keys, lost=losses.in_store(name),
            )  # fmt: skip
            for batch in batches:
                yield convert(batch, name)
