"""CRC-32 of many pieces of memory: a call for each, without more around it than need be."""

import numpy as np

from penstock.javatext import Bytes, Int64s
from penstock.joining import overlapping
from penstock.record import crc32

# A copy of a piece so short costs less than a view of it.
_SHORT_BYTES = 512
_COPIED_BYTES = 256 << 10
_ROWS_A_SIZE = 8


def crc_each(raw: Bytes, starts: Int64s, sizes: Int64s) -> Int64s:
    """Return the CRC-32 of each piece of `raw`."""
    count = len(sizes)
    if count == 0:
        return np.zeros(0, np.int64)
    if int(sizes.min()) >= 0 and int(sizes.max()) <= _SHORT_BYTES:
        distinct = np.flatnonzero(np.bincount(sizes)).tolist()
        if len(distinct) == 1:
            return _of_size(raw, starts, distinct[0])
        if len(distinct) * _ROWS_A_SIZE <= count:
            made = np.zeros(count, np.int64)
            for size in distinct:
                rows = np.flatnonzero(sizes == size)
                made[rows] = _of_size(raw, starts[rows], size)
            return made
    view = memoryview(raw)  # type: ignore[arg-type] # an array is a buffer
    ends = (starts + sizes).tolist()
    each = [crc32(view[a:b]) for a, b in zip(starts.tolist(), ends, strict=True)]
    return np.array(each, np.int64)


def _of_size(raw: Bytes, starts: Int64s, size: int) -> Int64s:
    if size == 0:
        return np.zeros(len(starts), np.int64)
    cells = overlapping(raw, size)
    made = np.empty(len(starts), np.int64)
    # A few at a time: their copies stay near the processor.
    step = _COPIED_BYTES // size
    for low in range(0, len(starts), step):
        some = cells[starts[low : low + step]].tolist()
        made[low : low + step] = np.fromiter(map(crc32, some), np.int64, len(some))
    return made
