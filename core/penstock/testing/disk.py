"""A disk in memory that loses unsynced bytes, fails on request, and can be crashed at any call.

It replaces `files.Files`, so a store or a strategy runs on it as on a real disk: contents are real files in memory
(`memfd_create`), and mapped files are really mapped. A write through a mapping into a page without allocated space
would kill the process on a full real disk; here it is an `AssertionError` when the next image is taken. The state after
a power cut is kept separately; see `platter`. `plan` determines which calls fail (see `faults`).

Differences from a real disk: file times are those of `clock`; writes through a mapping count as written when it is
synced or an image is taken; locks apply only within this disk; and memory cannot be locked.
"""

import errno
import mmap
import os
import threading
from pathlib import Path
from random import Random

from penstock.files import Entry, File, Files, Listed
from penstock.files.lock_file import Lock
from penstock.files.volume import Volume
from penstock.runtime.clock import Clock
from penstock.testing.faults import FaultPlan
from penstock.testing.kit import ManualClock
from penstock.testing.platter import Image, Inode, Platter, Survival

_AMPLE = 1 << 50


class SimulatedFile(File):
    """An open file of a simulated disk."""

    def __init__(self, path: Path, descriptor: int, inode: Inode, disk: "SimulatedDisk") -> None:
        super().__init__(path, descriptor)
        self._inode = inode
        self._disk = disk

    @property
    def inode(self) -> int:
        return self._inode.number

    @property
    def mtime_ms(self) -> int:
        return self._inode.mtime_ns // 1_000_000

    def pread(self, size: int, position: int) -> bytes:
        self._disk.plan.check("pread", self.path)
        return super().pread(size, position)

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """See `File`; call "pwrite". A failing call may write a part of the data."""
        try:
            self._disk.plan.check("pwrite", self.path)
        except OSError:
            part = memoryview(data)[: self._disk.chance.randint(0, len(data))]
            self._write(part, position)
            raise
        self._make_room(position, position + len(data))
        self._write(data, position)

    def _write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        with self._disk.guard:
            super().pwrite(data, position)
            self._inode.touch(position, position + len(data))
            self._inode.allocate(position, position + len(data))
            self._inode.mtime_ns = self._disk.now_ns()

    def sync(self) -> None:
        """See `File`; call "sync". The file's modification time does not become durable."""
        self._sync()

    def sync_all(self) -> None:
        self._sync()
        self._inode.durable_mtime_ns = self._inode.mtime_ns

    def _sync(self) -> None:
        """Write the file to the medium, or fail as planned."""
        disk, inode = self._disk, self._inode
        try:
            disk.plan.check("sync", self.path)
        except OSError:
            with disk.guard:
                inode.fail_sync(disk.chance)
            raise
        with disk.guard:
            if inode.sync():
                inode.mtime_ns = disk.now_ns()

    def allocate(self, size: int) -> None:
        self._disk.plan.check("allocate", self.path)
        self._make_room(0, size)
        super().allocate(size)
        with self._disk.guard:
            self._inode.allocate(0, size)

    def allocate_range(self, start: int, stop: int) -> None:
        self._disk.plan.check("allocate", self.path)
        self._make_room(start, stop)
        super().allocate_range(start, stop)
        with self._disk.guard:
            self._inode.allocate(start, stop)

    def resize(self, size: int) -> None:
        """See `File`; call "resize". New bytes use no space."""
        self._disk.plan.check("resize", self.path)
        super().resize(size)

    def zero_range(self, start: int, stop: int) -> bool:
        self._disk.plan.check("erase", self.path)
        self._make_room(start, stop)
        File.pwrite(self, bytes(stop - start), start)
        with self._disk.guard:
            self._inode.touch(start, stop)
            self._inode.allocate(start, stop)
        return True

    def punch(self, start: int, stop: int) -> bool:
        self._disk.plan.check("punch", self.path)
        super().punch(start, stop)
        with self._disk.guard:
            self._inode.touch(start, stop)
            self._inode.punch(start, stop)
            self._inode.mtime_ns = self._disk.now_ns()
        return True

    def map(self, size: int, *, writable: bool) -> mmap.mmap:
        self._disk.plan.check("map", self.path)
        return super().map(size, writable=writable)

    def _make_room(self, start: int, stop: int) -> None:
        with self._disk.guard:
            size = self._inode.lacking(start, stop)
        if size:
            self._disk.check_room(size, self.path)


class SimulatedLock(Lock):
    """A lock on a simulated disk; it ends with `release`, or with the disk."""

    def __init__(self, inode: Inode, disk: "SimulatedDisk") -> None:
        super().__init__(-1)
        self._inode: Inode | None = inode
        self._disk = disk

    def has_name(self, path: Path) -> bool:
        return self._inode is not None and self._disk.inode(path) == self._inode.number

    def release(self) -> None:
        inode, self._inode = self._inode, None
        if inode is not None:
            inode.is_locked = False


class SimulatedVolume(Volume):
    """A simulated disk as a volume, which can be synced as a whole."""

    def __init__(self, path: Path, disk: "SimulatedDisk") -> None:
        self.path = path
        self._fd = -1
        self._disk = disk

    def holds(self, path: str) -> bool:
        """See `Volume`; a simulated disk has one file system only."""
        return True

    def sync(self) -> None:
        """See `Volume`; call "sync_volume". A failing call may fail for any of the files."""
        self._disk.sync_all(self.path)


class SimulatedDisk(Files):
    """A disk in memory. Safe from any thread.

    Args:
        clock: the clock of file times; a `ManualClock` if None.
        capacity: size in bytes; files count with the pages that were written or allocated.
        seed: the seed of random choices: write-back, failed syncs and partial writes.
        write_back: the probability, at each call, that the system writes back some pages of a file.

    `others` is the number of bytes used by other programs. `plan` determines which calls fail.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        capacity: int = _AMPLE,
        seed: int = 0,
        write_back: float = 0.0,
        platter: Platter | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.capacity = capacity
        self.others = 0
        self.chance = Random(seed)
        self.plan = FaultPlan()
        self.guard = threading.RLock()
        self._platter = platter or Platter()
        if write_back:
            self.plan.before = self._maybe_write_back
        self._write_back = write_back

    # --- crashes

    def image(self) -> Image:
        """Return the whole disk as it is now."""
        with self.guard:
            return self._platter.image()

    @classmethod
    def after(
        cls, image: Image, survival: Survival, chance: Random, *, clock: Clock | None = None
    ) -> "SimulatedDisk":
        """Return the disk that a crash at that moment leaves."""
        return cls(
            clock=clock, seed=chance.getrandbits(32), platter=Platter.after(image, survival, chance)
        )

    def _maybe_write_back(self) -> None:
        if self.chance.random() < self._write_back:
            with self.guard:
                files = [each for each in self._platter.inodes.values() if not each.is_folder]
                if files:
                    self.chance.choice(files).write_back(self.chance)

    # --- room and time

    @property
    def used(self) -> int:
        """Bytes in use, including those of other programs."""
        with self.guard:
            return sum(each.room for each in self._platter.inodes.values()) + self.others

    def check_room(self, size: int, path: Path) -> None:
        """Raise an `OSError` with ENOSPC if there is no space for `size` more bytes."""
        if self.capacity < _AMPLE and self.used + size > self.capacity:
            raise _error(errno.ENOSPC, path)

    def free_bytes(self, path: Path) -> tuple[int, int]:
        used = self.used
        return used, max(self.capacity - used, 0)

    def now_ns(self) -> int:
        """The clock's time, Unix nanoseconds."""
        return self.clock.time_ms() * 1_000_000

    # --- names

    def _get(self, path: Path) -> Inode:
        found = self._platter.find(path)
        if found is None:
            raise _error(errno.ENOENT, path)
        return found

    def open(self, path: Path, *, writable: bool = False) -> File:
        self.plan.check("open", path)
        with self.guard:
            inode = self._get(path)
            if inode.is_folder:
                raise _error(errno.EINVAL, path)
            return self._opened(path, inode, os.O_RDWR if writable else os.O_RDONLY)

    def create(self, path: Path) -> File:
        self.plan.check("create", path)
        self.check_room(1, path)
        with self.guard:
            if self._platter.find(path) is not None:
                raise _error(errno.EEXIST, path)
            self._get(path.parent)
            made = self._platter.make(path, is_folder=False, mtime_ns=self.now_ns())
            return self._opened(path, made, os.O_RDWR)

    def _opened(self, path: Path, inode: Inode, flags: int) -> File:
        return SimulatedFile(path, inode.descriptor(flags | os.O_CLOEXEC), inode, self)

    def entries(self, folder: Path) -> list[Entry]:
        with self.guard:
            numbers = sorted(self._get(folder).names.items())
            found = [(name, self._platter.inodes[number]) for name, number in numbers]
            return [
                Entry(name, folder / name, not it.is_folder, it.is_folder, it.size, it.mtime_ns)
                for name, it in found
            ]

    def listing(self, folder: str) -> list[Listed]:
        found = self.entries(Path(folder))
        return [Listed(e.name, e.is_file, e.is_folder, e.size, e.mtime_ns) for e in found]

    def folders(self, folder: str) -> list[str]:
        return [entry.name for entry in self.entries(Path(folder)) if entry.is_folder]

    def numbered(self, folder: str) -> list[tuple[int, int]]:
        found = [entry for entry in self.entries(Path(folder)) if entry.is_file]
        return sorted((int(e.name), e.size) for e in found if e.name.isascii() and e.name.isdigit())

    def exists(self, path: Path) -> bool:
        with self.guard:
            return self._platter.find(path) is not None

    def mtime_ns(self, path: Path) -> int:
        with self.guard:
            found = self._platter.find(path)
            return found.mtime_ns if found else 0

    def ctime_ns(self, path: Path) -> int:
        """See `Files`; returns the time of the last change of the contents."""
        return self.mtime_ns(path)

    def has_other_names(self, path: Path) -> bool:
        """See `Files`; a simulated disk has no hard links."""
        return False

    def lock_held_here(self, path: Path) -> Lock | None:
        """See `Files`; locks of other simulated disks do not count."""
        return super().lock_held_here(path) if self.is_locked(path) else None

    def lock_owner(self, path: Path) -> int | None:
        """See `Files`; no Java process uses a simulated disk."""
        return None

    def version(self, path: Path) -> tuple[int, int, int]:
        with self.guard:
            found = self._platter.find(path)
            return (found.mtime_ns, found.number, found.size) if found else (0, 0, 0)

    def inode(self, path: Path) -> int:
        with self.guard:
            found = self._platter.find(path)
            return found.number if found else 0

    def is_folder(self, path: Path) -> bool:
        with self.guard:
            found = self._platter.find(path)
            return found is not None and found.is_folder

    def make_folder(self, path: Path) -> list[Path]:
        if self.is_folder(path):
            return []
        changed = [] if self.exists(path.parent) else self.make_folder(path.parent)
        self.plan.check("make_folder", path)
        with self.guard:
            if self._platter.find(path) is not None:
                raise _error(errno.EEXIST, path)
            self._platter.make(path, is_folder=True, mtime_ns=self.now_ns())
        return [*changed, path.parent]

    def remove_folder(self, path: Path) -> None:
        self.plan.check("remove", path)
        with self.guard:
            inode = self._get(path)
            if inode.names:
                raise _error(errno.ENOTEMPTY, path)
            self._platter.change((path, 0), inode=inode.number)

    def sync_folder(self, path: Path) -> None:
        self.plan.check("sync_folder", path)
        with self.guard:
            self._platter.sync_folder(self._get(path))

    def volume(self, folder: Path) -> Volume | None:
        self.plan.check("open", folder)
        with self.guard:
            self._get(folder)
        return SimulatedVolume(folder, self)

    def sync_all(self, path: Path) -> None:
        """Write every file and every name to the medium; call "sync_volume"."""
        try:
            self.plan.check("sync_volume", path)
        except OSError:
            with self.guard:
                for inode in self._platter.inodes.values():
                    inode.fail_sync(self.chance)
            raise
        with self.guard:
            for inode in list(self._platter.inodes.values()):
                if inode.sync():
                    inode.mtime_ns = self.now_ns()
                inode.durable_mtime_ns = inode.mtime_ns
                if inode.is_folder:
                    self._platter.sync_folder(inode)

    def remove(self, path: Path) -> None:
        self.plan.check("remove", path)
        with self.guard:
            inode = self._get(path)
            if inode.is_folder:
                raise _error(errno.EISDIR, path)
            self._platter.change((path, 0), inode=inode.number)

    def rename(self, source: Path, target: Path) -> None:
        self.plan.check("rename", source)
        with self.guard:
            inode = self._get(source)
            self._platter.change((source, 0), (target, inode.number), inode=inode.number)

    def lock(self, path: Path) -> Lock | None:
        if not self.exists(path):
            self.create(path).close()
        with self.guard:
            inode = self._get(path)
            if inode.is_locked:
                return None
            inode.is_locked = True
            return SimulatedLock(inode, self)

    def lock_one(self, path: Path) -> Lock | None:
        return self.lock(path)

    def remote_kind(self, folder: Path) -> str | None:
        """See `Files`; a simulated disk is a local one."""
        return None

    def is_locked(self, path: Path) -> bool:
        with self.guard:
            found = self._platter.find(path)
            return found is not None and found.is_locked

    def lock_memory(self, memory: mmap.mmap) -> None:
        """See `Files`; always raises, since memory cannot be locked."""
        raise _error(errno.ENOMEM, Path("/"))

    def unlock_memory(self, memory: mmap.mmap) -> None:
        """See `Files`; nothing was locked."""


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
