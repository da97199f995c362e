"""Reads a journal that its owner is writing: each time only the entries that are new."""

from pathlib import Path

from penstock.files import File, Files
from penstock_messaging.groups.entries import ENTRY_BYTES, Entries, valid_entries
from penstock_messaging.groups.fold import Fold
from penstock_messaging.groups.position import JOURNAL_BYTES_MAX

# Mostly there is nothing new, so the first read is short.
_FIRST_BYTES, _NEXT_BYTES = 4096, 256 << 10


class JournalCursor:
    """The state of a journal, kept up to date. Not thread-safe."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._inode = 0
        self._first = self._last = b""
        self._tail: Entries | None = None
        self._position = 0
        self.fold: Fold | None = None

    def refresh(self) -> Fold | None:
        """Return the state of the journal as it is now; None if there is none."""
        try:
            file = self._files.open(self._path)
        except FileNotFoundError:
            self._forget()
            return None
        try:
            if not self._is_same(file):
                self._forget()
                self._inode = file.inode
            self._read_on(file)
        finally:
            file.close()
        return self.fold

    def sync(self) -> None:
        """Make the journal durable: what is done about its entries must not outlive them."""
        file = self._files.open(self._path, writable=True)
        try:
            file.sync()
        finally:
            file.close()

    def _forget(self) -> None:
        self.fold, self._tail, self._position, self._inode = None, None, 0, 0

    def _is_same(self, file: File) -> bool:
        """Return whether everything read is still there; an entry whose write was interrupted is written again."""
        if self._tail is None or file.inode != self._inode:
            return False
        last_at = self._position - ENTRY_BYTES
        return (
            file.pread(ENTRY_BYTES, 0) == self._first
            and file.pread(ENTRY_BYTES, last_at) == self._last
        )

    def _read_on(self, file: File) -> None:
        size = _FIRST_BYTES
        while self._position < JOURNAL_BYTES_MAX:
            raw = file.pread(size, self._position)
            entries = valid_entries(raw, self._tail)
            if len(entries):
                self._add(raw, entries)
            if len(entries) * ENTRY_BYTES < size:
                return
            size = _NEXT_BYTES

    def _add(self, raw: bytes, entries: Entries) -> None:
        if self.fold is None:
            self.fold, self._first = Fold.of(entries), raw[:ENTRY_BYTES]
        else:
            self.fold.apply(entries)
        end = len(entries) * ENTRY_BYTES
        self._position += end
        self._last, self._tail = raw[end - ENTRY_BYTES : end], entries[-1:].copy()
