"""The folder of the hash index: lists, creates and opens its files."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.contracts import Context, Geometry
from penstock.files import File, Files
from penstock.format.names import SIDE_FOLDER
from penstock_index.index_file import HEADER, Header, IndexFile, Peek, is_index_name

# Index files that stay open for look-ups.
_READERS_MAX = 16


class Readers:
    """A few index files kept open for look-ups; one that is dropped is closed after its last use. Safe from any thread.

    Args:
        files: the file system.
        folder: the folder of the files.
        geometry: their sizes.
        limit: maximum number of open files.
        mapped: read full files through maps: only in the process that alone shortens and removes them.
    """

    def __init__(
        self, files: Files, folder: Path, geometry: Geometry, limit: int, *, mapped: bool
    ) -> None:
        self._files = files
        self._folder = folder
        self._geometry = geometry
        self._limit = max(min(limit, files.descriptors_max // 16), 2)
        self._mapped = mapped
        self._open: dict[str, Peek] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> "Peek":
        """Return a current view of a file; raise `FileNotFoundError` if it was removed."""
        peek = self._open.get(name)
        if peek is not None:
            # The header of a full file is final.
            return peek if peek.is_full else peek.reopened()
        with self._lock:
            if len(self._open) >= self._limit:
                self._open.pop(next(iter(self._open)))
            peek = Peek(self._files.open(self._folder / name), self._geometry)
            self._open[name] = peek = peek.mapped() if self._mapped else peek
            return peek

    def close(self) -> None:
        """Drop all views; each file is closed when its last look-up has ended."""
        with self._lock:
            self._open.clear()


class IndexFolder:
    """The index files of one store, oldest first by their names. Safe from any thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._files = context.files
        self.path = context.root / "index"
        self._lock = threading.Lock()
        self._readers = Readers(
            context.files, self.path, context.geometry, _READERS_MAX, mapped=not context.read_only
        )
        # Names of the files, newest last; None if they may have changed.
        self._listed: list[str] | None = None

    def reader(self, name: str) -> Peek:
        """Return a view of a file kept open for look-ups; raise `FileNotFoundError` if it was removed."""
        return self._readers.get(name)

    def peekable(self, name: str) -> File:
        """Return a file opened for one view."""
        return self._files.open(self.path / name)

    def remove(self, name: str) -> None:
        """Remove one file."""
        self._files.remove(self.path / name)

    def sync(self) -> None:
        """Make the list of files durable."""
        self._files.sync_folder(self.path)

    def make(self, header: Header | None) -> IndexFile:
        """Create the next file, durable under its name and with this header; all zeros if that is None."""
        self._files.make_folder_durably(self.path)
        name = self._fresh_name()
        side = self._context.root / SIDE_FOLDER / f"new-index-{name}"
        if self._files.exists(side):
            self._files.remove(side)
        file = self._files.create(side)
        try:
            file.resize(self._context.geometry.index_file_bytes)
            if header is not None:
                file.pwrite(HEADER.pack(*header), 0)
            file.sync_all()
            self._files.rename(side, self.path / name)
            self._files.sync_folder(self.path)
        except OSError:
            file.close()
            if self._files.exists(side):
                self._files.remove(side)
            raise
        file.path = self.path / name
        self._listed = None
        return self._as_index_file(file)

    def _as_index_file(self, file: File) -> IndexFile:
        return IndexFile(file, self._context.geometry, self._context.clock.monotonic_ms)

    def _fresh_name(self) -> str:
        """Return the local time to the millisecond, increased if needed so that it sorts after all existing names."""
        now = self._context.clock.time_ms()
        names = self.names()
        while True:
            text = time.strftime("%Y%m%d%H%M%S", time.localtime(now // 1000))
            name = f"{text}{now % 1000:03d}"
            if not names or name > names[-1]:
                return name
            # The clock or the zone was set back; a name must still sort after the others.
            if name < names[-1]:
                return str(int(names[-1]) + 1)
            now += 1

    def names(self) -> list[str]:
        """Return the names of the valid files that exist now."""
        if not self._files.is_folder(self.path):
            return []
        size = self._context.geometry.index_file_bytes
        return [
            e.name
            for e in self._files.entries(self.path)
            if e.is_file and is_index_name(e.name) and e.size == size
        ]

    def header(self, name: str) -> Header:
        """Return a file's header; `end_ms` and `end_offset` are 0 if the file has no entry."""
        file = self._files.open(self.path / name)
        try:
            head = Peek(file, self._context.geometry).header
            return head if head.index_count > 1 else head._replace(end_ms=0, end_offset=0)
        finally:
            file.close()

    def open(self, name: str) -> IndexFile:
        """Open a file for writing."""
        return self._as_index_file(self._files.open(self.path / name, writable=True))

    def known_names(self) -> list[str]:
        """Return the names of the files, cached: only this process creates and removes them."""
        listed = self._listed
        if listed is not None:
            return listed
        with self._lock:
            if self._listed is None:
                self._listed = self.names()
            return self._listed

    def forget(self) -> None:
        """Drop the cached list of files: files were removed."""
        self._listed = None
        self._readers.close()

    def strays(self) -> Iterator[Path]:
        """Yield entries of the folder that have an index file's name but the wrong type or size."""
        if self._files.is_folder(self.path):
            for entry in self._files.entries(self.path):
                size = self._context.geometry.index_file_bytes
                if is_index_name(entry.name) and not (entry.is_file and entry.size == size):
                    yield entry.path

    def remove_strays(self) -> list[str]:
        """Remove index files of a wrong length; return messages, also for other entries of the folder."""
        repairs = []
        if self._files.is_folder(self.path):
            for entry in self._files.entries(self.path):
                if not (entry.is_file and is_index_name(entry.name)):
                    repairs.append(
                        f"{entry.path} does not belong in the index folder; it was not changed"
                    )
                elif entry.size != self._context.geometry.index_file_bytes:
                    self._files.remove(entry.path)
                    repairs.append(f"removed index file {entry.name}, whose length is wrong")
        return repairs
