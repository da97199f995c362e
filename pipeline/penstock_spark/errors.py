"""The one error that the pipeline adds to those of `penstock.errors`."""

from penstock.errors import StorageError


class DataLossError(StorageError):
    """Messages that a query should have read are gone; `advice` says how to go on without them."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(f"{what}; {advice}")
