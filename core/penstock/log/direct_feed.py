"""The direct feed: passes appended records to the tail follower, so that the follower need not read the log.

The append path adds each record's bytes; the follower takes the records that continue its position. If
records are missing (after a restart, when the follower lags and the feed is full, or when a dispatcher
needs older records again), the follower reads the log instead. So both ways give the same batches, and
only their cost differs. RocketMQ 3 fed its dispatchers this way.

One thread adds (under the append lock), and one thread takes (the follower's).
"""

from collections import deque
from typing import NamedTuple

from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.format.arrays import Int64s, np
from penstock.format.columns import Buffer, RecordColumns

# The maximum size of waiting records in bytes; a follower that lags by more reads the log.
BYTES_MAX = 32 << 20
_BATCH_BYTES = 8 << 20


class FeedSlice(NamedTuple):
    """Consecutive records of the log. `sizes` is None for a single record."""

    log_offset: int
    data: Buffer
    sizes: Int64s | None


class DirectFeed:
    """A queue of records from the append path to the dispatchers. One thread adds, one takes."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._pieces: deque[FeedSlice] = deque()
        self._bytes_max = bytes_max
        # Counted by one thread each, so neither count needs a lock.
        self._added = 0
        self._taken = 0

    def add_one(self, log_offset: int, record: bytes) -> None:
        """Add one record; it is dropped if the feed is full."""
        if self._added - self._taken < self._bytes_max:
            self._added += len(record)
            self._pieces.append(FeedSlice(log_offset, record, None))

    def add_batch(self, log_offsets: Int64s, sizes: Int64s, data: memoryview) -> None:
        """Add many records, which are consecutive in `data` but may have gaps between them in the log."""
        if self._added - self._taken >= self._bytes_max:
            return
        ends = np.cumsum(sizes)
        jumps = np.nonzero(log_offsets[1:] != log_offsets[:-1] + sizes[:-1])[0] + 1
        for first, stop in zip([0, *jumps.tolist()], [*jumps.tolist(), len(sizes)], strict=True):
            start, end = int(ends[first] - sizes[first]), int(ends[stop - 1])
            self._added += end - start
            self._pieces.append(
                FeedSlice(int(log_offsets[first]), data[start:end], sizes[first:stop])
            )

    def first_from(self, log_offset: int) -> int | None:
        """Return where the next slice at or after `log_offset` begins, or None; earlier slices are dropped."""
        pieces = self._pieces
        while pieces and pieces[0].log_offset < log_offset:
            self._taken += len(pieces.popleft().data)
        return pieces[0].log_offset if pieces else None

    def take(self, log_offset: int, stop: int) -> DispatchBatch | None:
        """Return consecutive records that begin at `log_offset` and end at or before `stop`; None if there are none."""
        if self.first_from(log_offset) != log_offset:
            return None
        pieces = self._pieces
        window: list[Buffer] = []
        sizes: list[int] = []
        at = log_offset
        while pieces and pieces[0].log_offset == at and at - log_offset < _BATCH_BYTES:
            end = at + len(pieces[0].data)
            if end > stop:
                break
            piece = pieces.popleft()
            window.append(piece.data)
            if piece.sizes is None:
                sizes.append(len(piece.data))
            else:
                sizes.extend(piece.sizes.tolist())
            at = end
        if at == log_offset:
            return None
        self._taken += at - log_offset
        each = np.array(sizes, np.int64)
        starts = np.cumsum(each) - each
        data = window[0] if len(window) == 1 else b"".join(window)
        return DispatchBatch(RecordColumns.parse(data, starts, log_offset), log_offset, at)
