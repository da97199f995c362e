"""Pieces of text within many records, as numpy columns: topics, properties, tags, keys.

A piece is a start and a size in a buffer of bytes; nothing here makes a Python object for a row, except
where the pieces themselves are asked for.
"""

import copy
from typing import NamedTuple, Self

import numpy as np

from penstock.javatext import Bytes, Int32s, Int64s, hash_pieces
from penstock.joining import copy_pieces, overlapping

_PAIR_END = 2
_NAME_END = 1


def gather(raw: Bytes, starts: Int64s, sizes: Int64s) -> Bytes:
    """Return the pieces of `raw` one behind the other."""
    ends = np.cumsum(sizes)
    to = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    copy_pieces(raw, starts, sizes, to, ends - sizes)
    return to


def distinct(raw: Bytes, starts: Int64s, sizes: Int64s) -> tuple[list[bytes], Int64s]:
    """Return the distinct pieces in order of first appearance, and each row's index into them."""
    if len(starts) == 0:
        return [], np.zeros(0, np.int64)
    length = int(sizes[0])
    if (sizes == length).all():
        text = raw[starts[:, None] + np.arange(length)]
        if (text == text[0]).all():
            return [text[0].tobytes()], np.zeros(len(starts), np.int64)
    seen: dict[bytes, int] = {}
    data = gather(raw, starts, sizes).tobytes()
    ends = np.cumsum(sizes).tolist()
    index = [
        seen.setdefault(data[end - size : end], len(seen))
        for end, size in zip(ends, sizes.tolist(), strict=True)
    ]
    return list(seen), np.array(index, np.int64)


class RowPieces(NamedTuple):
    """Pieces of text: which row each belongs to, and where it stands in `data`."""

    data: Bytes
    rows: Int64s
    starts: Int64s
    sizes: Int64s

    def texts(self) -> list[bytes]:
        """Return the pieces as bytes objects."""
        data = self.data.tobytes()
        ends = (self.starts + self.sizes).tolist()
        return [data[a:b] for a, b in zip(self.starts.tolist(), ends, strict=True)]


class PropertyColumns:
    """Properties texts of many records, split into names and values without a loop over rows.

    The texts are copied behind each other with a 0x02 between, which does for both trailing forms.
    Of a name given twice in one text the last counts, as in Java.
    """

    def __init__(self, data: Bytes, ends: Int64s) -> None:
        """Make one of texts that lie behind each other, each with a 0x02 behind it; `ends` are behind that."""
        self.row_count = len(ends)
        self.data: Bytes = data
        pair_ends = np.nonzero(data == _PAIR_END)[0]
        pair_starts = np.concatenate(
            [np.zeros(min(1, len(pair_ends)), np.int64), pair_ends[:-1] + 1]
        )
        ends_row = np.zeros(len(data), np.bool_)
        ends_row[ends - 1] = True
        is_last = ends_row[pair_ends]
        rows: Int64s = np.cumsum(is_last) - is_last
        # Most texts end in a 0x02 of their own.
        full = np.flatnonzero(pair_ends > pair_starts)
        self._split(pair_starts[full], pair_ends[full], rows[full])

    @classmethod
    def of_pieces(cls, raw: Bytes, starts: Int64s, sizes: Int64s) -> Self:
        """Make one of texts within `raw`."""
        ends = np.cumsum(sizes + 1)
        data = np.full(int(ends[-1]) if len(ends) else 0, _PAIR_END, np.uint8)
        copy_pieces(raw, starts, sizes, data, ends - sizes - 1)
        return cls(data, ends)

    def _split(self, starts: Int64s, ends: Int64s, rows: Int64s) -> None:
        """Find the first 0x01 of each pair; drop pairs without one, or with an empty side."""
        marks = np.nonzero(self.data == _NAME_END)[0]
        if len(marks) != len(starts) or not ((marks > starts) & (marks < ends - 1)).all():
            # Not one in every pair, as there nearly always is.
            at = np.searchsorted(marks, starts)
            has = at < len(marks)
            last = max(len(marks) - 1, 0)
            marks = np.where(has, marks[np.minimum(at, last)] if len(marks) else 0, 0)
            keep = has & (marks > starts) & (marks < ends - 1)
            marks, starts, ends, rows = marks[keep], starts[keep], ends[keep], rows[keep]
        self.name_starts: Int64s = starts
        self.name_sizes: Int64s = marks - starts
        self.value_starts: Int64s = marks + 1
        self.value_sizes: Int64s = ends - marks - 1
        self.rows: Int64s = rows

    def _pairs_of(self, name: bytes) -> Int64s:
        """Return the indexes of the pairs of one name."""
        pairs = np.nonzero(self.name_sizes == len(name))[0]
        found = overlapping(self.data, len(name))[self.name_starts[pairs]]
        named: Int64s = pairs[found.view(f"S{len(name)}") == name]
        return named

    def without(self, name: bytes) -> Self:
        """Return the same without the pairs of one name."""
        dropped = self._pairs_of(name)
        if len(dropped) == 0:
            return self
        keep = np.ones(len(self.rows), np.bool_)
        keep[dropped] = False
        some = copy.copy(self)
        some.name_starts, some.name_sizes = self.name_starts[keep], self.name_sizes[keep]
        some.value_starts, some.value_sizes = self.value_starts[keep], self.value_sizes[keep]
        some.rows = self.rows[keep]
        return some

    def named(self, name: bytes) -> RowPieces:
        """Return the values of one name, at most one a row, ordered by row."""
        pairs = self._pairs_of(name)
        rows = self.rows[pairs]
        last = np.ones(len(rows), np.bool_)
        last[:-1] = rows[1:] != rows[:-1]
        pairs = pairs[last]
        return RowPieces(
            self.data, self.rows[pairs], self.value_starts[pairs], self.value_sizes[pairs]
        )

    def tag_codes(self) -> Int64s:
        """Return the queue entry's tag code of each row: the tag's Java hash, 0 for none."""
        codes = np.zeros(self.row_count, np.int64)
        tags = self.named(b"TAGS")
        codes[tags.rows] = hash_pieces(tags.data, tags.starts, tags.sizes)
        return codes

    def keys(self) -> RowPieces:
        """Return every indexed key: by row, UNIQ_KEY first, then KEYS split at single spaces."""
        unique = self.named(b"UNIQ_KEY")
        several = split_at_spaces(self.named(b"KEYS"))
        rows = np.concatenate([unique.rows, several.rows])
        order = np.argsort(rows, kind="stable")
        return RowPieces(
            self.data,
            rows[order],
            np.concatenate([unique.starts, several.starts])[order],
            np.concatenate([unique.sizes, several.sizes])[order],
        )


def split_at_spaces(pieces: RowPieces) -> RowPieces:
    """Return the words of each piece; empty ones are dropped."""
    if len(pieces.rows) == 0:
        return pieces
    spaces = np.nonzero(pieces.data == ord(" "))[0]
    ends = pieces.starts + pieces.sizes
    low, high = np.searchsorted(spaces, pieces.starts), np.searchsorted(spaces, ends)
    inside = spaces[gather_ranges(low, high)]
    owners = np.repeat(np.arange(len(pieces.rows)), high - low)
    starts = np.concatenate([pieces.starts, inside + 1])
    stops = np.concatenate([ends, inside])
    owner = np.concatenate([np.arange(len(pieces.rows)), owners])
    order = np.argsort(starts, kind="stable")
    starts, owner = starts[order], owner[order]
    sizes = np.sort(stops) - starts
    keep = sizes > 0
    return RowPieces(pieces.data, pieces.rows[owner][keep], starts[keep], sizes[keep])


def gather_ranges(low: Int64s, high: Int64s) -> Int64s:
    """Return the whole numbers of each range [low, high), one range behind the other."""
    sizes = high - low
    before = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum()), dtype=np.int64) + np.repeat(low - before, sizes)


class Keys(NamedTuple):
    """The keys of a batch: `rows` say whose, `hashes` are Java's hashes of topic, `#` and key."""

    rows: Int64s
    hashes: Int32s
