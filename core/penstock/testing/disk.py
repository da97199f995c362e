"""A disk whose size, other users and file times are in a test's hands."""

import contextlib
import errno
import os
from pathlib import Path

from penstock.clock import Clock
from penstock.files import File, Files


class SimulatedDisk(Files):
    """A disk of `capacity` bytes that holds the files below `root`, and `others` bytes of somebody else's.

    Files count with their whole size. A file that is made or grown beyond what is left is refused with
    ENOSPC. File times are those of `clock` when bytes were last written through this object; writes
    through a map count when they are synced, as on a real disk.
    """

    def __init__(self, root: Path, capacity: int, clock: Clock) -> None:
        self.root = root
        self.capacity = capacity
        self.others = 0
        self.clock = clock
        self.times_ms: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Bytes in use, our own files and others."""
        own = 0
        for folder, _, names in os.walk(self.root):
            for name in names:
                # Another thread may take it away meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    own += (Path(folder) / name).lstat().st_size
        return own + self.others

    def check_room(self, size: int, path: Path) -> None:
        """Raise ENOSPC if `size` bytes more are not there."""
        if self.used + size > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def free_bytes(self, path: Path) -> tuple[int, int]:
        """See `Files`."""
        used = self.used
        return used, max(self.capacity - used, 0)

    def open(self, path: Path, *, writable: bool = False) -> File:
        """See `Files`."""
        file = super().open(path, writable=writable)
        return SimulatedFile(path, file.detach(), self)

    def create(self, path: Path) -> File:
        """See `Files`."""
        self.check_room(1, path)
        file = super().create(path)
        made = SimulatedFile(path, file.detach(), self)
        made.touch()
        return made

    def mtime_ms(self, inode: int, real_ms: int) -> int:
        """Return when a file was last written; the real time if never through this object."""
        return self.times_ms.get(inode, real_ms)


class SimulatedFile(File):
    """A file on a `SimulatedDisk`."""

    def __init__(self, path: Path, descriptor: int, disk: SimulatedDisk) -> None:
        super().__init__(path, descriptor)
        self._disk = disk

    def touch(self) -> None:
        """Note that it was written now."""
        self._disk.times_ms[self.inode] = self._disk.clock.time_ms()

    @property
    def mtime_ms(self) -> int:
        """See `File`."""
        return self._disk.mtime_ms(self.inode, super().mtime_ms)

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """See `File`."""
        self._make_room(position + len(data))
        super().pwrite(data, position)
        self.touch()

    def sync(self) -> None:
        """See `File`."""
        super().sync()
        self.touch()

    def allocate(self, size: int) -> None:
        """See `File`."""
        self._make_room(size)
        super().allocate(size)

    def resize(self, size: int) -> None:
        """See `File`."""
        self._make_room(size)
        super().resize(size)

    def _make_room(self, size: int) -> None:
        if size > self.size:
            self._disk.check_room(size - self.size, self.path)
