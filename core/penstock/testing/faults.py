"""A file system that does what the real one does, until it is told to fail."""

import errno
import os
from pathlib import Path

from penstock.files import File, Files


class Plan:
    """Which calls fail: each rule is a call's name, how many to let pass, and what to raise then."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.rules: list[tuple[str, int, int, str]] = []

    def fail(self, call: str, number: int = errno.EIO, *, after: int = 0, path: str = "") -> None:
        """Let `call` fail with an errno from now on, once `after` more of its kind have passed."""
        passed = self.counts.get(call, 0) if not path else 0
        self.rules.append((call, passed + after, number, path))

    def heal(self) -> None:
        """Let everything work again."""
        self.rules.clear()

    def check(self, call: str, path: Path) -> None:
        """Count a call, and raise if it is to fail."""
        count = self.counts[call] = self.counts.get(call, 0) + 1
        for name, passed, number, part in self.rules:
            if name == call and part in str(path) and (part or count > passed):
                raise OSError(number, os.strerror(number), str(path))


class FaultyFile(File):
    """A file whose calls may fail."""

    def __init__(self, path: Path, descriptor: int, plan: Plan) -> None:
        super().__init__(path, descriptor)
        self._plan = plan

    def pread(self, size: int, position: int) -> bytes:
        """See `File`; call "pread"."""
        self._plan.check("pread", self.path)
        return super().pread(size, position)

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """See `File`; call "pwrite"."""
        self._plan.check("pwrite", self.path)
        super().pwrite(data, position)

    def sync(self) -> None:
        """See `File`; call "sync"."""
        self._plan.check("sync", self.path)
        super().sync()

    def sync_all(self) -> None:
        """See `File`; call "sync"."""
        self._plan.check("sync", self.path)
        super().sync_all()

    def allocate(self, size: int) -> None:
        """See `File`; call "allocate"."""
        self._plan.check("allocate", self.path)
        super().allocate(size)


class FaultyFiles(Files):
    """Files that fail as `plan` says: "open", "create", "pread", "pwrite", "sync", "allocate", "rename", "sync_folder"."""

    def __init__(self) -> None:
        self.plan = Plan()

    def open(self, path: Path, *, writable: bool = False) -> File:
        """See `Files`; call "open"."""
        self.plan.check("open", path)
        return self._wrapped(super().open(path, writable=writable))

    def create(self, path: Path) -> File:
        """See `Files`; call "create"."""
        self.plan.check("create", path)
        return self._wrapped(super().create(path))

    def _wrapped(self, file: File) -> File:
        return FaultyFile(file.path, file.detach(), self.plan)

    def rename(self, source: Path, target: Path) -> None:
        """See `Files`; call "rename"."""
        self.plan.check("rename", source)
        super().rename(source, target)

    def sync_folder(self, path: Path) -> None:
        """See `Files`; call "sync_folder"."""
        self.plan.check("sync_folder", path)
        super().sync_folder(path)
