"""Atomic batches of which only a part has been copied: held back from queues and readers until they are whole.

A follower gets its master's log in pieces, which may end within a batch (see `atomic_batches`). The part is in the log, and
a recovery cuts it off again unless the rest has come.
"""

import attrs

from penstock.format.columns import RecordColumns
from penstock.format.record import BLANK_SIZE
from penstock.log.atomic_batches import BatchRun, read_mark


@attrs.frozen
class _Open:
    """A batch [begin, end) whose end is missing, and the check of its records."""

    begin: int
    end: int
    run: BatchRun


class HeldBatches:
    """Which batches of a log were appended in several pieces. One thread appends; `shown` is safe from any thread."""

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._open: _Open | None = None
        # First log offset, and the one after the last; replaced, never changed in place.
        self._held: tuple[tuple[int, int], ...] = ()

    @property
    def begin(self) -> int | None:
        """Where the batch begins whose end is missing; None if there is none."""
        return None if self._open is None else self._open.begin

    def shown(self, log_offset: int) -> int:
        """Return the log offset up to which records may be shown if `log_offset` is the end of the readable bytes."""
        for begin, end in self._held:
            if begin < log_offset < end:
                return begin
        return log_offset

    def add(self, records: RecordColumns, end_offset: int, shown: int) -> None:
        """Called with each piece before it is appended: its records, its end, and up to where readers see records now."""
        if self._held:
            # A batch may be left out only when no reader can be within it.
            going_on = self._open.begin if self._open is not None else -1
            self._held = tuple(
                each for each in self._held if each[1] > shown or each[0] == going_on
            )
        if not len(records):
            self._drop()
            return
        if self._open is not None:
            self._continue(self._open, records, end_offset)
        if self._open is None:
            self._begin(records, end_offset)

    def _continue(self, batch: _Open, records: RecordColumns, end_offset: int) -> None:
        """Check that the next records are those of an open batch, until it is whole."""
        offsets = records.log_offsets
        count = int((offsets < batch.end).sum())
        if not batch.run.has_all(records.rows(slice(0, count))):
            self._drop()
        elif end_offset == batch.end or (count < len(records) and int(offsets[count]) == batch.end):
            self._open = None
        elif end_offset > batch.end:
            self._drop()

    def _begin(self, records: RecordColumns, end_offset: int) -> None:
        """Look for a batch that begins in these records and does not end in them."""
        last, number = int(records.log_offsets[-1]), int(records.prepared_offsets[-1])
        mark = read_mark(number)
        if mark is None:
            return
        base = last - last % self._segment_bytes
        start = last - base if mark.is_first else mark.start
        if not (end_offset - base < mark.end <= self._segment_bytes - BLANK_SIZE):
            return
        begin = base + start
        row = int((records.log_offsets < begin).sum())
        if row == len(records) or int(records.log_offsets[row]) != begin:
            return
        run = BatchRun(start, mark)
        if run.has_all(records.rows(slice(row, len(records)))):
            self._open = _Open(begin, base + mark.end, run)
            self._held = (*self._held, (begin, base + mark.end))

    def _drop(self) -> None:
        """The records of an open batch do not continue as its marks say: they are ordinary records."""
        if self._open is not None:
            begin = self._open.begin
            self._held = tuple(each for each in self._held if each[0] != begin)
            self._open = None
