"""Java's `String.hashCode` and its use in tag codes and in the hash index.

The hash runs over UTF-16 code units, so a character outside the Basic Multilingual Plane counts as
two. Source: Java Language API, `java.lang.String.hashCode`; RocketMQ store, spec sections 3.2, 4.2.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]

# Beyond this length a row is hashed on its own: the matrix of a length group would grow too large.
_GROUPED_LENGTH_MAX = 512
_COUNTED_MAX = 1 << 16
_MASK = 0xFFFFFFFF
_ASCII_END = 0x80
_STEP = 16


def java_hash(text: str) -> int:
    """Return `String.hashCode` of `text`, as a signed 32-bit number."""
    value = 0
    if text.isascii():
        # Without a mask for each: only a long text makes a number that is no longer cheap.
        for start in range(0, len(text), _STEP):
            for unit in text[start : start + _STEP].encode():
                value = value * 31 + unit
            value &= _MASK
    else:
        units: Any = text.encode("utf-16-le", "surrogatepass")
        for unit in memoryview(units).cast("H"):
            value = (value * 31 + unit) & _MASK
    return value - (1 << 32) if value & 0x80000000 else value


def index_hash(text: str) -> int:
    """Return the hash index's form: never negative, and 0 where Java's abs() overflows."""
    return _to_index(java_hash(text))


def _to_index(value: int) -> int:
    return 0 if value == -(1 << 31) else abs(value)


def index_hashes(values: Int32s) -> Int32s:
    """Return `index_hash` for hashes that were already computed."""
    wide = np.abs(values.astype(np.int64))
    wide[wide == 1 << 31] = 0
    return wide.astype(np.int32)


def distinct_of(values: Int64s) -> list[int]:
    """Return the distinct values, which must not be negative, ascending.

    `np.unique` loads another part of numpy at its first call: in a background thread, perhaps without a descriptor left.
    """
    if len(values) and int(values.max()) > _COUNTED_MAX:
        return sorted(set(values.tolist()))
    found: list[int] = np.flatnonzero(np.bincount(values)).tolist()
    return found


def hash_pieces(data: Bytes, starts: Int64s, lengths: Int64s) -> Int32s:
    """Return `String.hashCode` of UTF-8 pieces of `data`, one for each start.

    Vectorised by groups of equal length; pieces that are not ASCII are decoded one by one.
    """
    result = np.zeros(len(starts), np.uint32)
    for length in distinct_of(lengths):
        rows = np.nonzero(lengths == length)[0]
        if length == 0:
            continue
        if length > _GROUPED_LENGTH_MAX:
            _hash_rows_alone(data, starts, lengths, rows, result)
            continue
        text = data[starts[rows][:, None] + np.arange(length)]
        result[rows] = text.astype(np.uint32) @ _powers(length)
        odd = rows[(text >= _ASCII_END).any(axis=1)]
        _hash_rows_alone(data, starts, lengths, odd, result)
    return result.view(np.int32)


def _hash_rows_alone(
    data: Bytes, starts: Int64s, lengths: Int64s, rows: Int64s, result: npt.NDArray[np.uint32]
) -> None:
    for row in rows:
        start = int(starts[row])
        piece = data[start : start + int(lengths[row])].tobytes()
        result[row] = java_hash(piece.decode("utf-8", "replace")) & _MASK


def powers_of_31(exponents: Int64s) -> npt.NDArray[np.uint32]:
    """Return 31 to each exponent modulo 2**32, for joining hashes: H(a+b) = H(a)*31^len(b) + H(b)."""
    if len(exponents) == 0:
        return np.zeros(0, np.uint32)
    return _powers(int(exponents.max()) + 1)[::-1][exponents]


def _make_powers() -> Callable[[int], npt.NDArray[np.uint32]]:
    table = np.ones(1, np.uint32)

    def powers(count: int) -> npt.NDArray[np.uint32]:
        nonlocal table
        if count > len(table):
            size = max(count, 2 * len(table), 64)
            full = np.full(size, 31, np.uint32)
            full[0] = 1
            # Stored highest power first, so that a suffix is ready for a dot product.
            table = np.cumprod(full, dtype=np.uint32)[::-1].copy()
        return table[len(table) - count :]

    return powers


_powers = _make_powers()
