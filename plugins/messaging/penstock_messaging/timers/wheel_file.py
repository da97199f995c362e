"""The timer wheel: for each second where its chain of units ends in the timer log (RocketMQ 5's `timerwheel`).

Layout (big-endian): 1,209,600 slots, two weeks of seconds; the slot of a second is its number modulo the count of slots::

    slot := second:i64 first:i64 last:i64 count:i32 0:i32

`first` and `last` are positions of units. `count` is how many messages wait, less those that are cancelled. A slot whose `second`
is another one is empty for this one: zeros, or what an earlier lap left.

The wheel is never believed: the timer log has the chains, and whatever here differs from them is put right. A broker that finds a
wheel of another length does not start, so the file appears at once with its whole length; it has no blocks where nothing waits.

Not thread-safe; one process writes.
"""

import contextlib
from pathlib import Path

from penstock.files import File, Files
from penstock.format.arrays import RowType, Structs, np

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

    def read(self, slots: Structs) -> None:
        """Set the fields of slots, whose seconds are given, to those in the file; slots that are empty there have no unit."""
        file = self._opened(writable=False)
        if file is None:
            return
        with contextlib.closing(file):
            seconds = slots["second"].astype(np.int64)
            for number, index in enumerate((seconds % self.slots).tolist()):
                data = file.pread(SLOT_BYTES, index * SLOT_BYTES)
                found = np.frombuffer(data, SLOT.dtype)
                if found["second"][0] == seconds[number]:
                    slots[number] = found[0]

    def differing(self, slots: Structs, from_second: int) -> Structs | None:
        """Return what must be written so that the file has these slots, and no other one from a second on.

        None if there is no file with the right length.
        """
        file = self._opened(writable=False)
        if file is None:
            return None
        wanted = {second: number for number, second in enumerate(slots["second"].tolist())}
        is_right = np.zeros(len(slots), bool)
        others = []
        with contextlib.closing(file):
            for start in range(0, self.slots, _PART):
                count = min(_PART, self.slots - start)
                part = np.frombuffer(file.pread(count * SLOT_BYTES, start * SLOT_BYTES), SLOT.dtype)
                for at in np.flatnonzero(part["second"] >= from_second).tolist():
                    second = int(part["second"][at])
                    number = wanted.get(second)
                    if number is not None and second % self.slots == start + at:
                        is_right[number] = part[at] == slots[number]
                    elif second % self.slots == start + at:
                        others.append(second)
        blank = np.zeros(len(others), SLOT.dtype)
        blank["second"] = others
        blank["first"] = blank["last"] = NO_UNIT
        return np.concatenate((slots[~is_right], blank), dtype=SLOT.dtype)

    def write(self, slots: Structs) -> None:
        """Write slots durably; a slot without a unit becomes zeros. The file is created if it is missing or has a wrong length."""
        file = self._opened(writable=True)
        if file is None:
            self.replace(slots)
            return
        with contextlib.closing(file):
            self._write(file, slots)
            file.sync()

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
        self._files.rename(fresh, self._path)
        self._files.sync_folder(self._path.parent)

    def clear(self) -> None:
        """Empty all slots, durably; does nothing if there is no file."""
        if self._files.exists(self._path):
            self.replace(np.empty(0, SLOT.dtype))

    def _write(self, file: File, slots: Structs) -> None:
        index = slots["second"].astype(np.int64) % self.slots
        for number, at in enumerate(index.tolist()):
            row = slots[number]
            data = bytes(SLOT_BYTES) if row["last"] == NO_UNIT else row.tobytes()
            file.pwrite(data, at * SLOT_BYTES)

    def _opened(self, *, writable: bool) -> File | None:
        """Return the file, open; None if there is none with the right length."""
        if not self._files.exists(self._path):
            return None
        file = self._files.open(self._path, writable=writable)
        if file.size == self.slots * SLOT_BYTES:
            return file
        file.close()
        return None
