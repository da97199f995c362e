"""The direct feed: appended records handed on to the tail follower, so that it need not read the log.

The append path leaves each record's bytes here; the follower takes whatever runs on from where it is.
Where something is missing (after a restart, when the follower fell behind and the hand-over was full,
or when a dispatcher must have older records again) it walks the log instead. So the two feeds give
the same batches, and only their cost differs. RocketMQ 3 fed its dispatchers this way.

One thread adds (the append lock sees to it), one takes (the follower's round does).
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from penstock.contracts.dispatch_batch import DispatchBatch
from penstock.format.columns import Buffer, RecordColumns
from penstock.format.java_hash import Int64s

# More than this is not kept for a follower that is behind; it walks the log then.
BYTES_MAX = 32 << 20
_BATCH_BYTES = 8 << 20


class FeedSlice(NamedTuple):
    """Records one behind the other. `sizes` is None for a single one."""

    log_offset: int
    data: Buffer
    sizes: Int64s | None


class DirectFeed:
    """Records on their way from the append path to the dispatchers."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._pieces: deque[FeedSlice] = deque()
        self._bytes_max = bytes_max
        # Counted by one thread each, so neither count needs a lock.
        self._added = 0
        self._taken = 0

    def add_one(self, log_offset: int, record: bytes) -> None:
        """Leave one record; it is passed over when too much waits already."""
        if self._added - self._taken < self._bytes_max:
            self._added += len(record)
            self._pieces.append(FeedSlice(log_offset, record, None))

    def add_batch(self, log_offsets: Int64s, sizes: Int64s, data: memoryview) -> None:
        """Leave many records, which lie one behind the other in `data` but may not in the log."""
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
        """Return where the next piece begins, at or behind `log_offset`; earlier ones are dropped."""
        pieces = self._pieces
        while pieces and pieces[0].log_offset < log_offset:
            self._taken += len(pieces.popleft().data)
        return pieces[0].log_offset if pieces else None

    def take(self, log_offset: int, stop: int) -> DispatchBatch | None:
        """Return the records that run on from `log_offset` and end at or before `stop`; None for none."""
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
