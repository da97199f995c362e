"""The extension files of one consume queue, which a broker with enableConsumeQueueExt writes. Penstock reads them.

RocketMQ's `consumequeue_ext/<topic>/<queue>/<20 digits>` has one unit for each entry, one after the other in the order
of the queue, in files of one size named by their first byte. Layout of a unit (big-endian)::

    0 unit size i16   2 tag code i64   10 store time i64   18 bitmap length i16   20 bitmap

An entry holds the address of its unit in place of the tag code: the unit's byte offset minus 2^63. That is below any tag
hash and any delivery time, so the value of an entry's third field shows which of these it is. Entries that Penstock writes
hold the tag code itself, which a broker reads as well. Source: spec section 3.6.

What is found at an address is checked before it is used. Bytes that cannot be a unit count as not found: the reader then
reads the record, and an opening after a crash writes the entry again.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

from penstock.files import Entry, Files
from penstock.format.arrays import Bools, Int64s, RowType, Structs, np
from penstock.format.names import segment_name
from penstock_index.queue_files import OpenFiles

_UNIT = RowType(
    [("size", ">i2"), ("tag_code", ">i8"), ("store_time_ms", ">i8"), ("bitmap_bytes", ">i2")]
)
_UNIT_SIZE = _UNIT.itemsize
# A file has this number of free bytes after each unit.
_END_BYTES = 4
_FILE_BYTES_MIN, _FILE_BYTES_MAX = _UNIT_SIZE + _END_BYTES, 0x7FFFFFFF
# RocketMQ's default, for files that do not all have one size.
_FILE_BYTES = 48 << 20
_LONG_MIN = -(1 << 63)
# Tag codes up to here are addresses, as in Java.
ADDRESS_MAX = -(1 << 31) - 1
# Units farther apart than this are read separately, so that no address causes a long read.
_GAP_MAX = 4096


def are_addresses(codes: Int64s) -> Bools:
    """Return which tag codes are the address of a unit."""
    return codes <= ADDRESS_MAX


class QueueExtension:
    """The extension files of one queue, in `folder`. Not thread-safe; the dispatcher's lock guards it."""

    def __init__(self, files: Files, pool: OpenFiles, folder: Path) -> None:
        """Create one; `folder` may be missing."""
        self._files = files
        self._pool = pool
        self.folder = folder
        self._file_bytes = _FILE_BYTES
        # First bytes of the files that were there at the last look.
        self._bases: list[int] = []

    def _path(self, base: int) -> Path:
        return self.folder / segment_name(base)

    def _list_files(self) -> None:
        """Look at the folder again: it is listed when an address is first met, and another process may write it."""
        numbered = {}
        if self._files.is_folder(self.folder):
            numbered = {
                int(entry.name): entry.size
                for entry in self._files.entries(self.folder)
                if _is_numbered(entry)
            }
        sizes = set(numbered.values())
        if len(sizes) == 1 and _FILE_BYTES_MIN <= min(sizes) <= _FILE_BYTES_MAX:
            (self._file_bytes,) = sizes
        self._bases = sorted(
            base for base, size in numbered.items() if size == self._file_bytes and base % size == 0
        )

    def resolve(self, codes: Int64s) -> Bools:
        """Replace each address with the tag code of its unit; an address that leads to no unit stays.

        Returns which codes are such addresses.
        """
        units = self.units(codes)
        found = units["size"] > 0
        codes[found] = units["tag_code"][found]
        return are_addresses(codes)

    def units(self, codes: Int64s) -> Structs:
        """Return the unit at each code that is the address of one; zeros for the others."""
        made = np.zeros(len(codes), _UNIT.dtype)
        rows = np.nonzero(are_addresses(codes))[0]
        if not len(rows):
            return made
        offsets = codes[rows] - _LONG_MIN
        order = np.argsort(offsets, kind="stable")
        rows, offsets = rows[order], offsets[order]
        wanted = np.unique(offsets - offsets % self._file_bytes)
        if len(np.setdiff1d(wanted, self._bases, assume_unique=True)):
            self._list_files()
        for start, stop in self._adjacent_rows(offsets):
            units = self._read(offsets[start:stop])
            valid = self._are_valid(units, offsets[start:stop])
            made[rows[start:stop][valid]] = units[valid]
        return made

    def _adjacent_rows(self, offsets: Int64s) -> Iterator[tuple[int, int]]:
        """Yield the row ranges of ascending offsets that are close together in one existing file."""
        files = offsets // self._file_bytes
        splits = (np.diff(offsets) > _GAP_MAX) | (files[1:] != files[:-1])
        bounds = [0, *(np.nonzero(splits)[0] + 1).tolist(), len(offsets)]
        for start, stop in itertools.pairwise(bounds):
            if int(files[start]) * self._file_bytes in self._bases:
                yield start, stop

    def _read(self, offsets: Int64s) -> Structs:
        """Return the bytes at ascending offsets of one file as units; zeros after the end of the file."""
        low, high = int(offsets[0]), int(offsets[-1]) + _UNIT_SIZE
        base = low - low % self._file_bytes
        path = self._path(base)
        if self._pool.read_only:
            # Another process may have replaced the file with one of the same name.
            self._pool.forget(path)
        raw = self._pool.read(path, high - low, low - base)
        data = np.zeros(high - low, np.uint8)
        data[: len(raw)] = np.frombuffer(raw, np.uint8)
        rows = (offsets - low)[:, np.newaxis] + np.arange(_UNIT_SIZE)
        units: Structs = data[rows].reshape(-1).view(_UNIT.dtype)
        return units

    def _are_valid(self, units: Structs, offsets: Int64s) -> Bools:
        """Return which of the units read at these offsets are valid."""
        sizes = units["size"].astype(np.int64)
        bitmaps = units["bitmap_bytes"].astype(np.int64)
        fits = offsets % self._file_bytes + sizes + _END_BYTES <= self._file_bytes
        is_code = ~are_addresses(units["tag_code"].astype(np.int64))
        # After a power cut the rest of a unit may be zeros: the tag code, too, unless the time behind it is there.
        is_whole = units["store_time_ms"] > 0
        valid: Bools = (bitmaps >= 0) & (sizes == _UNIT_SIZE + bitmaps) & fits & is_code & is_whole
        return valid

    def paths(self) -> list[Path]:
        """Look at the folder again, and return its files."""
        self._list_files()
        return [self._path(base) for base in self._bases]

    def trim(self, first_needed: int) -> bool:
        """Remove the files that end at or before the unit at the address `first_needed`, never the last.

        Returns whether there was one.
        """
        limit = first_needed - _LONG_MIN - self._file_bytes
        gone = [base for base in self._bases[:-1] if base <= limit]
        for base in gone:
            self._pool.forget(self._path(base))
            self._files.remove(self._path(base))
        return bool(gone)


def _is_numbered(entry: Entry) -> bool:
    """Return whether a name is the first byte of a file that an address can reach."""
    name = entry.name
    return (
        entry.is_file and name.isascii() and name.isdigit()
        and len(name) == len(segment_name(0)) and int(name) <= ADDRESS_MAX - _LONG_MIN
    )  # fmt: skip
