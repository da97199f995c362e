"""Allocates blocks ahead of the writes to a file, and writes zeros into them. No other module does either.

A file that is written front to back has its full length when it is created, but blocks are allocated in steps, each
step before the first byte is written to its range. If a step is used up quickly, the next one is eight times as large;
if it lasts long, the next one has half its size. The next file continues with the same step size. If the disk has no
room for an allocation, `OSError` (ENOSPC) is raised.

A memory write through a map into a hole kills the process if the disk is full (SIGBUS). The system loads folios rather
than pages, and allocates blocks for whole folios: where any program reads a file ahead, up to `FOLIO_BYTES` that are
aligned to their size. So a memory write is only safe where the whole of such a unit has blocks (measured on ext4, Linux
6.18: with blocks for 1.25 MiB, a process that wrote into them after a read of the file died of SIGBUS).

A memory write through a map into a page that is not in memory waits until the system has loaded the page. With
read-ahead the system loads large folios as well, and a memory write into any part of a folio makes the next sync write
all of it. Without read-ahead it loads pages one by one, with a fault each. Writing zeros first, `ZEROS_BYTES` at once,
is cheaper than either, but makes one large folio. So zeros are written ahead only where no put waits for its sync, and
only after a step that was filled without a sync. If the file is synced again, they are withdrawn (decision 10).

Invariants:
    * Every byte from the first position to `end` has a block: a plain write there cannot run out of room.
    * Every unit that holds a byte before `mapped_end` has all its blocks, or ends with the file.
    * Zeros are written only by the thread that appends, after the bytes that it is about to write, and before `end`.
"""

from collections.abc import Callable

from penstock.files.file import FOLIO_BYTES, NO_ROOM, PAGE_BYTES, File

STEP_BYTES_MIN = 256 << 10
# A larger step would delay a put on file systems that write zeros when they allocate.
STEP_BYTES_MAX = 8 << 20
# A step that lasted less than `_SHORT_MS` was too small, one that lasted more than `_LONG_MS` too large.
_SHORT_MS, _LONG_MS = 200, 2000
# The second step of a fast-written store fills a folio, so that single records may be stored through a map.
_GROWTH = 8
assert STEP_BYTES_MIN % PAGE_BYTES == 0
# A larger value makes no put faster and delays one put in a thousand; half of it costs a tenth more. 113 messages of 1
# KiB, each with its own sync, fill this many bytes; spread over 600 messages, their syncs write less than 32 KiB each.
ZEROS_BYTES = 128 << 10
# This many syncs within a step do not come from an interval: messages are synced one by one.
_MANY_SYNCS = 2
_ZEROS = bytes(ZEROS_BYTES)
# Ensures that a step of zeros ends where stores are safe.
assert FOLIO_BYTES % ZEROS_BYTES == 0


def page_end(position: int) -> int:
    """Return the end of the page that holds the byte before a position."""
    return position + -position % PAGE_BYTES


class Blocks:
    """The blocks of one file that is written from a position on. One writer.

    Attributes:
        begin: the start of the page that is written first.
        end: plain writes before this position have blocks.
        mapped_end: stores through a map before this position have blocks; 0 if no such store is safe yet.
    """

    __slots__ = (
        "_began_ms",
        "_capacity",
        "_file",
        "_is_mapped",
        "_is_synced",
        "_monotonic_ms",
        "_step_bytes",
        "_step_end",
        "_syncs",
        "_unit_start",
        "_zeroes",
        "_zeros_end",
        "begin",
        "end",
        "mapped_end",
    )

    def __init__(
        self, file: File, capacity: int, position: int, monotonic_ms: Callable[[], int] = lambda: 0,
        *, mapped: bool = False, zeroes: bool = False, after: "Blocks | None" = None,
    ) -> None:  # fmt: skip
        """Begin at a position.

        `mapped` says that the file is also written through a map; `zeroes` that zeros are written ahead. `after` is
        the file that was written before this one: its step size is used for the first step.
        """
        self._file = file
        self._is_mapped = mapped
        self._capacity = capacity
        self._monotonic_ms = monotonic_ms
        self._step_bytes: int = STEP_BYTES_MIN if after is None else after._step_bytes
        self._began_ms: int | None = None if after is None else after._began_ms
        self._unit_start = position - position % FOLIO_BYTES
        is_whole = file.allocated >= capacity
        # A partly written page may be a hole too: a sparse copy turns each page of zeros into a hole.
        self.begin = position - position % PAGE_BYTES
        self.end = capacity if is_whole else self.begin
        self.mapped_end = capacity if is_whole else 0
        # Pages that are in memory already gain nothing.
        self._zeroes = zeroes and not file.is_populated
        self._zeros_end = self._step_end = 0
        self._is_synced = False
        # Syncs in this step of zeros; starts at 1, because it is not known yet how often the file will be synced.
        self._syncs = 1

    def reserve(self, stop: int) -> None:
        """Allocate blocks up to byte `stop`, or the file's end; raises `OSError` (ENOSPC) if there is no room."""
        stop = min(stop, self._capacity)
        if stop <= self.end:
            return
        least = min(page_end(stop), self._capacity)
        most = max(self.end + self._next_step(), least)
        if self._is_mapped and self._step_bytes >= FOLIO_BYTES:
            most += -most % FOLIO_BYTES
        most = min(most, self._capacity)
        try:
            self._allocate(most)
        except OSError as error:
            if error.errno not in NO_ROOM or most == least:
                raise
            # The bytes may fit even if the step does not. The file system may have allocated a part of the step.
            self._file.punch(least, most)
            self._step_bytes = STEP_BYTES_MIN
            self._allocate(least)

    def prepare(self, position: int, stop: int) -> int:
        """Allocate blocks for bytes [position, stop), written next; return the end of the range for mapped stores.

        The caller must call this again before a store past the returned position. Raises `OSError` (ENOSPC, EIO) if
        blocks cannot be allocated or zeros cannot be written; the caller must not store anything then.
        """
        self.reserve(stop)
        if not self._zeroes or stop > self.mapped_end:
            return self.mapped_end
        if self._is_synced:
            self._is_synced = False
            self._syncs += 1
            if self._syncs == _MANY_SYNCS:
                self._withdraw_zeros(page_end(position))
        if stop > self._step_end:
            limit = min(stop - stop % ZEROS_BYTES + ZEROS_BYTES, self.mapped_end)
            # Large amounts are written by plain writes, which create their own pages: no zeros are needed for those.
            if not self._syncs and position <= self._step_end and stop < limit:
                self._put_zeros(stop, limit)
            self._syncs, self._step_end = 0, limit
        return self._step_end

    def _put_zeros(self, start: int, stop: int) -> None:
        try:
            self._file.pwrite(memoryview(_ZEROS)[: stop - start], start)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._file.path)) from error
        self._zeros_end = stop

    def _withdraw_zeros(self, start: int) -> None:
        """Drop the unused zeros from the page cache and keep their blocks, because messages are synced one by one."""
        stop, self._zeros_end = self._zeros_end, 0
        if stop > start:
            # If this fails, each sync only writes more bytes.
            self._file.zero_range(start, stop)

    def note_sync(self) -> None:
        """Note that the file was synced; safe from any thread. `prepare` must be called before the next store."""
        self._is_synced = True

    def _allocate(self, stop: int) -> None:
        is_last = stop == self._capacity
        unit_stop = stop if is_last else stop - stop % FOLIO_BYTES
        # A unit is complete now: allocate all of it, since there may be holes before the first position.
        is_full = self._is_mapped and unit_stop > self._unit_start
        self._file.allocate_range(self._unit_start if is_full else self.end, stop)
        self.end = stop
        if is_full:
            self._unit_start = self.mapped_end = unit_stop

    def _next_step(self) -> int:
        began_ms, self._began_ms = self._began_ms, self._monotonic_ms()
        if began_ms is None:
            return self._step_bytes
        lasted_ms = self._began_ms - began_ms
        if lasted_ms < _SHORT_MS:
            self._step_bytes = min(_GROWTH * self._step_bytes, STEP_BYTES_MAX)
        elif lasted_ms > _LONG_MS:
            self._step_bytes = max(self._step_bytes // 2, STEP_BYTES_MIN)
        return self._step_bytes

    def give_back(self, stop: int) -> bool:
        """Free the blocks after `stop`; return whether the file has changed.

        For the end of writing: nothing of the file from `stop` on may be in use, and nothing may be stored through
        a map afterwards. If the file system does not support this, the blocks stay allocated.
        """
        stop = page_end(stop)
        if stop >= self.end:
            return False
        self.end, self.mapped_end = stop, 0
        return self._file.punch(stop, self._capacity)
