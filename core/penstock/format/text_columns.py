"""Pieces of text within many records, as numpy columns: properties, tags, keys.

A piece is a start and a size in a buffer of bytes; the kernel finds them, and nothing here makes a Python object for a
row, except where the pieces themselves are asked for.
"""

from typing import NamedTuple

import numpy as np

from penstock import _kernel
from penstock.format.java_hash import Int32s, Int64s


class RowPieces(NamedTuple):
    """Pieces of text: which row each belongs to, and where it stands in `data`."""

    data: bytes | memoryview
    rows: Int64s
    starts: Int64s
    sizes: Int64s

    def texts(self) -> list[bytes]:
        """Return the pieces as bytes objects."""
        ends = (self.starts + self.sizes).tolist()
        pieces = zip(self.starts.tolist(), ends, strict=True)
        return [bytes(self.data[start:end]) for start, end in pieces]


class PropertyColumns:
    """The properties texts of many records. Of a name given twice in one text the last counts, as in Java."""

    def __init__(self, window: bytes | memoryview, fields: np.ndarray) -> None:
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
        """Return what dispatchers index of each row."""
        codes, *keys = _kernel.indexed(self._window, self._fields)
        return Indexed(np.frombuffer(codes, np.int64), _hashed(*keys))

    def tag_keys(self) -> "Keys":
        """Return the tag of each row that has one, hashed as RocketMQ 5.4 indexes it."""
        return _hashed(*_kernel.tag_keys(self._window, self._fields))


class Keys(NamedTuple):
    """The keys of a batch: `rows` say whose, `hashes` are Java's hashes of topic, `#` and key."""

    rows: Int64s
    hashes: Int32s


class Indexed(NamedTuple):
    """What dispatchers index of a batch.

    Attributes:
        tag_codes: of each row what its queue entry says: the tag's Java hash, 0 for none.
        keys: every key, by row, UNIQ_KEY first, then KEYS split at single spaces.
    """

    tag_codes: Int64s
    keys: Keys


def _hashed(rows: bytes, hashes: bytes) -> Keys:
    return Keys(np.frombuffer(rows, np.int64), np.frombuffer(hashes, np.int64).astype(np.int32))
