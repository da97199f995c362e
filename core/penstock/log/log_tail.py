"""The end of the log being written: the segment that takes records, and how the next one comes.

Everything here happens under the append lock. A segment is asked for before the old one is filled
up, and all that a batch needs before its first byte is written, so when there is no room nothing of
the record or batch counts.

An interrupt may come between any two steps. So each step can be done again, and only one assignment makes
it count: `wrote_position` for bytes, the log's list for a segment. `settle` brings the rest in line.
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
# The allocator is told of the next segment and the one behind it.
_EXPECTED = 2


class BatchSlice(NamedTuple):
    """Bytes [start, stop) of a batch, the segment they go to, the position in it, and the first record with the sizes of all."""

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
        # Full segments that nobody was told of yet.
        self.sealed: list[Segment] = []
        # The first of the files that the allocator knows to come.
        self._expected: int | None = None

    def resume(self, end_offset: int) -> None:
        """Go on at `end_offset`, the end that recovery found."""
        segment = self._log.find(end_offset)
        if segment is None:
            return
        file = self._files.open(segment.path, writable=True)
        if self.writer.needs_allocated_file:
            # Java's files are sparse, and so are those of writers that allocate ahead by themselves.
            file.allocate(segment.capacity)
        position = end_offset - segment.base_offset
        self._start(segment, file, position)
        self.segment = segment

    def expect(self) -> None:
        """Tell the allocator which files come next, unless it knows."""
        following = self._log.next_free_base()
        if following == self._expected:
            return
        paths = [self._log.path_of(self._log.next_free_base(ahead)) for ahead in range(_EXPECTED)]
        self.allocator.expect(
            paths, self._log.segment_bytes, allocated=self.writer.needs_allocated_file
        )
        self._expected = following

    def roll(self) -> Segment:
        """Go on in a fresh segment, because a record did not fit; return it."""
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
        """Put one record behind what `segment` holds; when this raises nothing of it counts."""
        position = segment.wrote_position
        try:
            segment.channel.write(position, record)  # type: ignore[union-attr] # it is being written
        except OSError as error:
            _check_room(error, segment, record)
            raise
        segment.wrote_position = end = position + len(record)
        if self._commits_at_once:
            segment.committed_position = end

    def write_batch(self, segment: Segment, data: Buffer, sizes: Sequence[int] = ()) -> None:
        """Put several records behind what `segment` holds; when this raises nothing of them counts."""
        assert segment.channel is not None
        self._make_room(segment, segment.wrote_position + len(data))
        try:
            segment.channel.write_batch(segment.wrote_position, data, sizes)
        except OSError as error:
            if error.errno in NO_ROOM:
                _take_back(segment, len(data))
            _check_room(error, segment, data)
            raise
        segment.wrote_position += len(data)
        if self._commits_at_once:
            segment.committed_position = segment.wrote_position

    def settle(self) -> None:
        """After an exception: bring in line what an interrupted step left behind."""
        last = self._log.segments[-1:]
        if last and last[0] is not self.segment and last[0].channel is not None:
            self.segment = last[0]
        for segment in self._log.segments[-2:]:
            if segment.channel is not None and self._commits_at_once:
                segment.committed_position = segment.wrote_position

    def obtain(self, base_offset: int) -> Segment:
        """Return a fresh segment that is not in the log yet."""
        path = self._log.path_of(base_offset)
        capacity = self._log.segment_bytes
        try:
            file = self.allocator.obtain(path, capacity, allocated=self.writer.needs_allocated_file)
        except OSError as error:
            raise _meant(error, path, capacity) from error
        segment = Segment(self._files, path, base_offset, capacity)
        try:
            channel = self._start(segment, file, 0)
            # A first record too large for the first step asks again.
            channel.reserve(1)
        except Exception as error:
            segment.close()
            file.close()
            self._expected = None
            self.allocator.discard(path)
            if isinstance(error, OSError):
                raise _meant(error, path, capacity) from error
            raise
        return segment

    def _start(self, segment: Segment, file: File, position: int) -> SegmentChannel:
        channel = self.writer.open(file, segment.capacity, position)
        segment.start_writing(channel, position, commits_at_once=self._commits_at_once)
        return channel

    def turn_to(self, fresh: Segment) -> None:
        """Fill the old segment with a blank record, and go on in `fresh`."""
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
        """Go on in `fresh`, whatever the old one still had room for."""
        self._log.add(fresh)
        self.segment = fresh
        self.expect()

    def plan(self, batch: Batch, *, atomic: bool) -> list[BatchSlice]:
        """Say which bytes of a batch go to which segment.

        All segments it needs are made before any write.
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
        """Write a batch as planned; what is written already is left alone."""
        self._reserve(pieces)
        for piece in pieces:
            if piece.segment.wrote_position > piece.position:
                continue
            if piece.segment is not self.segment:
                self.turn_to(piece.segment)
            self.write_batch(piece.segment, data[piece.start : piece.stop], piece.sizes)
        # Only now: asked between two pieces, the allocator would make again what is planned for the next.
        self.expect()

    def _reserve(self, pieces: list[BatchSlice]) -> None:
        """See that all of a batch has room before its first byte is written: blank records behind it too."""
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
            raise _meant(error, segment.path, stop - segment.wrote_position) from error

    def give_back(self) -> None:
        """At a clean end of writing: return the blocks that were allocated ahead, durably."""
        segment = self.segment
        if segment is not None and segment.channel is not None:
            segment.channel.give_back(segment.wrote_position)

    @staticmethod
    def has_begun(pieces: list[BatchSlice]) -> bool:
        """Say whether anything of a batch counts already."""
        return any(piece.segment.wrote_position > piece.position for piece in pieces)

    def forget(self, pieces: list[BatchSlice]) -> None:
        """Let go of segments that were made for a batch and are not in the log."""
        for piece in pieces:
            if piece.segment not in self._log.segments:
                self._forget(piece.segment)

    def _forget(self, segment: Segment) -> None:
        # It was one of those that the allocator was to make.
        self._expected = None
        segment.close()
        self.allocator.discard(segment.path)

    def close(self) -> None:
        """Let go of what the strategies keep; the segments must be closed by then."""
        if not self._is_closed:
            self._is_closed = True
            self.writer.close()
            self.allocator.close()


def _check_room(error: OSError, segment: Segment, data: Buffer) -> None:
    """Raise the error that says so where a write failed for want of room; nothing of it counts."""
    if error.errno in NO_ROOM:
        raise DiskFullError(segment.path, len(data)) from error


def _take_back(segment: Segment, size: int) -> None:
    """Zero what was written of a batch: whole records of it would come back at the next recovery."""
    assert segment.channel is not None
    try:
        segment.channel.write(segment.wrote_position, bytes(size))
    except OSError as error:
        raise OSError(
            errno.EIO, f"the disk is full, and part of a batch could not be taken back: {error}"
        ) from error


def _meant(error: OSError, path: Path, size: int) -> Exception:
    """Return what it means that a segment could not be made: nothing of it is there."""
    if error.errno in NO_ROOM:
        return DiskFullError(path, size)
    if error.errno in LIMITS:
        return SystemLimitError(str(error))
    return error
