"""The timer log: one unit for each message that waits, in files that only grow (RocketMQ 5's `timerlog/`).

Layout (big-endian). A file's name is the position of its first byte, in 20 digits; all files have the same length::

    file := unit* (blank | zeros)
    unit := 52:i32 previous:i64 kind:i32 enqueue_ms:i64 delay_ms:i32 log_offset:i64 size:i32 topic_hash:i32 0:i64
    blank := bytes that are left:i32 0:i64 0xCBD43194:i32

The units of one second form a chain: `previous` is the position of the unit before, -1 for the first one. The second is
`enqueue_ms` + `delay_ms`; the unit's record has `size` bytes and begins at `log_offset`. A unit that would leave less
than the 16 bytes of a blank goes to the next file. A new file is all zeros, without blocks, as a broker makes it.

Not checksummed, as a broker has it: each unit is compared with the timer topic (`timer_units`).
Not thread-safe; one process writes.
"""

from pathlib import Path
from typing import NamedTuple

from penstock.files import Files
from penstock.format.arrays import Int64s, RowType, Structs, np

FILE_BYTES = 104_857_600
UNIT = RowType(
    [
        ("unit_size", ">i4"), ("previous", ">i8"), ("kind", ">i4"), ("enqueue_ms", ">i8"), ("delay_ms", ">i4"),
        ("log_offset", ">i8"), ("size", ">i4"), ("topic_hash", ">i4"), ("zero", ">i8"),
    ]
)  # fmt: skip
UNIT_BYTES = 52
assert UNIT.itemsize == UNIT_BYTES
# The bits that a unit's kind may have; brokers use three of them.
_KINDS_MAX = 0xF
_BLANK_KIND = 0xBBCCDDEE ^ (1880681586 + 8)
_BLANK = RowType([("left", ">i4"), ("zero", ">i8"), ("kind", ">u4")])
_BLANK_BYTES = 16
assert _BLANK.itemsize == _BLANK_BYTES
_NAME_DIGITS = 20
# Read at once; a whole number of units.
_PART_BYTES = UNIT_BYTES << 16
# The smallest file that is taken for one of a broker's: one unit and a blank.
_FILE_BYTES_MIN = UNIT_BYTES + _BLANK_BYTES
_POSITION_MAX = 1 << 62


class LogUnits(NamedTuple):
    """The units of a timer log.

    Attributes:
        positions: where each unit is.
        units: the units, as rows of type `UNIT`.
        damage: what cannot be right, as a sentence; "" if nothing. Bytes after the last unit are a torn tail.
    """

    positions: Int64s
    units: Structs
    damage: str


class TimerLog:
    """The files of one store.

    Args:
        files: the file system.
        root: the store's folder.
        file_bytes: the length of files where there are none yet.

    Attributes:
        begin: the position of the first file.
        end: where the next unit goes, or the blank before it.
        file_bytes: the length of each file.
    """

    def __init__(self, files: Files, root: Path, file_bytes: int = FILE_BYTES) -> None:
        self._files = files
        self._folder = root / "timerlog"
        self._bases: list[int] = []
        self.file_bytes = file_bytes
        self.begin = self.end = 0

    def _path(self, base: int) -> Path:
        return self._folder / f"{base:0{_NAME_DIGITS}}"

    # --- reading

    def read(self) -> LogUnits:
        """Read all units, and find the end."""
        listed = []
        if self._files.is_folder(self._folder):
            listed = self._files.numbered(str(self._folder))
        self._bases = [base for base, _ in listed]
        self.begin = self.end = self._bases[0] if listed else 0
        sizes = sorted({size for _, size in listed})
        if len(sizes) > 1 or (sizes and sizes[0] < _FILE_BYTES_MIN):
            return _nothing(f"the files of {self._folder} have {sizes[0]} to {sizes[-1]} bytes")
        if sizes:
            self.file_bytes = sizes[0]
        expected = range(self.begin, self.begin + self.file_bytes * len(listed), self.file_bytes)
        if self._bases != [*expected] or self.begin % self.file_bytes:
            return _nothing(f"{self._folder} lacks a file")
        found, positions, damage = [], [], ""
        for base in self._bases:
            units, is_full = self._read_file(self._path(base))
            found.append(units)
            positions.append(base + np.arange(len(units), dtype=np.int64) * UNIT_BYTES)
            self.end = base + (self.file_bytes if is_full else len(units) * UNIT_BYTES)
            if not is_full and base != self._bases[-1]:
                damage = f"{self._path(base)} has no unit at {len(units) * UNIT_BYTES}"
                break
        if not found:
            return _nothing("")
        return LogUnits(np.concatenate(positions), np.concatenate(found, dtype=UNIT.dtype), damage)

    def _read_file(self, path: Path) -> tuple[Structs, bool]:
        """Return the units of a file, and whether a blank ends it."""
        file = self._files.open(path)
        try:
            parts, position = [], 0
            while True:
                data = file.pread(min(_PART_BYTES, self.file_bytes - position), position)
                units = np.frombuffer(data, UNIT.dtype, len(data) // UNIT_BYTES)
                kinds = units["kind"].astype(np.int64)
                bad = np.flatnonzero(
                    (units["unit_size"] != UNIT_BYTES) | (kinds <= 0) | (kinds > _KINDS_MAX)
                )
                count = int(bad[0]) if len(bad) else len(units)
                parts.append(units[:count])
                position += count * UNIT_BYTES
                if len(bad) or len(data) < _PART_BYTES:
                    break
            tail = file.pread(_BLANK_BYTES, position)
        finally:
            file.close()
        is_full = len(tail) == _BLANK_BYTES and np.frombuffer(tail, _BLANK.dtype)[0].tolist() == (
            self.file_bytes - position, 0, _BLANK_KIND,
        )  # fmt: skip
        return np.concatenate(parts, dtype=UNIT.dtype), is_full

    # --- writing

    def cut(self, end: int) -> None:
        """Set the end, and erase what is after it in its file, durably; files after that one are removed."""
        while self._bases and self._bases[-1] >= end:
            self._files.remove(self._path(self._bases.pop()))
            self._files.sync_folder(self._folder)
        self.end = end
        if not self._bases:
            return
        base, is_changed = self._bases[-1], False
        file = self._files.open(self._path(base), writable=True)
        try:
            position, stop = end - base, file.data_end()
            while position < stop:
                part = file.pread(min(_PART_BYTES, stop - position), position)
                if part.count(0) != len(part):
                    file.pwrite(bytes(len(part)), position)
                    is_changed = True
                position += len(part)
            if is_changed:
                file.sync()
        finally:
            file.close()

    def renew(self) -> list[int]:
        """Begin after all files, in a new one; returns the old ones, for `remove` once the new one is written."""
        if self._bases and self.end == self._bases[-1]:
            # The last file has no unit yet.
            self.cut(self.end)
        old = self._bases
        left = old[-1] + self.file_bytes - self.end if old else 0
        if _BLANK_BYTES <= left < self.file_bytes:
            # Otherwise a broker would take the files after it for what a crash has left.
            self._write_file(old[-1], _blank(left), self.file_bytes - left)
        last = old[-1] + self.file_bytes if old else self.end
        self.begin = self.end = -(-last // self.file_bytes) * self.file_bytes
        if self.begin > _POSITION_MAX:
            # No broker gets there; the names are made up.
            self.remove(old)
            old, self.begin, self.end = [], 0, 0
        self._bases = []
        return old

    def remove(self, bases: list[int]) -> None:
        """Remove files, the first one first."""
        for base in bases:
            self._files.remove(self._path(base))
            # One by one: of several changes of a folder, a crash may keep any.
            self._files.sync_folder(self._folder)

    def trim(self, log_offset: int) -> None:
        """Remove files whose last unit is of a record before a log offset, deleted by retention; as a broker does."""
        while len(self._bases) > 1:
            path = self._path(self._bases[0])
            last = (self.file_bytes - _BLANK_BYTES) // UNIT_BYTES * UNIT_BYTES - UNIT_BYTES
            file = self._files.open(path)
            try:
                unit = np.frombuffer(file.pread(UNIT_BYTES, last), UNIT.dtype)
            finally:
                file.close()
            if (
                len(unit) == 0
                or unit["unit_size"][0] != UNIT_BYTES
                or unit["log_offset"][0] >= log_offset
            ):
                break
            self.begin = self._bases[1]
            self.remove(self._bases[:1])
            del self._bases[0]

    def place(self, count: int) -> Int64s:
        """Return the positions that the next units get; `write` must be called with them next."""
        found = np.empty(count, np.int64)
        done, at = 0, self.end
        while done < count:
            base = at - at % self.file_bytes
            room = max((base + self.file_bytes - _BLANK_BYTES - at) // UNIT_BYTES, 0)
            taken = min(room, count - done)
            found[done : done + taken] = at + np.arange(taken, dtype=np.int64) * UNIT_BYTES
            done += taken
            at = at + taken * UNIT_BYTES if done == count else base + self.file_bytes
        return found

    def write(self, positions: Int64s, units: Structs) -> None:
        """Write units durably at positions that `place` returned; after a failure, a second call writes them again."""
        if len(positions) == 0:
            return
        bases = positions - positions % self.file_bytes
        first = self.end - self.end % self.file_bytes
        for base in range(first, int(bases[-1]) + 1, self.file_bytes):
            chosen = bases == base
            here = positions[chosen]
            start = int(here[0]) if len(here) else self.end
            end = start + len(here) * UNIT_BYTES
            data = units[chosen].tobytes()
            if base != int(bases[-1]) and end < base + self.file_bytes:
                data += _blank(base + self.file_bytes - end)
            if data:
                self._write_file(base, data, start - base)
        self.end = int(positions[-1]) + UNIT_BYTES

    def overwrite(self, positions: Int64s, units: Structs) -> None:
        """Write units again, durably, where they are."""
        bases = positions - positions % self.file_bytes
        for base in sorted({*bases.tolist()}):
            chosen = bases == base
            begin = int(positions[chosen][0])
            self._write_file(base, units[chosen].tobytes(), begin - base)

    def chain(self, last: int) -> Structs:
        """Return the units of a chain, the last one first."""
        rows = []
        while last >= self.begin:
            base = last - last % self.file_bytes
            file = self._files.open(self._path(base))
            try:
                # The units of one file are read without opening it again.
                while base <= last < base + self.file_bytes:
                    row = np.frombuffer(file.pread(UNIT_BYTES, last - base), UNIT.dtype)
                    rows.append(row)
                    last = min(int(row["previous"][0]), last - UNIT_BYTES)
            finally:
                file.close()
        return np.concatenate(rows, dtype=UNIT.dtype) if rows else np.empty(0, UNIT.dtype)

    def _write_file(self, base: int, data: bytes, position: int) -> None:
        path = self._path(base)
        if base not in self._bases:
            if not self._files.exists(path):
                self._make(path)
            # Also after a failure to make the name durable.
            self._files.sync_folder(self._folder)
            self._bases.append(base)
        file = self._files.open(path, writable=True)
        try:
            file.pwrite(data, position)
            file.sync()
        finally:
            file.close()

    def _make(self, path: Path) -> None:
        """Create a file of zeros without blocks; it appears with its whole length."""
        self._files.make_folder_durably(self._folder)
        fresh = path.with_name(path.name + ".new")
        if self._files.exists(fresh):
            self._files.remove(fresh)
        file = self._files.create(fresh)
        try:
            file.resize(self.file_bytes)
            file.sync_all()
        finally:
            file.close()
        self._files.rename(fresh, path)


def _nothing(damage: str) -> LogUnits:
    return LogUnits(np.empty(0, np.int64), np.empty(0, UNIT.dtype), damage)


def _blank(left: int) -> bytes:
    return np.array([(left, 0, _BLANK_KIND)], _BLANK.dtype).tobytes()
