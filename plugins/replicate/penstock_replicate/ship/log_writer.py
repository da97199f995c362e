"""Writes the segments of a restored log. Each file has its full length; what is not written is zero."""

from pathlib import Path

from penstock.files import File, Files
from penstock.format.names import segment_name


class LogWriter:
    """Takes the bytes of a log in order. Not thread-safe.

    Args:
        files: the file system.
        folder: where the segments are created; it must exist.
        segment_bytes: the size of a segment.
    """

    def __init__(self, files: Files, folder: Path, segment_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._file: File | None = None
        self._base = 0

    def write(self, log_offset: int, data: bytes) -> None:
        """Write bytes, which must lie in one segment."""
        base = log_offset - log_offset % self._segment_bytes
        if self._file is None or base != self._base:
            self._close()
            self._base = base
            self._file = self._files.create(self._folder / segment_name(base))
            self._file.resize(self._segment_bytes)
        self._file.pwrite(data, log_offset - base)

    def finish(self, end: int) -> None:
        """Make everything durable; in the last segment nothing is left from log offset `end` on."""
        if self._file is not None and self._base < end < self._base + self._segment_bytes:
            self._file.resize(end - self._base)
            self._file.resize(self._segment_bytes)
        is_unused = self._file is not None and end <= self._base
        self._close()
        if is_unused:
            self._files.remove(self._folder / segment_name(self._base))
        self._files.sync_folder(self._folder)

    def _close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.sync_all()
            finally:
                file.close()

    def give_up(self) -> None:
        """Close the file that is open; nothing is made durable."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
