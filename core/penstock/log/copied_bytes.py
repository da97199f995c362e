"""Divides the bytes of another log, which arrive in pieces of any size, into whole records, and checks them.

The sender may be hostile. Size, magic and stated log offset of a record are checked as soon as its first bytes are
there, so no more memory is used than the largest record and one piece take. All records of a piece are checked before
one of them is returned.
"""

from pathlib import Path
from typing import NamedTuple, NoReturn

from penstock import _kernel
from penstock.errors import CorruptionError, OffsetError
from penstock.format.arrays import np
from penstock.format.columns import Buffer, ScannedColumns
from penstock.format.record import (
    BLANK,
    BLANK_SIZE,
    FIXED_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
)
from penstock.format.validity import NO_COVERAGE, Coverage
from penstock.log.scan import read_mark

# The stated log offset of a record, and the bytes up to its end.
_OFFSET_AT, _HEAD_BYTES = 28, 36
_ADVICE = (
    "nothing of it was appended. If this comes again, the master's log is corrupt there, or was repaired: run "
    "penstock verify on it"
)


class CopiedPiece(NamedTuple):
    """Consecutive bytes of one segment.

    Attributes:
        log_offset: where they begin.
        data: whole records; or filler up to the segment's end; b"" for filler of zeros.
        records: the records; None for filler.
    """

    log_offset: int
    data: Buffer
    records: ScannedColumns | None


class CopiedBytes:
    """The stream of one log's bytes. Not thread-safe.

    Attributes:
        end_offset: the log offset after the last whole record or filler that was returned.
        coverage: the ranges in which records must end in a CRC of their own.
    """

    def __init__(self, segment_bytes: int, record_bytes_max: int, end_offset: int) -> None:
        self._segment_bytes = segment_bytes
        self._record_max = min(record_bytes_max, segment_bytes - BLANK_SIZE)
        self.end_offset = end_offset
        self.coverage: Coverage = NO_COVERAGE
        # The first bytes of a record, or of filler that is not zero; or how many bytes of filler of zeros have come.
        self._waiting = bytearray()
        self._filler = 0

    @property
    def next_offset(self) -> int:
        """The log offset of the next byte to take."""
        return self.end_offset + len(self._waiting) + self._filler

    @property
    def _room(self) -> int:
        return self._segment_bytes - self.end_offset % self._segment_bytes

    def forget(self) -> None:
        """Forget the bytes after `end_offset`; the next bytes begin there."""
        self._waiting, self._filler = bytearray(), 0

    def take(self, log_offset: int, data: Buffer) -> list[CopiedPiece]:
        """Return the records and filler that are complete with the next bytes, as views of them where possible.

        Raises:
            OffsetError: the bytes begin neither at `next_offset` nor at `end_offset`.
            CorruptionError: no log has these bytes there; its `position` is the log offset. Nothing is returned, and
                what waited is forgotten.
        """
        before, following = self.end_offset, self.next_offset
        if log_offset != following:
            if log_offset != before:
                raise OffsetError(log_offset, following, following + 1, "copied log offset")
            self.forget()
        pieces: list[CopiedPiece] = []
        try:
            self._divide(memoryview(data).cast("B"), pieces)
        except BaseException:
            self.end_offset = before
            self.forget()
            raise
        return pieces

    def _divide(self, view: memoryview, pieces: list[CopiedPiece]) -> None:
        while view or self._waiting:
            if self._waiting:
                # No more than the record needs: what follows it is not copied.
                while missing := self._needed(self._waiting) - len(self._waiting):
                    if not view:
                        return
                    self._waiting += view[:missing]
                    view = view[missing:]
                whole, self._waiting = self._waiting, bytearray()
                self._take_records(memoryview(whole), pieces)
            else:
                take = self._take_filler if self._filler else self._take_records
                view = view[take(view, pieces) :]

    def _take_records(self, view: memoryview, pieces: list[CopiedPiece]) -> int:
        """Take whole records, and the head of what follows them; return how many bytes."""
        start, room = self.end_offset, self._room
        window = view[:room]
        rows, stop, state, _ = _kernel.scan(window, start, _kernel.CRC, self.coverage.packed)
        if stop:
            self.end_offset = start + stop
            if room - stop < BLANK_SIZE:
                self._refuse("room for a blank record", "records up to the segment's end")
            records = ScannedColumns(window, rows, start + stop)
            pieces.append(CopiedPiece(start, window[:stop], records))
            if stop == len(window):
                return stop
        rest = window[stop:]
        needed = self._needed(rest)
        if state == _kernel.BLANK and len(rest) < self._room:
            self._filler = BLANK_SIZE
            return stop + BLANK_SIZE + self._take_filler(rest[BLANK_SIZE:], pieces)
        if state == _kernel.BLANK:
            self._add_filler(rest if _has_bytes(rest[BLANK_SIZE:]) else b"", pieces)
        elif len(rest) < needed:
            self._waiting = bytearray(rest)
        else:
            self._refuse("a valid record", "one whose lengths, log offset or CRC are wrong")
        return len(window)

    def _take_filler(self, view: memoryview, pieces: list[CopiedPiece]) -> int:
        """Take filler; return how many bytes. If it is not of zeros, as that of a broker of 4.x, it must be kept."""
        room = self._room
        piece = view[: room - self._filler]
        if _has_bytes(piece):
            # A record that did not fit in is as long, or shorter by less than a blank record.
            most = self._record_max + BLANK_SIZE
            if room > most:
                self._refuse(f"at most {most} bytes of filler that is not zero", f"{room}")
            head = BLANK.pack(room, MAGIC_BLANK).ljust(self._filler, b"\0")
            self._waiting, self._filler = bytearray(head + piece), 0
            return len(piece)
        self._filler += len(piece)
        if self._filler == room:
            self._filler = 0
            self._add_filler(b"", pieces)
        return len(piece)

    def _add_filler(self, data: Buffer, pieces: list[CopiedPiece]) -> None:
        pieces.append(CopiedPiece(self.end_offset, data, None))
        self.end_offset += self._room

    def _needed(self, head: bytearray | memoryview) -> int:
        """Return how many bytes the record or filler that begins with these has, or its head if that is not whole."""
        if len(head) < SIZE_AND_MAGIC.size:
            return SIZE_AND_MAGIC.size
        size, magic = SIZE_AND_MAGIC.unpack_from(head)
        if magic == MAGIC_BLANK:
            if size != self._room:
                expected = f"{self._room} bytes of filler, to the end of a segment as large as the master's"
                self._refuse(expected, f"{size}")
            return int(size) if len(head) > BLANK_SIZE else BLANK_SIZE
        if magic not in (MAGIC_V1, MAGIC_V2) or size < FIXED_SIZE:
            self._refuse("a record", f"size {size}, magic {magic & 0xFFFFFFFF:08x}")
        if size > self._room - BLANK_SIZE:
            self._refuse("a record that ends within its segment", f"one of {size} bytes")
        if size > self._record_max:
            expected = f"a record of at most {self._record_max} bytes (set log.body_bytes_max as on the master)"
            self._refuse(expected, f"one of {size}")
        if len(head) < _HEAD_BYTES:
            return _HEAD_BYTES
        stated = int.from_bytes(head[_OFFSET_AT:_HEAD_BYTES], "big", signed=True)
        if stated != self.end_offset:
            self._refuse("a record of this log offset", f"one of log offset {stated}")
        return int(size)

    def _refuse(self, expected: str, found: str) -> NoReturn:
        # No file is corrupt here: the bytes come from elsewhere.
        raise CorruptionError(Path("the copied log"), self.end_offset, expected, found, _ADVICE)


Part = tuple[int, int]


def _has_bytes(view: memoryview) -> bool:
    """Return whether any byte is not zero."""
    return bool(np.frombuffer(view, np.uint8).any())


class HeldBatches:
    """The atomic batches that were not appended at once. One thread appends; `shown` is safe from any thread."""

    def __init__(self, segment_bytes: int, part: Part | None) -> None:
        self._segment_bytes = segment_bytes
        # Begin and end of each; replaced, never changed in place.
        self.parts: tuple[Part, ...] = () if part is None else (part,)

    def shown(self, log_offset: int) -> int:
        """Return where readers stop who might see the log up to `log_offset`: at the begin of a batch around it."""
        return next((begin for begin, end in self.parts if begin < log_offset < end), log_offset)

    def begin(self, records: ScannedColumns, stop: int) -> Part | None:
        """Before records that end at `stop` are appended: hold, and return, the batch that goes on after them."""
        part = self._going_on(records, stop)
        if part is not None and part not in self.parts:
            self.parts = (*self.parts, part)
        return part

    def end(self, part: Part | None, stop: int, seen: int) -> None:
        """After that: keep what goes on, and what is whole and readers, who are at `seen`, may not have passed.

        A batch that has not gone on was none.
        """
        self.parts = tuple(each for each in self.parts if each == part or seen < each[1] <= stop)

    def _going_on(self, records: ScannedColumns, stop: int) -> Part | None:
        if (mark := read_mark(records.last("prepared"))) is None:
            return None
        last, room = records.last("log_offset"), self._segment_bytes - BLANK_SIZE
        base = last - last % self._segment_bytes
        if not stop < base + mark.end <= base + room:
            return None
        part = last if mark.is_first else base + mark.start, base + mark.end
        row = int(records.log_offsets.searchsorted(part[0]))
        if row == len(records) or int(records.log_offsets[row]) != part[0]:
            return part if part in self.parts else None
        first = read_mark(int(records.prepared_offsets[row]))
        return part if first is not None and first.is_first and first.end == mark.end else None
