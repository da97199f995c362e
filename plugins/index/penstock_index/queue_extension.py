"""The extension files of one consume queue: units that hold what an entry of 20 bytes has no room for.

RocketMQ's `consumequeue_ext/<topic>/<queue>/<20 digits>`, written if a broker has enableConsumeQueueExt. There is one
unit (see `queue_units`) for each entry, one after the other in the order of the queue, in files of one size named by
their first byte. A file whose rest has no room for a unit ends with an end mark, and the next unit begins the next file.

Invariants:
    * The addresses in a queue ascend with its entries. Otherwise Java's recovery, which cuts after the unit of the
      last entry, would remove units that are needed. So if one entry must be rebuilt, the queue is cut there and all
      later entries are rebuilt.
    * No byte at or after `end`, the offset of the next unit, is needed.

What is found at an address is checked before it is used. Bytes that cannot be a unit count as not found, and the
reader then reads the record. Files are sparse and never mapped, see `queue_files`.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

from penstock.files import Entry, Files
from penstock.format.arrays import Bools, Int64s, np
from penstock.format.names import segment_name
from penstock_index.queue_files import OpenFiles, make_sparse
from penstock_index.queue_units import (
    END_BYTES,
    END_MARK,
    FILE_BYTES_MAX,
    FILE_BYTES_MIN,
    OFFSET_MAX,
    UNIT,
    UNIT_SIZE,
    Units,
    addresses_of,
    are_addresses,
    are_valid_units,
    make_units,
    offsets_of,
)

# Units farther apart than this are read separately, so that no address causes a long read.
_GAP_MAX = 4096
# Bytes after the end are checked in chunks of this size before they are erased.
_CHUNK = 1 << 20


class QueueExtension:
    """The extension files of one queue. Not thread-safe; the dispatcher's lock guards it.

    Attributes:
        folder: the folder of the files; it may be missing.
        bases: first bytes of the existing files.
        end: the offset of the next unit; None until it is derived from the queue.
        dirty: files written and not yet passed to the caller that syncs; `dirty_folders` likewise.
    """

    def __init__(
        self, files: Files, pool: OpenFiles, folder: Path, file_bytes: int, *, adopts: bool
    ) -> None:
        """Create one; with `adopts`, existing files that all have one size set the file size, not `file_bytes`."""
        self._files = files
        self._pool = pool
        self.folder = folder
        self.file_bytes = file_bytes
        self._adopts = adopts
        self.bases: list[int] = []
        self.end: int | None = None
        self.dirty: set[Path] = set()
        self.dirty_folders: set[Path] = set()

    def path(self, base: int) -> Path:
        """Return the path of the file whose first byte is `base`."""
        return self.folder / segment_name(base)

    def scan(self) -> list[Entry]:
        """List the folder: register the valid files, return all other entries."""
        if not self._files.is_folder(self.folder):
            self.bases = []
            return []
        entries = self._files.entries(self.folder)
        numbered = {entry.path: int(entry.name) for entry in entries if _is_numbered(entry)}
        if self._adopts:
            sizes = {entry.size for entry in entries if entry.path in numbered}
            self._adopt(sizes, list(numbered.values()))
        strays, bases = [], []
        for entry in entries:
            base = numbered.get(entry.path, -1)
            if base >= 0 and entry.size == self.file_bytes and base % self.file_bytes == 0:
                bases.append(base)
            else:
                strays.append(entry)
        self.bases = bases
        return strays

    def _adopt(self, sizes: set[int], bases: list[int]) -> None:
        """Use the size of the existing files, if all have the same size."""
        if len(sizes) != 1:
            return
        (size,) = sizes
        if FILE_BYTES_MIN <= size <= FILE_BYTES_MAX and all(base % size == 0 for base in bases):
            self.file_bytes = size

    # --- look-ups

    def units(self, codes: Int64s) -> tuple[Bools, Units]:
        """Return which tag codes are the address of a valid unit, and the units; zeros for the others."""
        found = np.zeros(len(codes), np.bool_)
        units = np.zeros(len(codes), UNIT.dtype)
        rows = np.nonzero(are_addresses(codes))[0]
        offsets = offsets_of(codes[rows])
        if self._pool.read_only:
            self._rescan_if_missing(offsets)
        order = np.argsort(offsets, kind="stable")
        rows, offsets = rows[order], offsets[order]
        for start, stop in self._adjacent_rows(offsets):
            units[rows[start:stop]] = self._read(offsets[start:stop])
        found[rows] = are_valid_units(units[rows], offsets % self.file_bytes, self.file_bytes)
        return found, units

    def resolve(self, codes: Int64s) -> None:
        """Replace each address with the tag code of its unit; an address that leads to no unit stays."""
        if not are_addresses(codes).any():
            return
        found, units = self.units(codes)
        codes[found] = units["tag_code"][found]

    def _adjacent_rows(self, offsets: Int64s) -> Iterator[tuple[int, int]]:
        """Yield the row ranges of ascending offsets that are close together in one existing file."""
        if len(offsets) == 0:
            return
        files = offsets // self.file_bytes
        splits = (np.diff(offsets) > _GAP_MAX) | (files[1:] != files[:-1])
        bounds = [0, *(np.nonzero(splits)[0] + 1).tolist(), len(offsets)]
        for start, stop in itertools.pairwise(bounds):
            if int(files[start]) * self.file_bytes in self.bases:
                yield start, stop

    def _rescan_if_missing(self, offsets: Int64s) -> None:
        """List the files again if an offset is in a file that is not known: another process may have created it."""
        bases = np.unique(offsets - offsets % self.file_bytes)
        if len(np.setdiff1d(bases, self.bases, assume_unique=True)):
            self.scan()

    def _read(self, offsets: Int64s) -> Units:
        """Return the bytes at ascending offsets of one file as units; zeros after the end of the file."""
        low, high = int(offsets[0]), int(offsets[-1]) + UNIT_SIZE
        base = low - low % self.file_bytes
        path = self.path(base)
        if self._pool.read_only:
            # Another process may have replaced the file with one of the same name.
            self._pool.forget(path)
        raw = self._pool.read(path, high - low, low - base)
        if len(raw) == len(offsets) * UNIT_SIZE and (np.diff(offsets) == UNIT_SIZE).all():
            return np.frombuffer(raw, UNIT.dtype)
        data = np.zeros(high - low, np.uint8)
        data[: len(raw)] = np.frombuffer(raw, np.uint8)
        starts = offsets - low
        rows = starts[:, np.newaxis] + np.arange(UNIT_SIZE)
        units: Units = data[rows].reshape(-1).view(UNIT.dtype)
        units[starts + UNIT_SIZE > len(raw)] = np.zeros(1, UNIT.dtype)
        return units

    # --- writing

    def put(
        self, end: int, tag_codes: Int64s, store_times: Int64s, side_folder: Path
    ) -> tuple[Int64s, int]:
        """Write units from offset `end` on; return their addresses and the new end.

        The caller sets `end` after writing the entries that hold the addresses. If no address is possible for a
        unit, its tag code is returned instead, as in Java.
        """
        data = make_units(tag_codes, store_times).tobytes()
        codes = tag_codes.copy()
        done = 0
        while done < len(codes) and end + UNIT_SIZE <= OFFSET_MAX:
            position = end % self.file_bytes
            base = end - position
            if base not in self.bases:
                self._make_file(base, side_folder)
            room = (self.file_bytes - END_BYTES - position) // UNIT_SIZE
            if room <= 0:
                self._write(base, END_MARK, position)
                end = base + self.file_bytes
                continue
            count = min(room, len(codes) - done, (OFFSET_MAX - end) // UNIT_SIZE)
            self._write(base, data[done * UNIT_SIZE : (done + count) * UNIT_SIZE], position)
            codes[done : done + count] = addresses_of(end + UNIT_SIZE * np.arange(count))
            done += count
            end += count * UNIT_SIZE
        return codes, end

    def write_again(self, codes: Int64s) -> None:
        """Rewrite the units at these addresses: after a failed sync they may be clean in the cache, but not durable."""
        found, units = self.units(codes)
        offsets, sizes = offsets_of(codes[found]), units["size"][found]
        order = np.argsort(offsets, kind="stable")
        offsets, sizes = offsets[order], sizes[order]
        for start, stop in self._adjacent_rows(offsets):
            low, high = int(offsets[start]), int(offsets[stop - 1]) + int(sizes[stop - 1])
            position = low % self.file_bytes
            base = low - position
            self._write(base, self._pool.read(self.path(base), high - low, position), position)

    def _write(self, base: int, data: bytes, position: int) -> None:
        """Write the part that fits into an existing file."""
        path = self.path(base)
        self.dirty.add(path)
        self._pool.write(path, data[: self.file_bytes - position], position)

    def _make_file(self, base: int, side_folder: Path) -> None:
        """Create one file of full size, all zero, atomically."""
        self.dirty_folders.update([*self._files.make_folder(self.folder), self.folder])
        name = f"{self.folder.parent.name[:64]}-{self.folder.name}-{base}"
        make_sparse(self._files, side_folder / f"new-ext-{name}", self.path(base), self.file_bytes)
        self.bases = sorted([*self.bases, base])

    # --- cutting, trimming

    def cut(self, end: int) -> None:
        """Erase every byte from `end` on; the next unit is written there."""
        self.end = end
        for base in list(self.bases):
            if base >= end:
                self._remove(base)
            elif base + self.file_bytes > end:
                self._erase(base, end - base)

    def _erase(self, base: int, start: int) -> None:
        """Zero a file from `start` on, but only up to the last byte ever written."""
        path = self.path(base)
        stop = min(self._pool.data_end(path), self.file_bytes)
        for position in range(start, stop, _CHUNK):
            # Erasing may allocate blocks in a hole, and changes the modification time of an unchanged file.
            if any(self._pool.read(path, min(_CHUNK, stop - position), position)):
                self._pool.erase(path, position, stop)
                self.dirty.add(path)
                return

    def trim(self, offset: int) -> None:
        """Remove the files that end at or before `offset`, never the last."""
        for base in self.bases[:-1]:
            if base + self.file_bytes <= offset:
                self._remove(base)

    def _remove(self, base: int) -> None:
        path = self.path(base)
        self._pool.forget(path)
        self._files.remove(path)
        self.bases.remove(base)
        self.dirty.discard(path)
        self.dirty_folders.add(self.folder)


def _is_numbered(entry: Entry) -> bool:
    """Return whether a name is the first byte of a file that an address can reach."""
    name = entry.name
    return (
        entry.is_file and name.isascii() and name.isdigit()
        and len(name) == len(segment_name(0)) and int(name) <= OFFSET_MAX
    )  # fmt: skip
