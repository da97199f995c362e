"""Files that a reader catches half written."""

from collections.abc import Callable
from pathlib import Path

from penstock.files import File, Files


class TornFile(File):
    """A file whose first reads show it half written."""

    def __init__(self, file: File, files: "TornFiles") -> None:
        super().__init__(file.path, file.detach())
        self._files = files

    def pread(self, size: int, position: int) -> bytes:
        data = super().pread(size, position)
        return self._files.tear(data) if self._files.is_due(self.path) else data


class TornFiles(Files):
    """Files of which those with `name` are caught half written by the next `times` reads."""

    def __init__(self, name: str, tear: Callable[[bytes], bytes], times: int = 1) -> None:
        super().__init__()
        self.name, self.tear, self.times = name, tear, times

    def is_due(self, path: Path) -> bool:
        if self.name in path.parts and self.times > 0:
            self.times -= 1
            return True
        return False

    def open(self, path: Path, *, writable: bool = False) -> File:
        return TornFile(super().open(path, writable=writable), self)
