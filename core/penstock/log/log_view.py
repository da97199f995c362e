"""The log as dispatchers may read it while they load."""

from collections.abc import Iterator

from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.format.columns import Buffer
from penstock.log.batches import read_batches
from penstock.log.segmented_log import SegmentedLog


class RecoveredLog:
    """The log as dispatchers may read it while they load (`contracts.LogView`)."""

    def __init__(self, log: SegmentedLog, end_offset: int) -> None:
        self._log = log
        self.end_offset = end_offset

    @property
    def min_offset(self) -> int:
        """Log offset of the first byte that the log still has."""
        return self._log.min_offset

    def read(self, log_offset: int, size: int) -> Buffer:
        """See `contracts.LogView`."""
        return self._log.read(log_offset, size)

    def batches(self, start: int, stop: int) -> Iterator[DispatchBatch]:
        """See `contracts.LogView`."""
        stop = min(stop, self.end_offset)
        return read_batches(self._log, start, stop, check_crc=True, is_copied=True)

    def spans(self) -> list[tuple[int, int]]:
        """See `contracts.LogView`."""
        return [(a, min(b, self.end_offset)) for a, b in self._log.spans() if a < self.end_offset]
