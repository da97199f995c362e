"""The state of one queue: its files, and which of its entries count."""

from collections.abc import Iterator

from penstock.format.arrays import np
from penstock_index.queue_extension import ADDRESS_MAX, QueueExtension
from penstock_index.queue_files import QueueFolder, effective, first_absent
from penstock_index.queue_runs import Run
from penstock_index.queue_summary import ClosedQueue

# Number of entries read at once in the search for the last one that counts, or the next one.
_READ_ENTRIES = 256
_TRIM_ENTRIES = 4096
NOWHERE = 1 << 62


class Queue:
    """One queue. Not thread-safe; the dispatcher's lock guards it.

    Attributes:
        folder: the files of entries.
        extension: the files of units that entries may hold the addresses of.
        min_offset: the first entry whose record the log still has.
        max_offset: the ordinal after the last entry.
        reached: log offset of the last entry's record; -1 if there is no entry, None if it was not read yet.
    """

    __slots__ = ("extension", "folder", "max_offset", "min_offset", "reached")

    def __init__(
        self, folder: QueueFolder, extension: QueueExtension, min_offset: int, max_offset: int
    ) -> None:
        self.folder = folder
        self.extension = extension
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.reached: int | None = None

    def reach(self) -> int:
        """Return the log offset of the record of the last entry; -1 if there is none."""
        if self.reached is None:
            self.reached = self.folder.place(self.max_offset - 1) if self.max_offset else -1
            if self.reached >= 0:
                return self.reached
            for base in reversed(self.folder.bases):
                stop = min(self.folder.stop_of(base), self.max_offset)
                for high in range(stop, base, -_READ_ENTRIES):
                    offsets = effective(
                        self.folder.read_padded(max(high - _READ_ENTRIES, base), high)
                    )
                    found = offsets[offsets >= 0]
                    if len(found):
                        self.reached = int(found[-1])
                        return self.reached
        return self.reached

    def next_entry(self, ordinal: int) -> tuple[int, int]:
        """Return ordinal and log offset of the first entry from `ordinal` on; `NOWHERE` as log offset if none."""
        return next(self.present(ordinal), (self.max_offset, NOWHERE))

    def present(self, ordinal: int) -> Iterator[tuple[int, int]]:
        """Yield ordinal and log offset of the entries from `ordinal` on; there may be a wide gap between files."""
        for base in list(self.folder.bases):
            low, high = max(base, ordinal), min(self.folder.stop_of(base), self.max_offset)
            for start in range(low, high, _READ_ENTRIES):
                offsets = effective(
                    self.folder.read_padded(start, min(start + _READ_ENTRIES, high))
                )
                for row in np.flatnonzero(offsets >= 0).tolist():
                    yield start + row, int(offsets[row])

    def is_followed_by(self, run: Run) -> bool:
        """Return whether a run continues at the queue's end and was stored after all records of the queue."""
        return run.ordinal == self.max_offset and 0 <= self.reach() < run.log_offset

    def move_min(self, log_offset: int) -> None:
        """Move the minimum to the first entry of a record at or after `log_offset`."""
        self.min_offset = self.folder.first_from(log_offset, self.min_offset, self.max_offset)

    def trim(self, log_offset: int) -> bool:
        """Move the minimum; remove leading files whose records are all deleted. Returns whether any were removed."""
        folder = self.folder
        self.move_min(log_offset)
        gone = [base for base in folder.bases[:-1] if folder.stop_of(base) <= self.min_offset]
        for base in gone:
            folder.remove(base)
        return bool(gone)

    def trim_extension(self) -> bool:
        """Remove the leading extension files with no unit that an entry has the address of, never the last.

        Returns whether any were removed.
        """
        if len(self.extension.paths()) <= 1:
            return False
        first = ADDRESS_MAX
        for low in range(self.min_offset, self.max_offset, _TRIM_ENTRIES):
            entries = self.folder.read(low, min(low + _TRIM_ENTRIES, self.max_offset))
            codes = entries["tag_code"].astype(np.int64)
            leads = self.extension.units(codes)["size"] > 0
            if leads.any():
                first = int(codes[leads][0])
                break
        return self.extension.trim(first)

    def drop_leftovers(self, log_min: int) -> bool:
        """Remove files before a gap whose records are all deleted: retention removed them, and a power cut brought them back.

        The queue would go on after them, with offsets that were given already. Returns whether any were removed.
        """
        folder = self.folder
        bases = list(folder.bases)
        ends = [folder.stop_of(base) for base in bases]
        gap = max((at for at in range(1, len(bases)) if bases[at] != ends[at - 1]), default=0)
        if not gap:
            return False
        before = [place for ordinal, place in self.present(bases[0]) if ordinal < ends[gap - 1]]
        if not 0 <= max(before, default=-1) < log_min:
            return False
        for base in bases[:gap]:
            folder.remove(base)
        self.find_bounds(log_min)
        return True

    def find_bounds(self, log_min: int) -> None:
        """Find out which entries count, at the opening."""
        if self.folder.bases:
            first = self.folder.bases[0]
            self.max_offset = self.folder.scan_end()
            self.min_offset = self.folder.first_from(log_min, first, self.max_offset)

    def confirm(self, known: ClosedQueue, log_min: int) -> bool:
        """Take over the recorded bounds of an unchanged queue; return False if its files contradict them."""
        folder, high = self.folder, known.max_offset
        begin = folder.bases[0] if folder.bases else 0
        if high < begin or not folder.is_absent(high):
            return False
        if known.last != (folder.place(high - 1) if high > begin else -1):
            return False
        is_used_up = known.min_offset == high and known.last < log_min
        if not (is_used_up or self._begins_at(known.min_offset, log_min)):
            return False
        self.min_offset, self.max_offset, self.reached = known[1:]
        return True

    def _begins_at(self, ordinal: int, log_min: int) -> bool:
        """Return whether an entry counts, and the one before it does not."""
        folder = self.folder
        return folder.place(ordinal) >= max(log_min, 0) and (
            ordinal == folder.bases[0] or folder.place(ordinal - 1) < log_min
        )

    def known(self) -> ClosedQueue:
        """Return the bounds that the next opening can take over."""
        bases, low, high = tuple(self.folder.bases), self.min_offset, self.max_offset
        begin, end = (bases[0], self.folder.stop_of(bases[-1])) if bases else (0, 0)
        last = self.reach()
        # After a cut a queue may end before its first file; in a corrupt queue no entry may lead to a record.
        is_plain = begin <= low <= high <= end and (last >= 0 or low == high)
        return ClosedQueue(bases, low, high, last) if is_plain else ClosedQueue(bases)

    def reload(self, log_min: int) -> None:
        """Read the bounds again: another process has changed the files."""
        for _ in self.folder.scan(cut_too=True):
            pass
        bases = self.folder.bases
        self.max_offset = self.folder.scan_end()
        first = bases[0] if bases else 0
        self.min_offset = self.folder.first_from(log_min, first, self.max_offset)

    def add_appended(self, log_min: int) -> bool:
        """Add entries written after the end; return False if more has changed, and a full reload is needed.

        A follower is woken for a few entries at a time; listing the folder each time would cost multiple times as much.
        """
        low, high, folder = self.min_offset, self.max_offset, self.folder
        # Files are removed from either end.
        if high <= low or not (folder.is_current(high - 1) and folder.is_current(low)):
            return False
        stop = min(high + _READ_ENTRIES, folder.stop_of(folder.file_base(high - 1)))
        absent = first_absent(folder.read_bytes(high - 1, stop))
        # Either the last entry was removed; or all are present, and there may be more.
        if absent in (None, 0) or folder.place(low) < max(log_min, 0):
            return False
        self.max_offset = high - 1 + (absent or 0)
        return True
