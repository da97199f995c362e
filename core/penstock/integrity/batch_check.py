"""Checks the marks of atomic batches in one segment: batches of which the log has only a part, and marks that fit nothing."""

from collections.abc import Iterator

from penstock.contracts.dispatcher import Finding
from penstock.format.arrays import np
from penstock.format.columns import RecordColumns
from penstock.log.scan import batch_marks, read_mark
from penstock.log.segment import Segment


class BatchCheck:
    """Checks the records of a segment in the order of the log. Not thread-safe.

    The findings are notes: the records themselves are valid, and nothing can complete a batch.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        # The batch that is not complete yet: where it begins and ends, and the mark of its other records.
        self._begin = self._end = self._other = 0
        self._reached = 0

    def add(self, columns: RecordColumns) -> Iterator[Finding]:
        """Yield the findings in the next valid records."""
        numbers = columns.prepared_offsets
        if self._end == 0 and not (numbers < 0).any():
            return
        marked = np.flatnonzero(numbers < 0)
        parts = numbers[marked], columns.log_offsets[marked], columns.sizes[marked]
        for number, at, size in zip(*(part.tolist() for part in parts), strict=True):
            yield from self._add_one(number, at, at + size)

    def _add_one(self, number: int, at: int, end: int) -> Iterator[Finding]:
        if self._end and at == self._reached and number == self._other and end <= self._end:
            self._reached = end
            if end == self._end:
                self._end = 0
            return
        yield from self.finish()
        if number >= 0:
            return
        base, mark = self._segment.base_offset, read_mark(number)
        if (
            mark is None
            or not mark.is_first
            or not end - base <= mark.end <= self._segment.capacity
        ):
            text = f"PREPAREDTRANSACTIONOFFSET {number} is negative, and no mark of an atomic batch that fits there"
            yield self._note(at, f"{text}; it means nothing, and the record is valid")
        elif end - base < mark.end:
            decision = mark.decision if mark.is_decided else None
            self._begin, self._end, self._reached = at, base + mark.end, end
            self._other = batch_marks(at - base, mark.end, decision)[1]

    def finish(self) -> Iterator[Finding]:
        """Yield the finding of a batch that is not complete when other records follow, or the records end."""
        if self._end == 0:
            return
        begin, end, reached, self._end = self._begin, self._end, self._reached, 0
        yield self._note(
            begin,
            f"messages that were to be stored together, at log offsets {begin} to {end}, are there only up to {reached}: a "
            f"process was killed meanwhile, and another program has written the store before Penstock opened it",
        )

    def _note(self, log_offset: int, text: str) -> Finding:
        segment = self._segment
        return Finding(
            "log", segment.path, log_offset - segment.base_offset, log_offset, text, is_note=True
        )
