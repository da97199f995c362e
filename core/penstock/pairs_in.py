"""Properties of many rows as columns: checked and joined without a Python object a row.

A map column is its pairs, one behind the other, and where each row's begin. So the text of all pairs is one
join, and that of a row is a slice of it. Anything out of the ordinary is left to `properties`, which goes
through the rows one by one and says what is wrong.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.properties import CRC32, DELAYS, KEYS, TAGS

_SEPARATORS = "[\x01\x02]"
_NOT_PLAIN = pa.array([TAGS, KEYS, CRC32, *sorted(DELAYS)])


def own_texts(column: pa.Array | None) -> pa.Array | str | None:
    """Return the text of each row's properties, "" for rows that have none; None where they are not plain."""
    if column is None:
        return ""
    if not pa.types.is_map(column.type):
        return None
    # What a slice leaves out, before and behind, is not looked at.
    bounds = column.offsets.to_numpy()
    if column.null_count and np.diff(bounds)[column.is_null().to_numpy(zero_copy_only=False)].any():
        return None
    pairs = slice(int(bounds[0]), int(bounds[-1]))
    names, values = column.keys[pairs], column.items[pairs]
    if not (pa.types.is_string(names.type) and pa.types.is_string(values.type)):
        return None
    if not _are_plain(names, values) or _has_twice(names, bounds):
        return None
    texts = pc.binary_join_element_wise(names, values, "\x01")
    ended = pc.binary_join_element_wise(texts, "", "\x02")
    return _sliced(ended, bounds - bounds[0])


def _are_plain(names: pa.Array, values: pa.Array) -> bool:
    if len(names) == 0:
        return True
    if names.null_count or values.null_count:
        return False
    for column in (names, values):
        if pc.min(pc.binary_length(column)).as_py() == 0:
            return False
        if pc.any(pc.match_substring_regex(column, _SEPARATORS)).as_py():
            return False
    return not pc.any(pc.is_in(names, _NOT_PLAIN)).as_py()


def _has_twice(names: pa.Array, bounds: np.ndarray) -> bool:
    """Say whether a row names a property twice."""
    counts = np.diff(bounds)
    if len(names) == 0 or counts.max() <= 1:
        return False
    coded = names.dictionary_encode()
    rows = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    pairs = rows * len(coded.dictionary) + coded.indices.to_numpy()
    return len(np.unique(pairs)) < len(pairs)


def _sliced(pieces: pa.Array, bounds: np.ndarray) -> pa.Array:
    """Return pieces of text joined row by row: they lie one behind the other already."""
    if len(pieces) == 0:
        starts = np.zeros(len(bounds), np.int32)
        return pa.Array.from_buffers(
            pa.string(), len(bounds) - 1, [None, pa.py_buffer(starts), pa.py_buffer(b"")]
        )
    _, starts, data = pieces.buffers()
    ends = np.frombuffer(starts, np.int32)[pieces.offset : pieces.offset + len(pieces) + 1]
    rows = np.ascontiguousarray(ends[bounds])
    return pa.Array.from_buffers(pa.string(), len(bounds) - 1, [None, pa.py_buffer(rows), data])
