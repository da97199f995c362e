"""Slices of text within many records, as numpy columns: properties, tags, keys.

A slice is a start and a size in a buffer of bytes. The kernel finds the slices; no Python object is created for a row,
except by `RowPieces.texts`.
"""

import functools
from typing import NamedTuple

from penstock import _kernel
from penstock.format.arrays import Int32s, Int64s, np


class RowPieces(NamedTuple):
    """Slices of text: the row that each belongs to, and its position in `data`."""

    data: bytes | memoryview
    rows: Int64s
    starts: Int64s
    sizes: Int64s

    def texts(self) -> list[bytes]:
        """Return the slices as bytes objects."""
        ends = (self.starts + self.sizes).tolist()
        pieces = zip(self.starts.tolist(), ends, strict=True)
        return [bytes(self.data[start:end]) for start, end in pieces]


class PropertyColumns:
    """The properties texts of many records. If a name occurs twice in one text, the last value counts, as in Java."""

    def __init__(self, window: bytes | memoryview, fields: "np.ndarray") -> None:
        self._window = window
        self._fields = fields

    def named(self, name: bytes) -> RowPieces:
        """Return the values of one name, at most one a row, ordered by row."""
        rows, starts, sizes = _kernel.named(self._window, self._fields, name)
        return RowPieces(
            self._window,
            np.frombuffer(rows, np.int64),
            np.frombuffer(starts, np.int64),
            np.frombuffer(sizes, np.int64),
        )

    def indexed(self) -> "Indexed":
        """Return the tag code of each row, and all keys."""
        codes, *keys = _kernel.indexed(self._window, self._fields)
        return Indexed(np.frombuffer(codes, np.int64), hashed(*keys))

    def tag_keys(self) -> "Keys":
        """Return the tag of each row that has one, hashed as RocketMQ 5.4 indexes it."""
        return hashed(*_kernel.tag_keys(self._window, self._fields))


class Keys(NamedTuple):
    """The keys of a batch: `rows` are their records' rows, `hashes` are Java's hashes of topic, `#` and key."""

    rows: Int64s
    hashes: Int32s


class Indexed(NamedTuple):
    """The values of a batch that dispatchers index.

    Attributes:
        tag_codes: the tag code of each row's queue entry: the tag's Java hash, 0 if there is no tag.
        keys: every key, by row, UNIQ_KEY first, then KEYS split at single spaces.
    """

    tag_codes: Int64s
    keys: Keys


@functools.cache
def no_keys() -> Keys:
    """Return the keys of records without keys."""
    return Keys(np.frombuffer(b"", np.int64), np.frombuffer(b"", np.int32))


def hashed(rows: bytes, hashes: bytes) -> Keys:
    """Return keys from the kernel's columns."""
    return Keys(np.frombuffer(rows, np.int64), np.frombuffer(hashes, np.int64).astype(np.int32))
