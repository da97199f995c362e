"""The file system. The only folder that calls the operating system for files, maps, locks and syncs.

In reading order: `file` (one open file), `file_system` (paths, folders, renames), `blocks` (disk blocks allocated ahead
of the writes), `volume` (a file system synced as a whole), `lock_file` (who may write), `checked_line` (facts in one
line). `penstock.testing` implements the same interface on a simulated disk.
"""

from penstock.files.checked_line import read_line, write_line
from penstock.files.file import (
    FOLIO_BYTES,
    NO_ROOM,
    PAGE_BYTES,
    File,
    address_of,
    page_start,
    system_error,
)
from penstock.files.file_system import FILE_MODE, FOLDER_MODE, Entry, Files, Listed
from penstock.files.lock_file import Lock
from penstock.files.volume import Volume

__all__ = [
    "FILE_MODE",
    "FOLDER_MODE",
    "FOLIO_BYTES",
    "NO_ROOM",
    "PAGE_BYTES",
    "Entry",
    "File",
    "Files",
    "Listed",
    "Lock",
    "Volume",
    "address_of",
    "page_start",
    "read_line",
    "system_error",
    "write_line",
]
