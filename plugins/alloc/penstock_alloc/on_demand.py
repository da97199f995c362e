"""The next segment is made when it is needed, and an old one is removed."""

from pathlib import Path
from typing import ClassVar

from penstock.contracts import Allocator
from penstock.files import File
from penstock.progress import SIDE_FOLDER


class OnDemandAllocator(Allocator):
    """Makes each file at its roll; the append that rolls waits for it. Not thread-safe: the append lock guards it."""

    name: ClassVar[str] = "on-demand"

    def obtain(self, path: Path, size: int, *, allocated: bool) -> File:
        """Make the file under another name, whole and synced, then rename it into place."""
        files = self.context.files
        fresh = self.context.root / SIDE_FOLDER / f"new-{path.name}"
        if files.exists(fresh):
            files.remove(fresh)
        file = files.create(fresh)
        try:
            if allocated:
                file.allocate(size)
            else:
                file.resize(size)
            file.sync_all()
            files.rename(fresh, path)
            files.sync_folder(path.parent)
        except OSError:
            file.close()
            if files.exists(fresh):
                files.remove(fresh)
            raise
        file.path = path
        return file

    def discard(self, path: Path) -> None:
        """Remove the file, durably."""
        self.context.files.remove(path)
        self.context.files.sync_folder(path.parent)
