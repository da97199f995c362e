"""The one error that the pipeline adds to those of `penstock.errors`."""

from penstock.errors import StorageError


class DataLossError(StorageError):
    """Messages that a query should have read no longer exist; `advice` says how to continue without them."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(f"{what}; {advice}")
