"""The first keys of an index file: kept in memory, and written with plain writes as long as they are few.

A slot may be anywhere, and a file with a few keys should have blocks only for the pages that hold them. So
nothing is stored through a map yet (see `index_file`): the kernel adds keys to a copy in memory, and the changed
parts are written.
"""

from penstock.contracts import (
    INDEX_ENTRY_SIZE,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
    Geometry,
    index_file_add,
)
from penstock.files import File
from penstock.format.arrays import Int64s, np
from penstock.format.columns import Keys

# Slots are written in chunks of this number.
_SLOTS_PER_CHUNK = 1024


def draft_entries(geometry: Geometry) -> int:
    """Return how many entries a file may have as a draft: with more keys, most pages of slots have a key anyway."""
    return min(geometry.index_slots // _SLOTS_PER_CHUNK, geometry.index_entries)


class Draft:
    """Header, slots and the first entries of one file. Not thread-safe."""

    def __init__(self, file: File, geometry: Geometry) -> None:
        self._file = file
        self._slots = geometry.index_slots
        self._entries = draft_entries(geometry)
        self._entries_at = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * self._slots
        size = self._entries_at + INDEX_ENTRY_SIZE * self._entries
        self._memory = bytearray(file.pread(size, 0).ljust(size, b"\0"))
        # Chunks of slots that a failed write may have left different in the file.
        self._stale: set[int] = set()

    @property
    def header(self) -> bytes:
        """The header's bytes."""
        return bytes(self._memory[:INDEX_HEADER_SIZE])

    def add(
        self, number: int, keys: Keys, log_offsets: Int64s, times_ms: Int64s, first: int
    ) -> int:
        """Add keys from entry `number` on; they must fit. If this raises, the keys are not added."""
        slots = keys.hashes[first:].astype(np.int64) % self._slots
        touched = set((slots // _SLOTS_PER_CHUNK).tolist())
        before = {chunk: self._memory[self._chunk_slice(chunk)] for chunk in touched}
        header = self.header
        added = index_file_add(
            self._memory, self._slots, self._entries, keys.rows, keys.hashes, log_offsets, times_ms, first
        )  # fmt: skip
        try:
            start = self._entries_at + INDEX_ENTRY_SIZE * number
            self._write(slice(start, start + INDEX_ENTRY_SIZE * added))
            self._stale |= touched
            self.settle()
            self._write(slice(INDEX_HEADER_SIZE))
        except BaseException:
            for chunk, data in before.items():
                self._memory[self._chunk_slice(chunk)] = data
            self._memory[:INDEX_HEADER_SIZE] = header
            self._stale |= touched
            raise
        return added

    def settle(self) -> None:
        """Write the slots that may be different in the file."""
        for chunk in sorted(self._stale):
            self._write(self._chunk_slice(chunk))
        self._stale.clear()

    def _chunk_slice(self, chunk: int) -> slice:
        start = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * _SLOTS_PER_CHUNK * chunk
        return slice(start, min(start + INDEX_SLOT_SIZE * _SLOTS_PER_CHUNK, self._entries_at))

    def _write(self, part: slice) -> None:
        self._file.pwrite(self._memory[part], part.start or 0)
