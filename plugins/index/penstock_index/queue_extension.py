"""The extension files of one consume queue: units that hold what an entry of 20 bytes has no room for.

RocketMQ's `consumequeue_ext/<topic>/<queue>/<20 digits>`, written where a broker has enableConsumeQueueExt: one
unit (see `queue_units`) an entry, one behind the other in the order of the queue, in files of one size named by their
first byte. A file whose rest has no room for a unit ends with an end mark, and the next unit begins the next file.

Invariants:
    * The addresses in a queue ascend with its entries, or Java's recovery, which cuts behind the unit of the last
      entry, would cut off some that are needed. So where one entry has to be made again, the queue is cut there and
      all behind it are.
    * Behind `end`, where the next unit goes, no byte is needed.

Whatever is found under an address is looked at before it is believed; what cannot be a unit counts as not found,
and the reader then looks into the record. Files are sparse and never mapped, see `queue_files`.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from penstock.files import Entry, Files
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
    Bools,
    Int64s,
    Units,
    addresses_of,
    are_addresses,
    are_sound,
    made,
    offsets_of,
)

# Units farther apart than this are read one by one, so that no address makes a read long.
_GAP_MAX = 4096
# Bytes behind the end are looked at, before they are erased, in pieces of this size.
_PIECE = 1 << 20


class Extension:
    """The extension files of one queue. Not thread-safe; the dispatcher's lock guards it.

    Attributes:
        folder: where the files are; it may be missing.
        bases: first bytes of the files there are.
        end: the offset where the next unit goes; None as long as nobody has asked the queue for it.
        dirty: files written and not yet handed to whoever syncs; `dirty_folders` likewise.
    """

    def __init__(
        self, files: Files, pool: OpenFiles, folder: Path, file_bytes: int, *, adopts: bool
    ) -> None:
        """Make one; with `adopts`, files that are all of another size than `file_bytes` are taken as they are."""
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
        """List the folder: take in the sound files, return what is not one of ours."""
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
        """Take over the size of the files there are, if they have one size."""
        if len(sizes) != 1:
            return
        (size,) = sizes
        if FILE_BYTES_MIN <= size <= FILE_BYTES_MAX and all(base % size == 0 for base in bases):
            self.file_bytes = size

    # --- looking up

    def units(self, codes: Int64s) -> tuple[Bools, Units]:
        """Return which tag codes are the address of a sound unit, and the units; zeros for the others."""
        found = np.zeros(len(codes), np.bool_)
        units = np.zeros(len(codes), UNIT)
        rows = np.nonzero(are_addresses(codes))[0]
        offsets = offsets_of(codes[rows])
        if self._pool.read_only:
            self._look_again(offsets)
        order = np.argsort(offsets, kind="stable")
        rows, offsets = rows[order], offsets[order]
        for start, stop in self._stretches(offsets):
            units[rows[start:stop]] = self._read(offsets[start:stop])
        found[rows] = are_sound(units[rows], offsets % self.file_bytes, self.file_bytes)
        return found, units

    def resolve(self, codes: Int64s) -> None:
        """Put the tag code of its unit in place of each address; one that leads nowhere stays."""
        if not are_addresses(codes).any():
            return
        found, units = self.units(codes)
        codes[found] = units["tag_code"][found]

    def _stretches(self, offsets: Int64s) -> Iterator[tuple[int, int]]:
        """Return the row ranges of ascending offsets that lie close together in one file that is there."""
        if len(offsets) == 0:
            return
        files = offsets // self.file_bytes
        splits = (np.diff(offsets) > _GAP_MAX) | (files[1:] != files[:-1])
        bounds = [0, *(np.nonzero(splits)[0] + 1).tolist(), len(offsets)]
        for start, stop in itertools.pairwise(bounds):
            if int(files[start]) * self.file_bytes in self.bases:
                yield start, stop

    def _look_again(self, offsets: Int64s) -> None:
        """List the files anew where one is asked for that was not there: another process may have made it."""
        bases = np.unique(offsets - offsets % self.file_bytes)
        if len(np.setdiff1d(bases, self.bases, assume_unique=True)):
            self.scan()

    def _read(self, offsets: Int64s) -> Units:
        """Return what stands at ascending offsets of one file; zeros where the file ends before."""
        low, high = int(offsets[0]), int(offsets[-1]) + UNIT_SIZE
        base = low - low % self.file_bytes
        path = self.path(base)
        if self._pool.read_only:
            # Another process may have put a file of the same name in its place.
            self._pool.forget(path)
        raw = self._pool.read(path, high - low, low - base)
        if len(raw) == len(offsets) * UNIT_SIZE and (np.diff(offsets) == UNIT_SIZE).all():
            return np.frombuffer(raw, UNIT)
        data = np.zeros(high - low, np.uint8)
        data[: len(raw)] = np.frombuffer(raw, np.uint8)
        starts = offsets - low
        rows = starts[:, np.newaxis] + np.arange(UNIT_SIZE)
        units: Units = data[rows].reshape(-1).view(UNIT)
        units[starts + UNIT_SIZE > len(raw)] = np.zeros(1, UNIT)
        return units

    # --- writing

    def put(
        self, end: int, tag_codes: Int64s, store_times: Int64s, side_folder: Path
    ) -> tuple[Int64s, int]:
        """Write units from offset `end` on; returns their addresses and the new end.

        The caller sets `end` once the entries that hold the addresses are written. A unit that no address can
        have gets its tag code back, as in Java.
        """
        data = made(tag_codes, store_times).tobytes()
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
        """Write the units at these addresses as they stand: a sync that failed left them clean, not durable."""
        found, units = self.units(codes)
        offsets, sizes = offsets_of(codes[found]), units["size"][found]
        order = np.argsort(offsets, kind="stable")
        offsets, sizes = offsets[order], sizes[order]
        for start, stop in self._stretches(offsets):
            low, high = int(offsets[start]), int(offsets[stop - 1]) + int(sizes[stop - 1])
            position = low % self.file_bytes
            base = low - position
            self._write(base, self._pool.read(self.path(base), high - low, position), position)

    def _write(self, base: int, data: bytes, position: int) -> None:
        """Write what fits into a file that is there."""
        path = self.path(base)
        self.dirty.add(path)
        self._pool.write(path, data[: self.file_bytes - position], position)

    def _make_file(self, base: int, side_folder: Path) -> None:
        """Make one file of full size, all zero, in one step."""
        self.dirty_folders.update([*self._files.make_folder(self.folder), self.folder])
        name = f"{self.folder.parent.name[:64]}-{self.folder.name}-{base}"
        make_sparse(self._files, side_folder / f"new-ext-{name}", self.path(base), self.file_bytes)
        self.bases = sorted([*self.bases, base])

    # --- cutting, trimming

    def cut(self, end: int) -> None:
        """Erase every byte from `end` on; the next unit goes there."""
        self.end = end
        for base in list(self.bases):
            if base >= end:
                self._remove(base)
            elif base + self.file_bytes > end:
                self._erase(base, end - base)

    def _erase(self, base: int, start: int) -> None:
        """Zero a file from `start` on, but only so far as anything was ever written."""
        path = self.path(base)
        stop = min(self._pool.data_end(path), self.file_bytes)
        for position in range(start, stop, _PIECE):
            # Erasing may give blocks to what has none, and changes the time of a file that is right.
            if any(self._pool.read(path, min(_PIECE, stop - position), position)):
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
    """Say whether a name can be a file's first byte that an address reaches."""
    name = entry.name
    return (
        entry.is_file and name.isascii() and name.isdigit()
        and len(name) == len(segment_name(0)) and int(name) <= OFFSET_MAX
    )  # fmt: skip
