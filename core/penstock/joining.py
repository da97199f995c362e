"""Records joined column by column: each part of all rows is copied to its places in one piece of memory.

A part is the same for every row (bytes), a number of two bytes (an array), or pieces of text. Values of one
size are moved together, as numpy moves fixed-size values whole; where sizes differ from row to row, large
values are copied one by one and small ones byte by byte.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.javatext import Bytes, Int64s

# Values are moved size by size where each size has so many of them, or nearly.
_ROWS_A_SIZE = 8
_COUNTED_MAX = 1 << 16
# From this mean size on a slice for each costs less than an index for each byte.
_LONG_BYTES = 48
_GATHERED_BYTES = 256 << 10


class Pieces(NamedTuple):
    """Values where they lie: one a row."""

    data: Bytes
    starts: Int64s
    sizes: Int64s


class Some(NamedTuple):
    """The same bytes in some rows, nothing in the others."""

    text: bytes
    rows: Int64s


Part = bytes | Some | Pieces | np.ndarray


def size_of(parts: Sequence[Part], count: int) -> Int64s:
    """Return how many bytes the parts of each row have together."""
    sizes = np.zeros(count, np.int64)
    for part in parts:
        if isinstance(part, bytes):
            sizes += len(part)
        elif isinstance(part, Some):
            sizes[part.rows] += len(part.text)
        else:
            sizes += part.sizes if isinstance(part, Pieces) else part.itemsize
    return sizes


def joined(parts: Sequence[Part], sizes: Int64s, starts: Int64s) -> memoryview:
    """Return the rows one behind the other, given what `size_of` says and where each row begins."""
    data = np.empty(int(sizes.sum()), np.uint8)
    at = starts.copy()
    for part in parts:
        if isinstance(part, bytes):
            overlapping(data, len(part))[at] = np.void(part)
            at += len(part)
        elif isinstance(part, Some):
            overlapping(data, len(part.text))[at[part.rows]] = np.void(part.text)
            at[part.rows] += len(part.text)
        elif isinstance(part, Pieces):
            copy_pieces(part.data, part.starts, part.sizes, data, at)
            at += part.sizes
        else:
            overlapping(data, part.itemsize)[at] = part.view(f"V{part.itemsize}")
            at += part.itemsize
    return memoryview(data)  # type: ignore[arg-type] # an array is a buffer


def copy_pieces(raw: Bytes, starts: Int64s, sizes: Int64s, to: Bytes, places: Int64s) -> None:
    """Copy pieces of `raw` to places in `to`."""
    if len(sizes) == 0:
        return
    if int(sizes.max()) <= _COUNTED_MAX:
        distinct = np.flatnonzero(np.bincount(sizes))
        if len(distinct) * _ROWS_A_SIZE <= len(sizes) + _ROWS_A_SIZE:
            _copy_by_size(raw, starts, sizes, to, places, distinct.tolist())
            return
    total = int(sizes.sum())
    if total < _LONG_BYTES * len(sizes):
        index = np.arange(total, dtype=np.int64)
        before = np.cumsum(sizes) - sizes
        to[index + np.repeat(places - before, sizes)] = raw[
            index + np.repeat(starts - before, sizes)
        ]
        return
    source, target = memoryview(raw), memoryview(to)  # type: ignore[arg-type] # arrays are buffers
    for start, size, place in zip(starts.tolist(), sizes.tolist(), places.tolist(), strict=True):
        target[place : place + size] = source[start : start + size]


def _copy_by_size(
    raw: Bytes, starts: Int64s, sizes: Int64s, to: Bytes, places: Int64s, distinct: list[int]
) -> None:
    for size in distinct:
        if not size:
            continue
        target, source = overlapping(to, size), overlapping(raw, size)
        rows = None if len(distinct) == 1 else np.flatnonzero(sizes == size)
        at, to_at = (starts, places) if rows is None else (starts[rows], places[rows])
        # Values are gathered before they are put in their places: a few at a time stay near the processor.
        step = max(_GATHERED_BYTES // size, 1)
        for low in range(0, len(at), step):
            target[to_at[low : low + step]] = source[at[low : low + step]]


def overlapping(raw: Bytes, size: int) -> Any:
    """Return every piece of that size in `raw` as one value: numpy moves such values whole."""
    return np.ndarray((max(len(raw) - size + 1, 0),), f"V{size}", raw, 0, (1,))
