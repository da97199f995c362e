"""Blocks of a file ahead of what is written to it, and zeros in them: the one place where either is prepared.

A file that is written front to back has its full length from birth, and blocks only as far as it needs them soon. They
are allocated before the first byte goes there, in steps: a step that lasts a short while is followed by one eight times
as large, one that lasts long by one of half the size, also from one file to the next. What an allocation asks for and the
disk does not have is an `OSError` (ENOSPC).

A store through a map into a hole kills the process when the disk is full (SIGBUS). The system brings in, and gives blocks to,
not pages but folios: where a file is read ahead, by whatever program, up to `FOLIO_BYTES` that are aligned to their
size. So a store is only safe where the whole of such a unit has blocks (measured on ext4, Linux 6.18: with blocks for
1.25 MiB, a store into them after a read of the file died of SIGBUS).

A store through a map into a page that is not in memory waits until the system has brought it in. Left to read ahead, it
brings large folios as well, and a store into any part of a folio makes the next sync write all of it; told not to, it
brings pages one by one, each a fault. Written as zeros before, `ZEROS_BYTES` at once, pages come for less than either,
but as one large folio. So zeros go ahead only where no put waits for its sync, and only after a step that was filled
without a sync; where one sync after the other comes, what is left of them is withdrawn (docs/decisions/0010).

Invariants:
    * Every byte from the first position to `end` has a block: a plain write there cannot run out of room.
    * Every unit that holds a byte before `mapped_end` has all its blocks, or ends with the file.
    * Zeros are written only by the thread that appends, after the end of what it is about to write, and within `end`.
"""

from collections.abc import Callable

from penstock.files.file import FOLIO_BYTES, NO_ROOM, PAGE_BYTES, File

STEP_BYTES_MIN = 256 << 10
# More than this would keep a put waiting, on file systems that write what they allocate.
STEP_BYTES_MAX = 8 << 20
# A step that lasted less than this is too small, one that lasted longer than that too large.
_SHORT_MS, _LONG_MS = 200, 2000
# The second step of a store that is written fast fills a folio, so that single records may be stored through a map.
_GROWTH = 8
assert STEP_BYTES_MIN % PAGE_BYTES == 0
# More makes no put faster, and keeps one in a thousand waiting longer; half of it costs a tenth more. A message of 1 KiB
# after the other with a sync each fills it with 113, which write less than 32 KiB each if spread over 600.
ZEROS_BYTES = 128 << 10
# So many syncs within a step are no interval's: messages are synced one by one.
_MANY_SYNCS = 2
_ZEROS = bytes(ZEROS_BYTES)
# So that a step of zeros ends where stores are safe.
assert FOLIO_BYTES % ZEROS_BYTES == 0


def page_end(position: int) -> int:
    """Return where the page ends that holds the byte before a position."""
    return position + -position % PAGE_BYTES


class Blocks:
    """The blocks of one file that is written from a position on. One writer.

    Attributes:
        begin: where the page begins that is written first.
        end: the position up to which plain writes find room.
        mapped_end: the position up to which stores through a map do; 0 as long as they may not at all.
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
        """Begin at a position; with `mapped` the file is stored into through a map as well, with `zeroes` after zeros.

        Steps are as large as those of the file `after` which this one is written.
        """
        self._file = file
        self._is_mapped = mapped
        self._capacity = capacity
        self._monotonic_ms = monotonic_ms
        self._step_bytes: int = STEP_BYTES_MIN if after is None else after._step_bytes
        self._began_ms: int | None = None if after is None else after._began_ms
        self._unit_start = position - position % FOLIO_BYTES
        is_whole = file.allocated >= capacity
        # A page that is written in part may be a hole too: a sparse copy makes one of each page of zeros.
        self.begin = position - position % PAGE_BYTES
        self.end = capacity if is_whole else self.begin
        self.mapped_end = capacity if is_whole else 0
        # Pages that are in memory already gain nothing.
        self._zeroes = zeroes and not file.is_populated
        self._zeros_end = self._step_end = 0
        self._is_synced = False
        # In this step of zeros; nobody knows yet how often the file will be synced.
        self._syncs = 1

    def reserve(self, stop: int) -> None:
        """See that bytes up to `stop`, or the file's end, have blocks; `OSError` (ENOSPC) if they cannot."""
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
            # What is asked for may fit, if the step does not. Of that the file system may have given a part.
            self._file.punch(least, most)
            self._step_bytes = STEP_BYTES_MIN
            self._allocate(least)

    def prepare(self, position: int, stop: int) -> int:
        """See that bytes [position, stop), the next ones, have blocks, and return up to where stores through a map may go.

        Before a store beyond that this is asked again. `OSError` (ENOSPC, EIO) where blocks or zeros cannot be had:
        nothing may be stored then.
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
            # Many bytes at once went by plain writes, which bring their own pages, and may do so again.
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
        """Take zeros that are ahead out of the page cache, their blocks staying: messages are synced one by one."""
        stop, self._zeros_end = self._zeros_end, 0
        if stop > start:
            # Where that cannot be, they only cost more bytes with each sync.
            self._file.zero_range(start, stop)

    def note_sync(self) -> None:
        """Hear that the file was synced, from any thread; `prepare` is to be asked before the next store."""
        self._is_synced = True

    def _allocate(self, stop: int) -> None:
        is_last = stop == self._capacity
        unit_stop = stop if is_last else stop - stop % FOLIO_BYTES
        # A unit that is full now: all of it, since there may be holes before the first position.
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
        """Return the blocks after `stop` to the disk; says whether there were any, and the file has changed.

        For the end of writing: nothing of the file from `stop` on may be in use, and nothing is stored through
        a map after this. Where the file system cannot do it, they stay.
        """
        stop = page_end(stop)
        if stop >= self.end:
            return False
        self.end, self.mapped_end = stop, 0
        return self._file.punch(stop, self._capacity)
