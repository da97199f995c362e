"""The errors that the pipeline adds to those of `penstock.errors`."""

from penstock.errors import StorageError


class DataLossError(StorageError):
    """Messages that a query should have read no longer exist; `advice` says how to continue without them."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(f"{what}; {advice}")


class StaleCheckpointError(StorageError):
    """A stream's batch has a number that the store has already, and other rows; nothing was written.

    Attributes:
        app: the query, or its txnAppId.
        batch: the number of the batch.
        rows: its number of rows.
        last: the last batch of the query that the store has.
        last_rows: the number of rows of that one.
    """

    def __init__(self, app: str, batch: int, rows: int, last: int, last_rows: int) -> None:
        self.app, self.batch, self.rows, self.last, self.last_rows = (
            app,
            batch,
            rows,
            last,
            last_rows,
        )
        super().__init__(
            f"batch {batch} of query {app!r} has {rows} rows, but the store has its batches up to {last}, which has "
            f"{last_rows} rows, and Spark repeats only the last one, with the same rows. The query's checkpoint was "
            f"restored from a copy or begun again, another query has the same txnAppId, or the query selects other "
            f"rows each time. Nothing was written. To continue, start it with a new checkpoint and a new txnAppId, and "
            f"with startingOffsets after the rows that the store has"
        )
