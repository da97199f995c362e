"""The timer wheel: for each second where its chain of units ends in the timer log (RocketMQ 5's `timerwheel`).

Layout (big-endian): 1,209,600 slots, two weeks of seconds; a second's slot is its number modulo the count::

    slot := second:i64 first:i64 last:i64 count:i32 0:i32

`first` and `last` are positions of units. `count` is how many messages wait, less those that are cancelled. A slot
whose `second` is another one is empty for this one: zeros, or what an earlier lap left.

The wheel is never believed: the timer log has the chains, and this file is corrected by them. A broker that finds a
wheel of another length does not start, so the file has its whole length at once; it has no blocks where nothing waits.

Not thread-safe; one process writes.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from penstock.files import File, Files
from penstock.format.arrays import Bools, Int64s, RowType, Structs, np

SLOTS = 1_209_600
SLOT = RowType(
    [("second", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("zero", ">i4")]
)
SLOT_BYTES = 32
assert SLOT.itemsize == SLOT_BYTES
NO_UNIT = -1
# Slots that are read at once.
_PART = 1 << 15


class WheelFile:
    """The wheel of one store.

    Args:
        files: the file system.
        root: the store's folder.
        slots: how many slots it has.
    """

    def __init__(self, files: Files, root: Path, slots: int = SLOTS) -> None:
        self._files = files
        self._path = root / "timerwheel"
        self.slots = slots
        # Whether the file's name is known to be durable; false after a failure to make it so.
        self._is_named = True

    def read(self, slots: Structs) -> None:
        """Set the fields of slots, whose seconds are given, to those in the file; empty slots there have no unit."""
        file = self._opened(writable=False)
        if file is None:
            return
        seconds = slots["second"].astype(np.int64)
        with contextlib.closing(file):
            for chosen, at in self._runs(seconds):
                data = file.pread(len(chosen) * SLOT_BYTES, at * SLOT_BYTES)
                found = np.frombuffer(data, SLOT.dtype)
                is_used = found["second"] == seconds[chosen]
                slots[chosen[is_used]] = found[is_used]

    def _runs(self, seconds: Int64s) -> Iterator[tuple[Int64s, int]]:
        """Yield the numbers of slots that are next to each other in the file, and where the first of them is."""
        index = seconds % self.slots
        order = np.argsort(index, kind="stable")
        ends = np.flatnonzero(np.diff(index[order]) != 1) + 1
        for run in np.split(order, ends) if len(order) else ():
            yield run, int(index[run[0]])

    def differing(self, slots: Structs, from_second: int) -> Structs | None:
        """Return what must be written so that the file has these slots, and no other one from a second on.

        None if there is no file with the right length.
        """
        file = self._opened(writable=False)
        if file is None:
            return None
        seconds = slots["second"].astype(np.int64)
        index = seconds % self.slots
        is_right = np.zeros(len(slots), bool)
        others = []
        with contextlib.closing(file):
            for start in range(0, self.slots, _PART):
                count = min(_PART, self.slots - start)
                part = np.frombuffer(file.pread(count * SLOT_BYTES, start * SLOT_BYTES), SLOT.dtype)
                here = np.flatnonzero((index >= start) & (index < start + count))
                is_right[here] = _same(part[index[here] - start], slots[here])
                found = part["second"].astype(np.int64)
                # A slot of zeros is of no second.
                is_used = (found >= max(from_second, 1)) & (
                    found % self.slots == start + np.arange(count)
                )
                others.append(found[is_used])
        unwanted = np.setdiff1d(np.concatenate(others), seconds)
        blank = np.zeros(len(unwanted), SLOT.dtype)
        blank["second"] = unwanted
        blank["first"] = blank["last"] = NO_UNIT
        return np.concatenate((slots[~is_right], blank), dtype=SLOT.dtype)

    def write(self, slots: Structs) -> None:
        """Write slots durably, zeros without a unit. Creates the file if it is missing or of a wrong length."""
        file = self._opened(writable=True)
        if file is None:
            self.replace(slots)
            return
        with contextlib.closing(file):
            self._write(file, slots)
            file.sync()
        self._name()

    def replace(self, slots: Structs) -> None:
        """Replace the file, durably, by one that has only these slots."""
        fresh = self._path.with_name(self._path.name + ".new")
        if self._files.exists(fresh):
            self._files.remove(fresh)
        file = self._files.create(fresh)
        with contextlib.closing(file):
            file.resize(self.slots * SLOT_BYTES)
            self._write(file, slots)
            file.sync_all()
        self._is_named = False
        self._files.rename(fresh, self._path)
        self._name()

    def _name(self) -> None:
        if not self._is_named:
            self._files.sync_folder(self._path.parent)
            self._is_named = True

    def clear(self) -> None:
        """Empty all slots, durably; does nothing if there is no file."""
        if self._files.exists(self._path):
            self.replace(np.empty(0, SLOT.dtype))

    def _write(self, file: File, slots: Structs) -> None:
        rows = slots.copy()
        rows[rows["last"] == NO_UNIT] = np.zeros(1, SLOT.dtype)
        for chosen, at in self._runs(slots["second"].astype(np.int64)):
            file.pwrite(rows[chosen].tobytes(), at * SLOT_BYTES)

    def _opened(self, *, writable: bool) -> File | None:
        """Return the file, open; None if there is none with the right length."""
        if not self._files.exists(self._path):
            return None
        file = self._files.open(self._path, writable=writable)
        if file.size == self.slots * SLOT_BYTES:
            return file
        file.close()
        return None


def _same(some: Structs, others: Structs) -> Bools:
    """Return which of two columns of slots are equal in all bytes."""
    bytes_of = [
        np.ascontiguousarray(each).view(np.uint8).reshape(-1, SLOT_BYTES) for each in (some, others)
    ]
    equal: Bools = (bytes_of[0] == bytes_of[1]).all(axis=1)
    return equal
