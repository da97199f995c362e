"""What is wrong in a store, as `verify` tells it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.batch import DispatchBatch


class Finding(NamedTuple):
    """One thing that is wrong in a store.

    Attributes:
        part: "log", "queue", "index", or a dispatcher's own word.
        path: the file.
        position: byte in the file; -1 where no one byte is meant.
        log_offset: the record it is about; -1 for none.
        text: what is wrong, in one sentence.
    """

    part: str
    path: Path
    position: int
    log_offset: int
    text: str


class Checker(ABC):
    """Compares derived files with the log for `verify`; changes nothing."""

    @abstractmethod
    def batch(self, batch: DispatchBatch) -> Iterator[Finding]:
        """Return what is wrong for these records; batches come in log order, all once."""

    @abstractmethod
    def finish(self, end: int) -> Iterator[Finding]:
        """Return what is in the files for records below `end` beyond those that came."""
