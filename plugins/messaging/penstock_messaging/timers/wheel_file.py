"""The timer wheel: for each second where its chain of units ends in the timer log (RocketMQ 5's `timerwheel`).

Layout (big-endian): 1,209,600 slots, two weeks of seconds; the slot of a second is its number modulo the count of slots::

    slot := second:i64 first:i64 last:i64 count:i32 0:i32

`first` and `last` are positions of units. `count` is how many messages wait, less those that are cancelled. A slot whose `second`
is another one is empty for this one: zeros, or what an earlier lap left.

The wheel is never believed: the timer log has the chains, and whatever here differs from them is put right. A broker that finds a
wheel of another length does not start, so the file appears at once with its whole length; it has no blocks where nothing waits.

Not thread-safe; one process writes.
"""

from pathlib import Path

from penstock.files import File, Files
from penstock.format.arrays import Int64s, RowType, Structs, np

SLOTS = 1_209_600
SLOT = RowType(
    [("second", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("zero", ">i4")]
)
SLOT_BYTES = 32
assert SLOT.itemsize == SLOT_BYTES
NO_UNIT = -1
# Slots that are closer than that are written together with those between them.
_GAP = 128


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

    def read(self, seconds: Int64s) -> Structs:
        """Return the slots of seconds; one that is empty for its second has no unit."""
        found = np.zeros(len(seconds), SLOT.dtype)
        file = self._opened()
        if file is not None:
            try:
                for number, index in enumerate((seconds % self.slots).tolist()):
                    data = file.pread(SLOT_BYTES, index * SLOT_BYTES)
                    found[number : number + 1] = np.frombuffer(data, SLOT.dtype)
            finally:
                file.close()
        found[found["second"] != seconds] = (0, NO_UNIT, NO_UNIT, 0, 0)
        found["second"] = seconds
        return found

    def _opened(self, *, writable: bool = False) -> File | None:
        """Return the file, open; None if there is none with the right length."""
        if not self._files.exists(self._path):
            return None
        file = self._files.open(self._path, writable=writable)
        if file.size == self.slots * SLOT_BYTES:
            return file
        file.close()
        return None

    def write(self, slots: Structs) -> None:
        """Write slots durably; the file is created if it is missing or has a wrong length."""
        file = self._opened(writable=True)
        if file is None:
            self._make()
            file = self._files.open(self._path, writable=True)
        try:
            index = slots["second"].astype(np.int64) % self.slots
            for number, at in enumerate(index.tolist()):
                file.pwrite(slots[number].tobytes(), at * SLOT_BYTES)
            file.sync()
        finally:
            file.close()

    def _make(self) -> None:
        fresh = self._path.with_name(self._path.name + ".new")
        if self._files.exists(fresh):
            self._files.remove(fresh)
        file = self._files.create(fresh)
        try:
            file.resize(self.slots * SLOT_BYTES)
            file.sync_all()
        finally:
            file.close()
        self._files.rename(fresh, self._path)
        self._files.sync_folder(self._path.parent)
