"""Bytes copied from another log, in pieces of any size: divided into whole records, and checked before they are appended.

The other side of a connection may send anything. Size, magic and stated log offset of a record are checked as soon as its
first bytes are there, so no more memory is used than the largest record takes. All records of a call are checked before one
of them is returned.
"""

from pathlib import Path
from typing import NamedTuple, NoReturn

import attrs

from penstock import _kernel
from penstock.errors import CorruptionError, OffsetError
from penstock.format.arrays import np
from penstock.format.columns import Buffer, ScannedColumns
from penstock.format.record import (
    BLANK_SIZE,
    FIXED_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
)
from penstock.format.validity import NO_COVERAGE, Coverage

# The stated log offset of a record, and the bytes up to its end.
_OFFSET_AT, _HEAD_BYTES = 28, 36
_ADVICE = "nothing of it was appended. If it comes from this place again, the master's log is corrupt there: run penstock verify on it"
_NO_RECORDS = b""
# Bytes that wait are copied together with the next ones up to this size.
_JOINED_BYTES = 128 << 10
Head = bytes | bytearray | memoryview


class CopiedPiece(NamedTuple):
    """Consecutive bytes of one segment.

    Attributes:
        log_offset: where they begin.
        data: whole records; or filler with bytes that are not zero; or b"", if the segment ends with zeros after the blank
            record's head.
        records: the records; None for filler.
    """

    log_offset: int
    data: Buffer
    records: ScannedColumns | None


@attrs.define
class _Filler:
    """The filler at a segment's end, of which `got` bytes have come; `data` only if some are not zero."""

    size: int
    got: int = 0
    data: bytearray | None = None


class CopiedBytes:
    """The stream of one log's bytes. Not thread-safe.

    Attributes:
        coverage: the ranges in which records must end in a CRC of their own.
        end_offset: the log offset after the last whole record that was returned.
    """

    def __init__(self, segment_bytes: int, record_bytes_max: int, end_offset: int) -> None:
        self._segment_bytes = segment_bytes
        self._record_max = min(record_bytes_max, segment_bytes - BLANK_SIZE)
        self.coverage: Coverage = NO_COVERAGE
        self.end_offset = end_offset
        self._waiting = bytearray()
        self._filler: _Filler | None = None

    @property
    def next_offset(self) -> int:
        """The log offset of the next byte to take."""
        return self.end_offset + (len(self._waiting) if self._filler is None else self._filler.got)

    def forget(self, end_offset: int) -> None:
        """Forget the bytes of a record that is not whole; the next bytes begin at the log's end."""
        self.end_offset = end_offset
        self._waiting = bytearray()
        self._filler = None

    def take(self, log_offset: int, data: Buffer) -> list[CopiedPiece]:
        """Return the whole records, and filler, that are complete with the next bytes; views of them where possible.

        Raises:
            OffsetError: the bytes do not follow the ones before.
            CorruptionError: they are not what a log has there; all that waits is forgotten.
        """
        before = self.end_offset
        if log_offset != self.next_offset:
            if log_offset != before:
                raise OffsetError(
                    log_offset, self.next_offset, self.next_offset + 1, "copied log offset"
                )
            self.forget(before)
        pieces: list[CopiedPiece] = []
        try:
            if self._waiting and len(self._waiting) + len(data) <= _JOINED_BYTES:
                # One scan and one write for all takes less time than two.
                data = bytes(self._waiting) + bytes(data)
                self._waiting = bytearray()
            self._divide(memoryview(data).cast("B"), pieces)
        except BaseException:
            self.forget(before)
            raise
        return pieces

    def _divide(self, view: memoryview, pieces: list[CopiedPiece]) -> None:
        at = 0
        while at < len(view):
            if self._filler is not None:
                at = self._take_filler(self._filler, view, at, pieces)
            elif self._waiting:
                at = self._complete(view, at, pieces)
            else:
                at = self._scan(view, at, pieces)

    @property
    def _segment_end(self) -> int:
        size = self._segment_bytes
        return self.end_offset // size * size + size

    # --- records

    def _scan(self, view: memoryview, at: int, pieces: list[CopiedPiece]) -> int:
        """Take whole records; returns the position after them, and after the head of what follows."""
        room = self._segment_end - self.end_offset
        window = view[at : at + room]
        stop, state = self._add_records(window, pieces)
        if state == _kernel.BLANK:
            self._filler = self._begin_filler(window[stop:])
        elif state == _kernel.MORE:
            rest = window[stop:]
            # Bytes of a record whose rest has not come.
            self._needed(rest)
            self._waiting = bytearray(rest)
            stop = len(window)
        return at + stop

    def _complete(self, view: memoryview, at: int, pieces: list[CopiedPiece]) -> int:
        """Take the next bytes of a record that waits; returns the position after them."""
        waiting = self._waiting
        needed = self._needed(waiting)
        stop = at + needed - len(waiting)
        waiting += view[at:stop]
        if len(waiting) == needed and needed == SIZE_AND_MAGIC.size:
            _, magic = SIZE_AND_MAGIC.unpack(waiting)
            if magic == MAGIC_BLANK:
                self._filler = self._begin_filler(waiting)
                self._filler.got = len(waiting)
                self._waiting = bytearray()
        elif len(waiting) == needed > _HEAD_BYTES:
            self._waiting = bytearray()
            self._add_records(bytes(waiting), pieces)
        # A head that is complete is checked at once.
        self._needed(self._waiting)
        return min(stop, len(view))

    def _needed(self, head: Head) -> int:
        """Return how many bytes of a record that begins with these tell more of it: of its head, or all of it."""
        if len(head) < SIZE_AND_MAGIC.size:
            return SIZE_AND_MAGIC.size
        size, magic = SIZE_AND_MAGIC.unpack_from(head)
        if magic not in (MAGIC_V1, MAGIC_V2) or size < FIXED_SIZE:
            self._refuse("a record", f"size {size}, magic {magic & 0xFFFFFFFF:08x}")
        if size > self._segment_end - self.end_offset - BLANK_SIZE:
            self._refuse("a record that ends within its segment", f"one of {size} bytes")
        if size > self._record_max:
            self._refuse(
                f"a record of at most {self._record_max} bytes (set log.body_bytes_max as on the master)",
                f"size {size}",
            )
        if len(head) < _HEAD_BYTES:
            return _HEAD_BYTES
        stated = int.from_bytes(head[_OFFSET_AT:_HEAD_BYTES], "big", signed=True)
        if stated != self.end_offset:
            self._refuse("a record of this log offset", f"one of log offset {stated}")
        return int(size)

    def _add_records(self, window: Buffer, pieces: list[CopiedPiece]) -> tuple[int, int]:
        """Add the whole records at a window's start; returns their end in the window, and why they end."""
        start = self.end_offset
        rows, stop, state, _ = _kernel.scan(window, start, _kernel.CRC, self.coverage.packed)
        if state == _kernel.INVALID:
            self.end_offset += stop
            self._refuse("a valid record", "one whose lengths, log offset or CRC are wrong")
        if state == _kernel.NONE:
            self.end_offset += stop
            self._needed(bytes(window[stop : stop + _HEAD_BYTES]))
            self._refuse("a record", "other bytes")
        if stop:
            records = ScannedColumns(window, rows, start + stop)
            if start + stop + BLANK_SIZE > self._segment_end:
                self._refuse(
                    "records that leave room for a blank one", "records up to the segment's end"
                )
            pieces.append(CopiedPiece(start, window[:stop], records))
            self.end_offset += stop
        return stop, state

    # --- filler

    def _begin_filler(self, head: Head) -> _Filler:
        size, _ = SIZE_AND_MAGIC.unpack_from(head)
        room = self._segment_end - self.end_offset
        if size != room:
            self._refuse(f"a blank record of {room} bytes, to the segment's end", f"one of {size}")
        return _Filler(size)

    def _take_filler(
        self, filler: _Filler, view: memoryview, at: int, pieces: list[CopiedPiece]
    ) -> int:
        """Take the next bytes of filler; returns the position after them."""
        piece = view[at : at + filler.size - filler.got]
        body = piece[max(SIZE_AND_MAGIC.size - filler.got, 0) :]
        if filler.data is None and np.frombuffer(body, np.uint8).any():
            filler.data = bytearray(SIZE_AND_MAGIC.pack(filler.size, MAGIC_BLANK))
            filler.data += bytes(max(filler.got - SIZE_AND_MAGIC.size, 0))
            del filler.data[max(filler.got, 0) :]
        if filler.data is not None:
            if filler.size > self._record_max:
                self._refuse(
                    "filler of zeros", f"{filler.size} bytes of filler that are not all zero"
                )
            filler.data += piece
        filler.got += len(piece)
        if filler.got == filler.size:
            pieces.append(CopiedPiece(self.end_offset, bytes(filler.data or _NO_RECORDS), None))
            self.end_offset += filler.size
            self._filler = None
        return at + len(piece)

    def _refuse(self, expected: str, found: str) -> NoReturn:
        # No file is corrupt here: the bytes come from elsewhere.
        raise CorruptionError(Path("the copied log"), self.end_offset, expected, found, _ADVICE)
