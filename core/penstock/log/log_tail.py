"""The end of the log being written: the segment that takes records, and how the next segment is obtained.

Everything here happens under the append lock. A segment is obtained before the old one is filled
up, and all segments of a batch before its first byte is written. So if there is no room, nothing of
the record or batch is in the log.

An interrupt may come between any two steps. So each step can be repeated, and takes effect by one assignment:
`wrote_position` for bytes, the log's list for a segment. `settle` updates the other fields afterwards.
"""

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penstock._kernel import Batch
from penstock.contracts import Allocator, SegmentChannel, SegmentWriter
from penstock.errors import DiskFullError, SystemLimitError
from penstock.files import File, Files
from penstock.files.file import NO_ROOM
from penstock.format.columns import Buffer
from penstock.format.record import BLANK, BLANK_SIZE, MAGIC_BLANK
from penstock.log.segment import Segment
from penstock.log.segmented_log import SegmentedLog

LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EFBIG)
# The allocator is informed of the next segment and of the one after it.
_EXPECTED = 2


class BatchSlice(NamedTuple):
    """Bytes [start, stop) of a batch, their segment and position in it, the index of the first record, and all record sizes."""

    segment: Segment
    start: int
    stop: int
    position: int
    first: int
    sizes: Sequence[int]


class LogTail:
    """Writes at the end of a log. The append lock guards it."""

    def __init__(
        self, log: SegmentedLog, writer: SegmentWriter, allocator: Allocator, files: Files
    ) -> None:
        self._log = log
        self._files = files
        self.writer = writer
        self.allocator = allocator
        self._commits_at_once = writer.commits_at_once
        self.segment: Segment | None = None
        self._is_closed = False
        # Full segments that have not been reported yet.
        self.sealed: list[Segment] = []
        # The base offset of the first file that the allocator expects.
        self._expected: int | None = None

    def resume(self, end_offset: int) -> None:
        """Continue at `end_offset`, the end that recovery found."""
        segment = self._log.find(end_offset)
        if segment is None:
            return
        file = self._files.open(segment.path, writable=True)
        if self.writer.needs_allocated_file:
            # The file may be sparse: Java's files are, and those of writers that allocate ahead by themselves.
            file.allocate(segment.capacity)
        position = end_offset - segment.base_offset
        self._start(segment, file, position)
        self.segment = segment

    def expect(self) -> None:
        """Inform the allocator of the next files, unless they have not changed."""
        following = self._log.next_free_base()
        if following == self._expected:
            return
        paths = [self._log.path_of(self._log.next_free_base(ahead)) for ahead in range(_EXPECTED)]
        self.allocator.expect(
            paths, self._log.segment_bytes, allocated=self.writer.needs_allocated_file
        )
        self._expected = following

    def roll(self) -> Segment:
        """Switch to a new segment, because a record did not fit; return it."""
        fresh = self.obtain(self._log.next_free_base())
        try:
            self.turn_to(fresh)
            self.expect()
        except BaseException:
            if fresh not in self._log.segments:
                self._forget(fresh)
            raise
        return fresh

    def write(self, segment: Segment, record: bytes) -> None:
        """Write one record after the records of `segment`; if this raises, nothing of it is in the log."""
        position = segment.wrote_position
        try:
            segment.channel.write(position, record)  # type: ignore[union-attr] # it is being written
        except OSError as error:
            _check_room(error, segment, record)
            raise
        segment.wrote_position = end = position + len(record)
        if self._commits_at_once:
            segment.committed_position = end

    def write_batch(self, segment: Segment, data: Buffer, sizes: Sequence[int]) -> None:
        """Write multiple records after the records of `segment`; if this raises, nothing of them is in the log."""
        assert segment.channel is not None
        self._make_room(segment, segment.wrote_position + len(data))
        try:
            segment.channel.write_batch(segment.wrote_position, data, sizes)
        except OSError as error:
            if error.errno in NO_ROOM:
                _erase_partial(segment, len(data))
            _check_room(error, segment, data)
            raise
        segment.wrote_position += len(data)
        if self._commits_at_once:
            segment.committed_position = segment.wrote_position

    def settle(self) -> None:
        """After an exception: update the fields that an interrupted step has left inconsistent."""
        last = self._log.segments[-1:]
        if last and last[0] is not self.segment and last[0].channel is not None:
            self.segment = last[0]
        for segment in self._log.segments[-2:]:
            if segment.channel is not None and self._commits_at_once:
                segment.committed_position = segment.wrote_position

    def obtain(self, base_offset: int) -> Segment:
        """Return a new segment that is not in the log yet."""
        path = self._log.path_of(base_offset)
        capacity = self._log.segment_bytes
        try:
            file = self.allocator.obtain(path, capacity, allocated=self.writer.needs_allocated_file)
        except OSError as error:
            raise _as_storage_error(error, path, capacity) from error
        segment = Segment(self._files, path, base_offset, capacity)
        try:
            channel = self._start(segment, file, 0)
            # Allocates the first step; a first record that is larger reserves more.
            channel.reserve(1)
        except Exception as error:
            segment.close()
            file.close()
            self._expected = None
            self.allocator.discard(path)
            if isinstance(error, OSError):
                raise _as_storage_error(error, path, capacity) from error
            raise
        return segment

    def _start(self, segment: Segment, file: File, position: int) -> SegmentChannel:
        channel = self.writer.open(file, segment.capacity, position)
        segment.start_writing(channel, position, commits_at_once=self._commits_at_once)
        return channel

    def turn_to(self, fresh: Segment) -> None:
        """Fill the old segment with a blank record, and continue in `fresh`."""
        tail = self.segment
        if tail is not None:
            room = tail.capacity - tail.wrote_position
            if room:
                assert tail.channel is not None
                blank = BLANK.pack(room, MAGIC_BLANK)
                try:
                    tail.channel.write(tail.wrote_position, blank)
                except OSError as error:
                    _check_room(error, tail, blank)
                    raise
                tail.channel.end()
                tail.wrote_position = tail.capacity
            if self._commits_at_once:
                tail.committed_position = tail.capacity
            if self.sealed[-1:] != [tail]:
                self.sealed.append(tail)
        self._log.add(fresh)
        self.segment = fresh

    def take(self, fresh: Segment) -> None:
        """Continue in `fresh`, without filling the old segment."""
        self._log.add(fresh)
        self.segment = fresh
        self.expect()

    def plan(self, batch: Batch, *, atomic: bool) -> list[BatchSlice]:
        """Return which bytes of a batch are written to which segment.

        All segments that the batch needs are obtained before any write.
        """
        pieces: list[BatchSlice] = []
        fresh: list[Segment] = []
        segment, position = self.segment, self.segment.wrote_position if self.segment else 0
        row = done = 0
        try:
            while row < len(batch):
                room = segment.capacity - position - BLANK_SIZE if segment else -1
                fits, size = batch.fit(row, room)
                if segment is None or fits == row or (atomic and batch.size > room):
                    segment = self.obtain(self._log.next_free_base(len(fresh)))
                    fresh.append(segment)
                    position = 0
                    continue
                sizes = batch.sizes(row, fits)
                pieces.append(BatchSlice(segment, done, done + size, position, row, sizes))
                position += size
                row, done = fits, done + size
        except BaseException:
            for segment in fresh:
                self._forget(segment)
            raise
        return pieces

    def write_pieces(self, pieces: list[BatchSlice], data: Buffer) -> None:
        """Write a batch as planned; slices that are already written are skipped."""
        self._reserve(pieces)
        for piece in pieces:
            if piece.segment.wrote_position > piece.position:
                continue
            if piece.segment is not self.segment:
                self.turn_to(piece.segment)
            self.write_batch(piece.segment, data[piece.start : piece.stop], piece.sizes)
        # Only now: between two slices, the allocator would create the segment that is planned for the next slice.
        self.expect()

    def _reserve(self, pieces: list[BatchSlice]) -> None:
        """Reserve room for a whole batch, including blank records after it, before its first byte is written."""
        wanted = [(piece.segment, piece.position + piece.stop - piece.start) for piece in pieces]
        if self.segment is not None and pieces[-1].segment is not self.segment:
            wanted.append((self.segment, self.segment.wrote_position))
        for segment, end in wanted:
            self._make_room(segment, min(end + BLANK_SIZE, segment.capacity))

    @staticmethod
    def _make_room(segment: Segment, stop: int) -> None:
        try:
            if segment.channel is not None:
                segment.channel.reserve(stop)
        except OSError as error:
            size = stop - segment.wrote_position
            raise _as_storage_error(error, segment.path, size) from error

    def give_back(self) -> None:
        """Free the blocks that were allocated ahead, durably; called at a clean end of writing."""
        segment = self.segment
        if segment is not None and segment.channel is not None:
            segment.channel.give_back(segment.wrote_position)

    @staticmethod
    def has_begun(pieces: list[BatchSlice]) -> bool:
        """Return whether any record of a batch is in the log already."""
        return any(piece.segment.wrote_position > piece.position for piece in pieces)

    def forget(self, pieces: list[BatchSlice]) -> None:
        """Close and discard segments that were obtained for a batch and are not in the log."""
        for piece in pieces:
            if piece.segment not in self._log.segments:
                self._forget(piece.segment)

    def _forget(self, segment: Segment) -> None:
        # The allocator expected this file to be used: inform it again.
        self._expected = None
        segment.close()
        self.allocator.discard(segment.path)

    def close(self) -> None:
        """Close writer and allocator; the segments must be closed before."""
        if not self._is_closed:
            self._is_closed = True
            self.writer.close()
            self.allocator.close()


def _check_room(error: OSError, segment: Segment, data: Buffer) -> None:
    """Raise `DiskFullError` if a write failed because the disk is full; nothing of it is in the log."""
    if error.errno in NO_ROOM:
        raise DiskFullError(segment.path, len(data)) from error


def _erase_partial(segment: Segment, size: int) -> None:
    """Zero the written part of a batch; the next recovery would treat its whole records as appended."""
    assert segment.channel is not None
    try:
        segment.channel.write(segment.wrote_position, bytes(size))
    except OSError as error:
        raise OSError(
            errno.EIO, f"the disk is full, and a partly written batch could not be erased: {error}"
        ) from error


def _as_storage_error(error: OSError, path: Path, size: int) -> Exception:
    """Return the error to raise if a segment could not be created or enlarged; nothing was stored."""
    if error.errno in NO_ROOM:
        return DiskFullError(path, size)
    if error.errno in LIMITS:
        return SystemLimitError(str(error))
    return error
